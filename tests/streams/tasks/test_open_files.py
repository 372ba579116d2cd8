"""Many tasks under a low limit of open files, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import resource, sys
from pathlib import Path
soft, hard, spare, tasks = map(int, sys.argv[2:])
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import LocalStateError
from headrace.streams.plan.plan import TaskId
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.streams.worker.connections import HostState
from tests.support.topologies import key_count
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
config = StreamsConfig.parse({"application.id": "app", "bootstrap.servers": "nowhere:1",
                        "state.dir": sys.argv[1]})
state = HostState(config)
files = [open("/dev/null") for _ in range(spare)]
open_home = state.homes(ManualClock(0), EventLog())
homes = []
try:
    for n in range(tasks):
        homes.append(open_home(TaskId(0, n), key_count().sub_topologies[0].stores))
except LocalStateError as error:
    for file in files:
        file.close()
    print(f"after {len(homes)} tasks: {error}")
for home in homes:
    home.close()
print("limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def run(state: Path, *, soft: int, hard: int, spare: int = 0, tasks: int = 25) -> list[str]:
    """Open the state of many tasks; returns the lines that the process printed."""
    numbers = map(str, (soft, hard, spare, tasks))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(state), *numbers],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    assert run(tmp_path, soft=256, hard=4_096) == ["limit 4096"]


@pytest.mark.parametrize("spare", [0, 3, 5])
def test_where_the_hard_limit_is_too_low_the_error_says_so(tmp_path: Path, spare: int) -> None:
    """Wherever the files are used up: at RocksDB's files, or at the lock of a task."""
    error, limit = run(tmp_path, soft=128, hard=200, spare=spare)
    assert limit == "limit 200"
    assert "Too many open files" in error
    assert "this process may open 200 files (hard limit: 200)" in error
    assert "about 10 for each task with stores" in error
    assert "LimitNOFILE=65536" in error
    assert run(tmp_path, soft=128, hard=4_096) == ["limit 4096"], "nothing was damaged"
