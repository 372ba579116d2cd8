"""Names single brokers that are gone while others answer, and says when they are back.

What is gone altogether is told by `headrace.streams.kafka.broker_contact`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.state.events.log import Say

_PAUSE_S = 0.5
_SURE_AFTER_S = 3.0
"""A connection may end and another begin; and by then it is known whether all of them are gone."""
_GONE = (
    "the others answer, and what it leads goes on when one of them leads it, within seconds where "
    "there are replicas; start it again, or look at its machine and the way to it"
)


class AbsentBrokers:
    """See the module.

    Args:
        warn: logs an event as a warning.
        tell: logs an event of the level info.
        probe: makes what asks one broker, by its address, and says whether it has answered.
        all_gone: whether no broker at all can be reached.
        ended: set when nobody is to look any more.
    """

    def __init__(
        self,
        *,
        warn: Say,
        tell: Say,
        probe: Callable[[str], Callable[[], bool]],
        all_gone: Callable[[], bool],
        ended: threading.Event,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._warn = warn
        self._tell = tell
        self._probe = probe
        self._all_gone = all_gone
        self._ended = ended
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._looked_at: set[str] = set()

    def suspect(self, address: str, reason: str) -> None:
        """Look at a broker that a client could not use, beside the worker."""
        with self._lock:
            if address in self._looked_at or self._ended.is_set():
                return
            self._looked_at.add(address)
        threading.Thread(
            target=self._look, args=(address, reason), name="headrace-absent", daemon=True
        ).start()

    def _look(self, address: str, reason: str) -> None:
        begun_s, is_told = self._monotonic_s(), False
        try:
            answers = self._probe(address)
            while not answers():
                if self._ended.wait(_PAUSE_S):
                    return
                if not is_told and self._monotonic_s() - begun_s >= _SURE_AFTER_S:
                    if self._all_gone():
                        return
                    is_told = True
                    self._warn("broker_not_reached", broker=address, reason=reason, advice=_GONE)
            if is_told:
                after_s = round(self._monotonic_s() - begun_s, 1)
                self._tell("broker_reached", broker=address, after_s=after_s)
        finally:
            with self._lock:
                self._looked_at.discard(address)
