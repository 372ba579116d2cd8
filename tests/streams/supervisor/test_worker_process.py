"""A worker's process: what is left of one that a library ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.streams.supervisor.channel import Launch
from headrace.streams.supervisor.exit_codes import ExitCode, is_crash
from headrace.streams.supervisor.worker_handle import LiveProcess
from headrace.streams.supervisor.worker_reports import Ended
from headrace.streams.tasks.failures import FailureReport
from tests.support.processes import wait_until

CRASHING = """
import ctypes

def crash():
    ctypes.string_at(0)

crash()
"""


def test_a_worker_that_crashes_says_where(tmp_path: Path) -> None:
    file = tmp_path / "crashing.py"
    file.write_text(CRASHING)
    said: list[str] = []
    process = LiveProcess(Launch(target=f"{file}:app"), 0, output=said.append)
    try:
        wait_until(lambda: process.poll() is not None, what="its end")
        assert process.poll() == -signal.SIGSEGV
        assert list(process.reports()) == []
    finally:
        process.kill()
        process.close()
    text = "\n".join(said)
    assert "Fatal Python error: Segmentation fault" in text
    assert f'File "{file}", line 5 in crash' in text


@pytest.mark.parametrize("ending", ["os._exit(0)", "os._exit(5)", "sys.exit(0)"])
def test_only_a_worker_that_closes_reports_its_end(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "ending.py"
    file.write_text(f"import os, sys\n{ending}\n")
    process = LiveProcess(Launch(target=f"{file}:app"), 0, output=lambda _: None)
    try:
        wait_until(lambda: process.poll() is not None, what="its end")
        ended = [report for report in process.reports() if isinstance(report, Ended)]
        if ending == "sys.exit(0)":
            assert ended == [Ended(ExitCode.CONFIGURATION)]
        else:
            assert ended == []
    finally:
        process.kill()
        process.close()


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("{}['town']", ExitCode.CONFIGURATION),
        ("print(no_such_name)", ExitCode.CONFIGURATION),
        ("raise ConnectionRefusedError('later')", ExitCode.CRASHED),
        ("raise RuntimeError('later')", ExitCode.CRASHED),
    ],
)
def test_a_wrong_function_is_not_called_again(tmp_path: Path, raised: str, code: ExitCode) -> None:
    file = tmp_path / "raising.py"
    file.write_text(f"def app():\n    {raised}\n")
    process = LiveProcess(Launch(target=f"{file}:app"), 0, output=lambda _: None)
    try:
        wait_until(lambda: process.poll() is not None, what="its end")
        reports = list(process.reports())
    finally:
        process.kill()
        process.close()
    (failure,) = (report for report in reports if isinstance(report, FailureReport))
    assert [report for report in reports if isinstance(report, Ended)] == [Ended(code)]
    assert is_crash(code) == (failure.error != "ApplicationError")
    if not is_crash(code):
        assert f"{file}:app cannot be called: " in failure.reason
        assert f" at {file}:2. Correct the code" in failure.reason
