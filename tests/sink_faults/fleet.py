"""Worker processes: started, struck, and started again when they end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support.processes import AppProcess

MODULE = "tests.sink_faults.worker"
_RESTARTABLE = (ExitCode.CRASHED, ExitCode.CLIENT)
"""What a supervisor answers with another start."""


@dataclass
class Slot:
    """The place of a worker over its lives."""

    name: str
    process: AppProcess | None = None
    away: bool = False
    """Whether it is struck, and is not to be started again yet."""


@dataclass
class Fleet:
    """Workers, and somebody who starts again those that end.

    Args:
        directory: for logs and state.
        plan: what all are told.
        names: of the workers.
    """

    directory: Path
    plan: dict[str, Any]
    names: tuple[str, ...] = ("w0", "w1")
    slots: list[Slot] = field(default_factory=list)
    unprovoked: list[str] = field(default_factory=list)
    restarts: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start all, and watch them."""
        self.slots = [Slot(name) for name in self.names]
        for slot in self.slots:
            self.launch(slot)
        threading.Thread(target=self._watch, name="fleet", daemon=True).start()

    def launch(self, slot: Slot) -> None:
        """Start one."""
        settings = {**self.plan["settings"], "worker.id": slot.name}
        settings["state.dir"] = str(self.directory / "state")
        plan = {**self.plan, "settings": settings, "die": str(self.die_path(slot))}
        with self._lock:
            slot.process = AppProcess(plan, self.log_of(slot), MODULE)
            slot.away = False

    def log_of(self, slot: Slot) -> Path:
        """Where a worker writes to."""
        return self.directory / f"{slot.name}.log"

    def die_path(self, slot: Slot) -> Path:
        """The file that tells it where to die."""
        return self.directory / f"{slot.name}.die"

    def pids(self) -> dict[int, str]:
        """Those that live."""
        with self._lock:
            return {
                slot.process.pid: slot.name
                for slot in self.slots
                if slot.process is not None and slot.process.running
            }

    def slot_of(self, pid: int) -> Slot:
        """Whose process that is."""
        return next(one for one in self.slots if one.process and one.process.pid == pid)

    def kill(self, slot: Slot) -> None:
        """SIGKILL; somebody starts it again when it is not away any more."""
        with self._lock:
            slot.away = True
            if slot.process is not None:
                slot.process.kill()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            with self._lock:
                for slot in self.slots:
                    self._look_at(slot)

    def _look_at(self, slot: Slot) -> None:
        process = slot.process
        if process is None or process.running or slot.away:
            return
        code = process.wait()
        if code != -signal.SIGKILL:
            self.restarts += 1
            if code not in _RESTARTABLE:
                self.unprovoked.append(f"{slot.name} ended with {code}")
                slot.process = None
                return
        self.launch(slot)

    def wait(self, condition: Callable[[], bool], *, seconds: float) -> bool:
        """Wait for something; False where it takes too long."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def stop_cleanly(self) -> None:
        """SIGTERM to all."""
        self._over.set()
        with self._lock:
            for slot in self.slots:
                if slot.process is None or not slot.process.running:
                    continue
                try:
                    slot.process.stop()
                except AssertionError as error:
                    self.unprovoked.append(f"{slot.name} did not stop: {str(error)[:300]}")

    def close(self) -> None:
        """Nobody is left behind."""
        self._over.set()
        with self._lock:
            for slot in self.slots:
                if slot.process is not None and slot.process.running:
                    with suppress(ProcessLookupError):
                        slot.process.kill()
