"""That no broker can be reached, as a worker says it: in its log, or to the supervisor for it."""

from __future__ import annotations

from dataclasses import dataclass

_TEXT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Unreached:
    """What the event `brokers_not_reached` says.

    Args:
        reason: what was tried, and what came of it.

    Example:
        >>> unreached = Unreached("kafka:9092", "Connection refused", 2.0, 4.0, "start it")
        >>> unreached.fields()["next"]
        'waits for as long as it takes, and tries all the time; said again in 4 s'
    """

    servers: str
    reason: str
    waited_s: float
    again_in_s: float
    advice: str

    def bounded(self) -> Unreached:
        """The same with texts that a pipe takes whole."""
        return Unreached(
            self.servers[:_TEXT_MAX],
            self.reason[:_TEXT_MAX],
            self.waited_s,
            self.again_in_s,
            self.advice[:_TEXT_MAX],
        )

    def fields(self) -> dict[str, object]:
        """The event's fields."""
        again = f"said again in {self.again_in_s:.0f} s"
        return {
            "servers": self.servers,
            "reason": self.reason,
            "waited_s": self.waited_s,
            "next": f"waits for as long as it takes, and tries all the time; {again}",
            "advice": self.advice,
        }
