"""Report that no broker is reachable, for the worker's log or for its supervisor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unreached:
    """Content of the event `brokers_not_reached`.

    Args:
        reason: the attempts and their results.

    Examples:
        >>> unreached = Unreached("kafka:9092", "Connection refused", 2.0, 4.0, "start it")
        >>> unreached.fields()["next"]
        'retries until a broker answers; logged again in 4 s'
    """

    servers: str
    reason: str
    waited_s: float
    again_in_s: float
    advice: str

    def fields(self) -> dict[str, object]:
        again = f"logged again in {self.again_in_s:.0f} s"
        return {
            "servers": self.servers,
            "reason": self.reason,
            "waited_s": self.waited_s,
            "next": f"retries until a broker answers; {again}",
            "advice": self.advice,
        }
