"""What stores are asked for on a real cluster is what was committed, whatever befalls workers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.streams.supervisor.app_loader import load_app
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support.asked_counts import (
    Asked,
    assert_counts_never_go_back,
    assert_own_writes_are_seen,
)
from tests.support.supervised import Counted
from tests.support.topics import Topics

pytestmark = pytest.mark.slow


@pytest.mark.faults
def test_answers_are_committed_counts_and_never_go_back_while_workers_are_killed(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    with app.running(2, "--http=0", "--queries") as run:
        asked = Asked(run)
        expected = assert_counts_never_go_back(app, run, asked)
        assert_own_writes_are_seen(app, asked, expected)
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
    stopped = load_app(f"{tmp_path / 'my_app.py'}:app")
    with stopped.queries() as queries:
        assert {row.key: row.value for row in queries.store("counts").all()} == expected
    app.check_exact()
