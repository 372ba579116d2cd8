"""Tries one change: in a copy of the project, with the tests that ought to notice it."""

from __future__ import annotations

import contextlib
import enum
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.changes import PACKAGE, ROOT, Change

_LOG = "tests.log"


class Verdict(enum.Enum):
    """What became of a change."""

    NOTICED = "noticed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    TIMED_OUT = "noticed by a time-out"
    UNUSABLE = "unusable"
    """The tests fail without it, there are none, or its text is not in the code any more."""

    @property
    def counts_as_noticed(self) -> bool:
        """Whether somebody would have seen it."""
        return self in (Verdict.NOTICED, Verdict.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Trial:
    """A change, what became of it, how long that took, and what the tests said last."""

    change: Change
    verdict: Verdict
    seconds: float
    said: str


def copy_project(target: Path) -> None:
    """Copy what git tracks, and what it would, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and (source.is_file() or source.is_symlink()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


class Bench:
    """A copy of the project in which changes are tried, one after the other.

    Args:
        directory: where the copy goes.
        timeout_s: how long the tests of one change may take.
    """

    def __init__(self, directory: Path, *, timeout_s: float) -> None:
        self._root = directory
        self._timeout_s = timeout_s
        self._sound: dict[tuple[str, ...], str] = {}
        copy_project(directory)

    def try_change(self, change: Change) -> Trial:
        """Run the tests of a change with it, once they were seen to pass without."""
        begun_s = time.monotonic()
        verdict, said = self._judge(change)
        if change.equivalent and verdict is Verdict.SURVIVED:
            verdict, said = Verdict.EQUIVALENT, change.equivalent
        return Trial(change, verdict, time.monotonic() - begun_s, said)

    def _judge(self, change: Change) -> tuple[Verdict, str]:
        if fault := self._fault_without(change.tests):
            return Verdict.UNUSABLE, fault
        path = self._root / PACKAGE / change.file
        original = path.read_bytes()
        try:
            change.apply(self._root)
            return self._run(change.tests)
        except (OSError, ValueError) as error:
            return Verdict.UNUSABLE, str(error)
        finally:
            path.write_bytes(original)

    def _fault_without(self, tests: tuple[str, ...]) -> str:
        """What is wrong with the tests themselves; each set is run once."""
        if tests not in self._sound:
            verdict, said = self._run(tests)
            fine = verdict is Verdict.SURVIVED
            self._sound[tests] = "" if fine else f"without it: {verdict.value}: {said}"
        return self._sound[tests]

    def _run(self, tests: Sequence[str]) -> tuple[Verdict, str]:
        log = self._root / _LOG
        # Files of the same second and size would be taken for what they were compiled from before.
        command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--no-header", "--tb=line",
                   "-p", "no:cacheprovider", "-p", "tests.mutants.first_failure",
                   *tests]  # fmt: skip
        own = {
            "PYTHONPATH": os.pathsep.join((str(self._root / "src"), str(self._root))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=self._root,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own},
                start_new_session=True,
            )
            try:
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                return Verdict.TIMED_OUT, f"no end within {self._timeout_s:.0f} s"
            finally:
                _end(process)
        return _VERDICTS.get(code, Verdict.UNUSABLE), _last_words(log.read_text(errors="replace"))


_VERDICTS = {0: Verdict.SURVIVED, 1: Verdict.NOTICED, 2: Verdict.NOTICED}
"""By pytest's exit code; 2 is code that cannot be imported any more."""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what the tests have started, too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (lines or output.splitlines() or ["nothing"])[-1][:160]


def in_shares(changes: Iterable[Change], count: int) -> list[list[Change]]:
    """Share out changes so that those with the same tests stay together, in even parts."""
    groups: dict[tuple[str, ...], list[Change]] = {}
    for change in changes:
        groups.setdefault(change.tests, []).append(change)
    shares: list[list[Change]] = [[] for _ in range(count)]
    for group in sorted(groups.values(), key=len, reverse=True):
        min(shares, key=len).extend(group)
    return shares
