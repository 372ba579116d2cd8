"""Worker processes on two hosts, watched over as a supervisor would: what dies is started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.streams.supervisor.exit_codes import ExitCode
from tests.chaos import application
from tests.chaos.check_figures import Counted
from tests.chaos.crashes import take_core
from tests.chaos.diary import Diary
from tests.chaos.status import COMMIT_STEPS, STEPS, Field, Status

ROOT = Path(__file__).parents[2]
_REFUSALS = (ExitCode.VERSIONS,)
_LOOK_S = 0.02
_LOG_TAIL_BYTES = 1 << 20
_EVENTS_MAX = 20
_BACK_OFF_S = (0.2, 1.0, 2.0, 4.0)
_HEALTHY_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Which time-out of a worker is the short one, so that a pause can outlast one of them alone.

    Args:
        name: as it is in the report.
        session_ms: how long the group waits for a heartbeat.
        transaction_ms: how long the broker keeps a transaction open.
    """

    name: str
    session_ms: int
    transaction_ms: int


BOTH_SHORT = Profile("both short", 6_000, 6_000)
SHORT_SESSION = Profile("short session", 6_000, 15_000)
SHORT_TRANSACTION = Profile("short transaction", 20_000, 5_000)


@dataclass(frozen=True, slots=True)
class Place:
    """Who a worker is, and where it lives.

    Args:
        name: its worker.id.
        host: names its state directory, which it shares with the workers of the same host.
        profile: its time-outs.
        is_spare: whether it runs in a storm only.
    """

    name: str
    host: str
    profile: Profile
    is_spare: bool = False


class Slot:
    """The place of one worker, and the process that is in it now.

    Whoever does something to it holds `lock`. With `held` the supervisor leaves a dead worker dead.
    """

    def __init__(self, place: Place, directory: Path, state_dir: Path) -> None:
        self.place = place
        self.state_dir = state_dir
        self.log = directory / f"{place.name}.log"
        self.home = directory / f"home-{place.name}"
        """Where its process runs, and a core of it is left."""
        self.home.mkdir(exist_ok=True)
        self.status_path = directory / f"{place.name}.status"
        self.status = Status(self.status_path)
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.wanted = False
        self.held = False
        self.doomed = False
        """Whether the nemesis has killed it, so that its end is no news."""
        self.starved = False
        """Whether the nemesis has left it no room on its disk, so that it may crash."""
        self.failures = 0
        self.not_before = 0.0
        self.started_s = 0.0
        self.slow_restore_ms = 0
        self.claims = 0
        """How often a fault had it to itself."""
        self.version = 1
        """Of the application that its next process runs."""
        self.refused = False
        """Whether its version refused to start beside another one."""

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def lives(self) -> bool:
        process = self.process
        return process is not None and process.poll() is None

    @property
    def in_transaction(self) -> bool:
        return bool(self.status[Field.IN_TRANSACTION])

    @property
    def tasks(self) -> list[str]:
        """The tasks that it said it owns."""
        try:
            found = json.loads(self.status_path.with_suffix(".tasks").read_text())
        except (OSError, ValueError):
            return []
        return [str(task) for task in found]

    @property
    def is_busy(self) -> bool:
        """Whether it runs, has tasks, and has committed since it started."""
        return self.lives and self.status[Field.TASKS] > 0 and self.status[Field.COMMITS] > 0

    def signal(self, number: signal.Signals) -> None:
        process = self.process
        if process is not None:
            process.send_signal(number)


class Fleet:
    """All workers of a run.

    Args:
        directory: for logs and statuses.
        prefix: of the application's names.
        bootstrap: brokers.
        guarantee: of the application.
        caches: whether it has the default caches.
        places: who may run; `start` says who does.
        diary: where ends and starts are written down.
        settings: further settings, with underscores for dots.
        endpoints: where each host serves its stores.
    """

    def __init__(
        self,
        directory: Path,
        *,
        prefix: str,
        bootstrap: str,
        guarantee: str,
        caches: bool,
        places: Sequence[Place],
        diary: Diary,
        settings: dict[str, Any],
        endpoints: Mapping[str, str] | None = None,
    ) -> None:
        self._endpoints = endpoints or {}
        self._prefix = prefix
        self._bootstrap = bootstrap
        self._guarantee = guarantee
        self._caches = caches
        self._settings = settings
        self._diary = diary
        self.slots = [Slot(place, directory, directory / f"state-{place.host}") for place in places]
        self.unprovoked: list[str] = []
        """Ends after which a supervisor would not start a worker again, in words."""
        self.crashed: list[str] = []
        """Ends by a signal that the nemesis did not send: a library crashed."""
        self.lives: list[Counted] = []
        """What each process had counted when it ended."""
        self.version = 1
        """Of the application, once an upgrade is over."""
        self.is_upgrading = False
        self.gave_up = 0
        """Ends of workers whose client could not go on; a supervisor starts those again."""
        self._stop = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor")

    def transactional_id(self, slot: Slot) -> str:
        """The identity of a worker's producer."""
        return f"{application.application_id(self._prefix)}-{slot.name}"

    # -- starting and ending -------------------------------------------------------------------

    def start(self, names: Sequence[str]) -> None:
        """Start these workers, and begin to watch over all."""
        for slot in self.slots:
            if slot.name in names:
                self.add(slot)
        self._supervisor.start()

    def add(self, slot: Slot) -> None:
        """Want a worker; the supervisor starts it."""
        slot.not_before = 0.0
        slot.held = slot.refused = False
        slot.wanted = True

    def remove(self, slot: Slot, *, seconds: float = 60) -> bool:
        """End a worker with SIGTERM; False, and SIGKILL, if that takes too long."""
        slot.wanted = False
        slot.signal(signal.SIGTERM)
        is_gone = self.wait_gone(slot, seconds=seconds)
        # Else the supervisor could take the end for one that nobody asked for.
        self.wait(lambda: slot.process is None, seconds=5, stop=self._stop)
        return is_gone

    def wait_gone(self, slot: Slot, *, seconds: float) -> bool:
        """Wait for a worker that was asked to end; kill it if that takes too long."""
        process = slot.process
        if process is None:
            return True
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._diary.write("worker_stuck", worker=slot.name, seconds=seconds)
            self.dump(slot)
            self.unprovoked.append(f"{slot.name} did not end within {seconds:g} s of SIGTERM")
            self.kill(slot)
            return False
        return True

    def kill(self, slot: Slot) -> None:
        """SIGKILL; a worker that is wanted and not held comes back."""
        slot.doomed = True
        process = slot.process
        if process is not None:
            process.kill()
            process.wait()

    def dump(self, slot: Slot) -> None:
        """Have a worker that hangs write into its log what its threads do."""
        process = slot.process
        # One that has only just begun does not listen yet, and would end by the signal.
        if process is None or slot.status[Field.PID] != process.pid:
            return
        slot.signal(signal.SIGUSR1)
        time.sleep(0.5)

    def close(self) -> None:
        """Stop watching; kill whatever still runs."""
        self._stop.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for slot in self.slots:
            slot.wanted = False
            if slot.lives:
                self.kill(slot)

    def stop_cleanly(self, *, seconds: float) -> None:
        """End all workers with SIGTERM, at about the same time."""
        for slot in self.slots:
            slot.wanted = False
            slot.signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        for slot in self.slots:
            self.wait_gone(slot, seconds=max(1.0, deadline - time.monotonic()))
        # What each of them had counted is noted when the supervisor has seen its end.
        self.wait(lambda: all(slot.process is None for slot in self.slots), seconds=5)

    def launch(self, slot: Slot, **settings: Any) -> None:
        """Start a worker's process, with these settings over its own."""
        profile = slot.place.profile
        more = {
            "worker_id": slot.name,
            "consumer_session_timeout_ms": profile.session_ms,
            "consumer_heartbeat_interval_ms": 1_000,
            **self._served_at(slot),
            **self._settings,
            **settings,
        }
        if self._guarantee == "exactly_once_v2":
            more["producer_transaction_timeout_ms"] = profile.transaction_ms
        settings = application.settings(
            self._bootstrap,
            slot.state_dir,
            prefix=self._prefix,
            guarantee=self._guarantee,
            caches=self._caches,
            **more,
        )
        plan = {
            "settings": settings,
            "prefix": self._prefix,
            "status": str(slot.status_path),
            "slow_restore_ms": slot.slow_restore_ms,
            "version": slot.version,
        }
        slot.status.clear()
        slot.doomed = slot.starved = False
        slot.started_s = time.monotonic()
        with slot.log.open("ab") as out:
            slot.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker_process", json.dumps(plan)],
                cwd=slot.home,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._diary.write(
            "worker_started", worker=slot.name, pid=slot.process.pid, version=slot.version
        )

    def _served_at(self, slot: Slot) -> dict[str, str]:
        found = self._endpoints.get(slot.place.host)
        return {} if found is None else {"application_server": found}

    # -- the supervisor ------------------------------------------------------------------------

    def _supervise(self) -> None:
        while not self._stop.wait(_LOOK_S):
            now = time.monotonic()
            for slot in self.slots:
                if slot.process is not None and slot.process.poll() is not None:
                    self._bury(slot, now)
                if (
                    slot.wanted
                    and not slot.held
                    and slot.process is None
                    and (now >= slot.not_before)
                ):
                    self.launch(slot)

    def _bury(self, slot: Slot, now: float) -> None:
        process = slot.process
        if process is None:
            return
        code = process.returncode
        provoked = slot.doomed or slot.status[Field.DIE_AT] > 0
        # A worker that is told to end before it listens ends by the signal itself.
        told = not slot.wanted and code in (0, -signal.SIGTERM)
        starved = slot.starved and code in (ExitCode.CRASHED, ExitCode.LOCAL_STATE)
        slot.refused = self.is_upgrading and code in _REFUSALS
        expected = told or starved or slot.refused or (code == -signal.SIGKILL and provoked)
        if slot.refused:
            slot.wanted = False  # until the upgrade goes on in another way
        slot.process = None
        self.lives.append(Counted.of(slot.status))
        self._diary.write(
            "worker_ended", worker=slot.name, pid=process.pid, code=code, expected=expected
        )
        if expected or now - slot.started_s > _HEALTHY_AFTER_S:
            slot.failures = 0
        slot.not_before = now + _BACK_OFF_S[min(slot.failures, len(_BACK_OFF_S) - 1)]
        if not expected:
            slot.failures += 1
            if code == ExitCode.CLIENT:
                self.gave_up += 1
            else:
                core = take_core(slot.home, slot.log) if code < 0 else None
                seen = f", and left {core}, see the end of {slot.log}" if core else ""
                ends = self.crashed if code < 0 else self.unprovoked
                ends.append(f"{slot.name} ended by itself with exit status {code}{seen}")

    # -- waiting -------------------------------------------------------------------------------

    def wait(
        self,
        condition: Callable[[], bool],
        *,
        seconds: float,
        stop: threading.Event | None = None,
        excused: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for a condition; False if it does not come true in time.

        Args:
            excused: whether the time that passes now is not to count.
        """
        left_s, last_s = seconds, time.monotonic()
        while not condition():
            now_s = time.monotonic()
            if not excused():
                left_s -= now_s - last_s
            last_s = now_s
            if left_s < 0 or (stop is not None and stop.is_set()):
                return False
            time.sleep(0.005)
        return True

    def wait_busy(self, *, seconds: float) -> bool:
        """Wait until all regular workers are at work."""
        regular = [slot for slot in self.slots if not slot.place.is_spare]
        return self.wait(lambda: all(slot.is_busy for slot in regular), seconds=seconds)

    def wait_in_transaction(self, slot: Slot, *, seconds: float = 15.0) -> bool:
        """Wait until a worker has a transaction open."""
        return self.wait(lambda: slot.lives and slot.in_transaction, seconds=seconds)

    def wait_committed(
        self,
        slot: Slot,
        *,
        since_ns: int,
        seconds: float,
        excused: Callable[[], bool] = lambda: False,
    ) -> float | None:
        """Wait for a commit of a worker after a moment; returns how many seconds after it."""
        done = self.wait(
            lambda: slot.status[Field.COMMITTED_NS] > since_ns,
            seconds=seconds,
            stop=self._stop,
            excused=excused,
        )
        return (slot.status[Field.COMMITTED_NS] - since_ns) / 1e9 if done else None

    @contextmanager
    def claim(
        self,
        choose: random.Random,
        *,
        suits: Callable[[Slot], bool] = lambda _: True,
        seconds: float = 20.0,
        busy: bool = True,
    ) -> Iterator[Slot | None]:
        """Have a random worker to oneself: one that is at work, unless `busy` is False."""
        deadline = time.monotonic() + seconds
        taken: Slot | None = None
        while taken is None and time.monotonic() < deadline:
            candidates = [s for s in self.slots if suits(s) and (s.is_busy or not busy)]
            choose.shuffle(candidates)
            taken = next((s for s in candidates if s.lock.acquire(blocking=False)), None)
            if taken is None:
                time.sleep(0.05)
        if taken is not None:
            taken.claims += 1
        try:
            yield taken
        finally:
            if taken is not None:
                taken.held = False
                taken.lock.release()


class FirstCommit:
    """Waits beside everything else for a worker's first commit after a moment.

    Args:
        slot: the worker.
        since_ns: the moment, wall clock.
        seconds: after which nobody waits any more.
    """

    def __init__(self, slot: Slot, *, since_ns: int, seconds: float) -> None:
        self._slot = slot
        self._since_ns = since_ns
        self._seconds = seconds
        self._pid = slot.status[Field.PID]
        self._claims = slot.claims
        self._found_s: float | None = None
        self._thread = threading.Thread(target=self._wait, name="first-commit", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            committed_ns = self._slot.status[Field.COMMITTED_NS]
            if committed_ns > self._since_ns:
                self._found_s = (committed_ns - self._since_ns) / 1e9
                return
            time.sleep(0.005)

    def was_disturbed(self) -> bool:
        """Whether another fault has ended or stopped the process, so that the time says nothing."""
        slot = self._slot
        return slot.status[Field.PID] != self._pid or slot.claims != self._claims

    def result(self) -> float | None:
        """Seconds from that moment to the commit; None if there was none in time."""
        self._thread.join()
        return self._found_s


def step_number(step: str) -> int:
    """How `Field.DIE_AT` spells a step."""
    assert step in COMMIT_STEPS or step == "transaction_begun", step
    return STEPS.index(step)


def events_between(log: Path, begin_ns: int, end_ns: int) -> list[str]:
    """Return what a worker logged in a time, each with its seconds from the beginning."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    found = []
    for line in lines:
        try:
            event = json.loads(line)
            at_s = datetime.fromisoformat(event["timestamp"]).timestamp() - begin_ns / 1e9
        except (ValueError, KeyError, TypeError):
            continue  # cut off, or what a dump of stacks or Python itself wrote
        if 0 <= at_s <= (end_ns - begin_ns) / 1e9:
            reason = event.get("reason", "")
            found.append(f"{at_s:.1f} s {event['event']}" + (f": {reason}" if reason else ""))
    return found[:_EVENTS_MAX]
