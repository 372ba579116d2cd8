"""A worker's process: it can be left standing for a while, and it can die between any two calls."""

from __future__ import annotations

from collections.abc import Callable

from headrace.streams.simulation.world.kernel import Actor, CrashError, Kernel


class Process:
    """One life of one worker.

    Args:
        instance_id: its identity, the same in every life.
    """

    def __init__(self, kernel: Kernel, name: str, instance_id: str) -> None:
        self.kernel = kernel
        self.name = name
        self.instance_id = instance_id
        self.actor: Actor | None = None
        self.alive = True
        self.phase = "connecting"
        """Where its worker is; see `headrace.streams.simulation.world.coverage.PHASES`."""
        self.stands_until_us = 0
        self.silent_since_us = 0
        """When it was heard last, if it stands or is dead."""
        self.when_it_stands: list[Callable[[], None]] = []
        """What the cluster wants to be told when the process dies or is left standing."""

    @property
    def stands(self) -> bool:
        """Whether the process is stopped for a while, its background threads included."""
        return self.stands_until_us > self.kernel.now_us

    @property
    def is_silent(self) -> bool:
        """Whether it sends nothing, not even heartbeats."""
        return self.stands or not self.alive

    def check(self) -> None:
        """Raise in a process that is dead: nothing it does counts any more."""
        if not self.alive:
            raise CrashError(self.name)

    def note(self, what: str) -> None:
        """Write a line into the history."""
        self.kernel.note(self.name, what)

    def sleep(self, delay_us: int) -> None:
        """Wait, and longer if the process is left standing meanwhile."""
        self.kernel.sleep(delay_us)
        self.settle()

    def block(self, timeout_us: int) -> None:
        """Wait until something arrives."""
        self.kernel.block(timeout_us)
        self.settle()

    def settle(self) -> None:
        """Go on only if the process lives and is not left standing."""
        while self.alive and self.stands:
            self.kernel.sleep(self.stands_until_us - self.kernel.now_us)
        self.check()

    def stand(self, duration_us: int) -> None:
        """Be left standing for a while (SIGSTOP), heartbeats included."""
        if not self.alive:
            return
        self._fall_silent()
        self.stands_until_us = max(self.stands_until_us, self.kernel.now_us + duration_us)
        self.note(f"! stands for {duration_us / 1e6:.3f} s")
        self._tell()

    def die(self) -> None:
        """Die at once (SIGKILL): what was not handed to the operating system is gone."""
        if not self.alive:
            return
        self._fall_silent()
        self.alive = False
        self.note("! dies")
        self._tell()
        if self.actor is not None:
            self.kernel.wake(self.actor)

    def die_quietly(self) -> None:
        """End, in whichever way it was."""
        if self.alive:
            self._fall_silent()
            self.alive = False
            self._tell()

    def _fall_silent(self) -> None:
        # Who wakes sends a heartbeat at once, unless it is left standing again in that moment.
        if self.stands_until_us < self.kernel.now_us:
            self.silent_since_us = self.kernel.now_us

    def _tell(self) -> None:
        for hear in list(self.when_it_stands):
            hear()

    def when_up(self, delay_us: int, event: Callable[[], None]) -> None:
        """Let something happen in the background of this process, unless it is dead by then."""

        def happen() -> None:
            if not self.alive:
                return
            if self.stands:
                self.kernel.after(self.stands_until_us - self.kernel.now_us, happen)
                return
            event()

        self.kernel.after(delay_us, happen)
