"""The consumer of ranges, which says why where brokers do not let it in.

Beside a worker a `BrokerContact` finds that out for all clients; an executor has this client alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.streams.kafka.broker_contact import Heard, not_admitted
from headrace.streams.kafka.consumer import LiveConsumer, MakeClient
from headrace.streams.seams.clients import Clock, ReceivedMessage, TopicPartition
from headrace.streams.seams.system_clock import SystemClock

_SURE_AFTER_S = 1.0
"""Another broker may have what is read, and let this client in."""


class RangeConsumer(LiveConsumer):
    """A consumer in no group that does not wait for brokers that will not let it in.

    Args:
        config: librdkafka's settings, from `StreamsConfig.restore_config`.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        heard: Heard | None = None,
        clock: Clock | None = None,
        make_client: MakeClient | None = None,
    ) -> None:
        self._heard = heard or Heard()
        self._settings = config
        self._time = clock or SystemClock()
        self._refused_s: float | None = None
        super().__init__(
            config, timeout_s=timeout_s, clock=clock, make_client=make_client, contact=self._heard
        )

    def poll(
        self, max_records: int, timeout_s: float
    ) -> Mapping[TopicPartition, Sequence[ReceivedMessage]]:
        """Return what is there (see `LiveConsumer.poll`).

        Raises:
            AccessError: the brokers do not let this client in, or it does not trust them.
        """
        found = super().poll(max_records, timeout_s)
        if found:
            self._heard.forget()
            self._refused_s = None
        else:
            self._end_if_refused()
        return found

    def _end_if_refused(self) -> None:
        final = next((failure for failure in self._heard.failures if failure.is_final), None)
        if final is None:
            self._refused_s = None
            return
        now_s = self._time.monotonic_s()
        if self._refused_s is None:
            self._refused_s = now_s
        elif now_s - self._refused_s >= _SURE_AFTER_S:
            raise not_admitted(final, self._settings)
