"""`headrace run` where no cluster is needed: what is wrong from the start or never starts."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main
from headrace.streams.supervisor.channel import Launch
from headrace.streams.supervisor.exit_codes import ExitCode
from headrace.streams.supervisor.worker_handle import LiveProcess
from tests.streams.test_imports_without_kafka import HEAVY
from tests.support.processes import IMPORT_PATH, wait_until
from tests.support.supervised import COMMAND, Run, is_alive

pytestmark = pytest.mark.slow

HEADER = """
from headrace.streams import KafkaStreams
from headrace.topology import StreamsBuilder

builder = StreamsBuilder()
builder.stream("in").to("out")
SETTINGS = {"application.id": "a", "bootstrap.servers": "localhost:1", "state.dir": "state"}
"""
APP = HEADER + "app = KafkaStreams(builder.build(), SETTINGS)\n"
# Its import ends only when the worker was told to stop, however slow the machine is.
SLOW_APP = f"""
import gc, os, time
from headrace.streams.supervisor.worker_process import StopSwitch
print("importing", os.getpid())
(switch,) = (found for found in gc.get_objects() if isinstance(found, StopSwitch))
while not switch._requested.is_set():
    time.sleep(0.05)
{APP}"""

Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Save an application and run it; no process is left afterwards."""
    runs: list[Run] = []

    def save_and_run(code: str, *arguments: str) -> Run:
        (tmp_path / "my_app.py").write_text(code)
        runs.append(Run(tmp_path, "my_app:app", *arguments))
        return runs[-1]

    yield save_and_run
    for run in runs:
        run.discard()


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (APP, ["--set", "poll.ms=-1"], "poll.ms (from --set) must be at least 0"),
        (APP, ["--set", "pol.ms=1"], "did you mean poll.ms"),
        (APP.replace('"a"', '"a b"'), [], "application.id must be a name of"),
        ("app = 5", [], "not a KafkaStreams"),
        ("import no_such_module", [], "no_such_module"),
        ("import sys\nsys.exit(0)", [], "ends the interpreter"),
        (APP.replace('.stream("in").to("out")', ""), [], "the topology reads no topic"),
    ],
    ids=["value", "name", "in the code", "no application", "import", "exit", "topology"],
)
def test_what_is_wrong_from_the_start_ends_at_once_and_is_said_once(
    code: str, arguments: list[str], said: str, start: Start
) -> None:
    run = start(code, "--workers=3", *arguments)
    assert run.wait() == ExitCode.CONFIGURATION
    (failed,) = run.events("application_failed")
    assert said in failed["reason"]
    assert len(run.events("worker_started")) == 1
    assert "Traceback" not in run.text()


def test_the_log_says_where_settings_come_from_and_the_code_may_leave_required_ones(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "localhost:1")
    code = APP.replace('"bootstrap.servers": "localhost:1", ', "")
    run = start(code, "--set", "poll.ms=-1")
    assert run.wait() == ExitCode.CONFIGURATION
    (failed,) = run.events("application_failed")
    assert failed["reason"] == "poll.ms (from --set) must be at least 0, not -1"
    (started,) = run.events("supervisor_started")
    places = {"bootstrap.servers": "HEADRACE_BOOTSTRAP_SERVERS", "poll.ms": "--set"}
    assert started["settings_from"] == places
    assert "localhost:1" not in run.text(), "values may be secrets"


def test_a_file_named_like_a_module_of_python_does_not_stand_in_for_it(
    tmp_path: Path, start: Start
) -> None:
    """Python puts the current directory in front; `token` is imported by most of what there is."""
    for name in ("token", "logging", "queue"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a module of the user')")
    (tmp_path / "helper.py").write_text("import token\nfound = token.EXACT_TOKEN_TYPES")
    run = start("import helper\nraise ValueError(f'imported {len(helper.found) > 10}')")
    assert run.wait() == ExitCode.CONFIGURATION
    (failed,) = run.events("application_failed")
    assert "imported True" in failed["reason"]


def test_a_worker_that_dies_before_it_can_log_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "structlog.py").write_text("raise ImportError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{IMPORT_PATH}")
    process = LiveProcess(Launch(target="my_app:app"), 0)
    wait_until(lambda: process.poll() is not None, what="its end")
    assert list(process.reports()) == []
    process.close()
    assert process.poll() == 1
    assert process.last_output()[-1] == "ImportError: a broken installation"


def test_a_worker_that_crashes_at_once_is_given_up(start: Start) -> None:
    run = start("import os\nos.abort()", "--workers=2", "--max-restarts=2")
    assert run.wait() == ExitCode.RESTARTS
    assert [e["worker_index"] for e in run.events("worker_started")] == [0, 0, 0]
    pauses = [e["restart_in_s"] for e in run.events("worker_crashed")]
    assert len(pauses) == 2
    assert pauses[0] <= 1 <= pauses[1]
    (given_up,) = run.events("worker_abandoned")
    assert given_up["outcome"] == "killed by SIGABRT"


@pytest.mark.parametrize("ending", ["os._exit(77)", "raise KeyboardInterrupt"])
def test_code_that_ends_the_process_has_crashed(ending: str, start: Start) -> None:
    run = start(f"import os\n{ending}", "--max-restarts=0")
    assert run.wait() == ExitCode.RESTARTS


def test_a_worker_that_still_imports_when_it_is_told_to_stop_never_runs(start: Start) -> None:
    run = start(SLOW_APP)
    wait_until(lambda: "importing" in run.text(), what="the worker imports")
    run.signal(signal.SIGTERM)
    assert run.wait() == ExitCode.STOPPED
    assert {e["new"] for e in run.events("state_changed")} == {"pending shutdown", "not running"}


def test_a_second_ctrl_c_kills_workers_that_do_not_close(start: Start) -> None:
    run = start("import time\nprint('importing')\ntime.sleep(1000)")
    wait_until(lambda: "importing" in run.text(), what="the worker imports")
    run.signal(signal.SIGINT)
    run.wait_for("workers_stopping")
    time.sleep(0.3)
    run.signal(signal.SIGINT)
    assert run.wait() == ExitCode.INTERRUPTED
    assert len(run.events("worker_killed")) == 1
    assert not is_alive(run.pid(0))


def test_a_thread_of_the_users_does_not_keep_alive_what_has_failed(start: Start) -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=[1000]).start()\n1 / 0"
    assert start(code).wait() == ExitCode.CONFIGURATION


def test_lines_of_the_console_say_which_worker_wrote_them(start: Start) -> None:
    run = start("app = 5", "--log-format=console", "--log-level=error")
    run.wait()
    (failed,) = [line for line in run.text().splitlines() if "application_failed" in line]
    assert "worker_index=0" in failed
    assert "worker_started" not in run.text()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["my_app:app", "--workers=0"],
        ["my_app:app", "--set", "poll.ms"],
        ["my_app:app", "--set", "=5"],
        ["my_app:app", "--on-stop=perhaps"],
        ["my_app:app", "--log-format=xml"],
        ["my_app:app", "--max-restarts=-1"],
    ],
)
def test_a_wrong_command_line_is_said_before_anything_starts(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, ["run", *arguments])
    assert done.exit_code == ExitCode.USAGE
    assert "Usage:" in done.output


def test_the_supervisor_loads_no_client_and_no_store() -> None:
    code = (
        f"import headrace.streams.cli.run, sys\nprint(*[n for n in {HEAVY!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


class Terminal:
    """A command in a terminal of its own, as a person has it."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.shown = ""
        self.pid, self._file = pty.fork()
        if self.pid == 0:  # the child; nothing of pytest may run here
            try:
                os.chdir(home)
                # Whoever started the tests may have had it ignored, as nohup does.
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
                environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "COLUMNS": "120"}
                environment |= {"TERM": "xterm", "LINES": "40"}
                os.execve(COMMAND[0], [*COMMAND, *arguments], environment)
            finally:
                os._exit(99)

    def read(self) -> str:
        """What was shown so far, without control sequences."""
        while select.select([self._file], [], [], 0.05)[0]:
            try:
                chunk = os.read(self._file, 65_536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not chunk:
                break
            self.shown += chunk.decode(errors="replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown)

    def press(self, keys: bytes) -> None:
        os.write(self._file, keys)

    def hang_up(self) -> int:
        """Close the window; returns the exit code."""
        os.close(self._file)
        self._file = -1
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def wait(self) -> int:
        """The exit code; what is still shown is read meanwhile."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(self.shown)

    def close(self) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self._file >= 0:
            os.close(self._file)


def test_a_terminal_has_a_table_below_the_log_and_ctrl_c_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a user's code prints comes above the table too."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (tmp_path / "my_app.py").write_text(SLOW_APP)
    terminal = Terminal(tmp_path, "my_app:app")
    try:
        wait_until(lambda: "importing" in terminal.read(), what=f"output:\n{terminal.shown}")
        wait_until(lambda: "starting" in terminal.read(), what=f"a table:\n{terminal.shown}")
        terminal.press(b"\x03")
        assert terminal.wait() == ExitCode.STOPPED
        text = terminal.read()
        assert "records/s" in text
        assert re.search(r"worker_started .*worker_index=0", text)
        assert re.search(r"workers_stopping .*reason=SIGINT", text)
        # The cursor that the table hid is there again.
        assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")
    finally:
        terminal.close()


def test_a_terminal_that_is_closed_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(SLOW_APP)
    terminal = Terminal(tmp_path, "my_app:app")
    try:
        wait_until(lambda: "importing" in terminal.read(), what=f"output:\n{terminal.shown}")
        (pid,) = re.findall(r"importing (\d+)", terminal.read())
        assert is_alive(int(pid))
        assert terminal.hang_up() == ExitCode.STOPPED
        assert not is_alive(int(pid))
    finally:
        terminal.close()
