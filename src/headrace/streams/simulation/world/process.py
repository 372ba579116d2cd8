"""Process of a worker, which can be suspended, and can be killed between any two calls."""

from __future__ import annotations

from collections.abc import Callable

from headrace.streams.simulation.world.kernel import Actor, CrashError, Kernel


class SimulatedProcess:
    """Process of a worker."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.actor: Actor | None = None
        self.alive = True
        self.phase = "connecting"
        """Phase of its worker; see `headrace.streams.simulation.world.coverage.PHASES`."""
        self.suspended_until_us = 0
        self.silent_since_us = 0
        """The time of its last heartbeat, if it is suspended or dead."""
        self.on_silence: list[Callable[[], None]] = []
        """Callbacks of the cluster for the death or suspension of the process."""

    @property
    def is_suspended(self) -> bool:
        """Whether the process is suspended, including its background threads."""
        return self.suspended_until_us > self.kernel.now_us

    @property
    def is_silent(self) -> bool:
        """Whether it sends nothing, not even heartbeats."""
        return self.is_suspended or not self.alive

    def check(self) -> None:
        """Raise in a dead process, so that its thread has no further effect."""
        if not self.alive:
            raise CrashError(self.name)

    def note(self, what: str) -> None:
        self.kernel.note(self.name, what)

    def sleep(self, delay_us: int) -> None:
        """Sleep until woken, and longer if the process is suspended in the meantime."""
        self.kernel.sleep(delay_us)
        self.settle()

    def wake(self, delay_us: int = 0) -> None:
        if self.actor is not None:
            self.kernel.wake(self.actor, delay_us)

    def settle(self) -> None:
        """Wait until the process is not suspended, and raise if it is dead."""
        while self.alive and self.is_suspended:
            self.kernel.sleep(self.suspended_until_us - self.kernel.now_us)
        self.check()

    def suspend(self, duration_us: int) -> None:
        """Suspend the process for some time (SIGSTOP), including heartbeats."""
        if not self.alive:
            return
        self._fall_silent()
        self.suspended_until_us = max(self.suspended_until_us, self.kernel.now_us + duration_us)
        self.note(f"! is suspended for {duration_us / 1e6:.3f} s")
        self._report_silence()

    def die(self) -> None:
        """Kill the process (SIGKILL): everything not passed to the operating system is lost."""
        if self.alive:
            self.note("! dies")
            self.end()
            self.wake()

    def end(self) -> None:
        """End the process, which sends nothing from now on."""
        if self.alive:
            self._fall_silent()
            self.alive = False
            self._report_silence()

    def _fall_silent(self) -> None:
        # A resumed process sends a heartbeat immediately, unless it is suspended again right then.
        if self.suspended_until_us < self.kernel.now_us:
            self.silent_since_us = self.kernel.now_us

    def _report_silence(self) -> None:
        for handle in list(self.on_silence):
            handle()

    def when_up(self, delay_us: int, event: Callable[[], None]) -> None:
        """Schedule an event in the background of this process, unless it is dead by then."""

        def happen() -> None:
            if not self.alive:
                return
            if self.is_suspended:
                self.kernel.after(self.suspended_until_us - self.kernel.now_us, happen)
                return
            event()

        self.kernel.after(delay_us, happen)
