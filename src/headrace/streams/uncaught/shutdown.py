"""An application's part in a shutdown of all its processes: it hears the word, and can give it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.contact.access_errors import AccessError
from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.broker_contact import BrokerContact
from headrace.streams.kafka.group_offsets import MemberlessGroup, OpenGroup
from headrace.streams.plan.plan import SubPlan
from headrace.streams.records.failures import describe_failure
from headrace.streams.seams.clients import Clock, Log, TopicPartition
from headrace.streams.start_errors import ShutDownError
from headrace.streams.uncaught.shutdown_note import (
    ShutdownNote,
    ShutdownWatch,
    shutdown_group,
    write_note,
)

TELL_WITHIN_S = 10.0


class Shutdown:
    """See the module.

    Args:
        plans: what the application runs; its inputs are where the word is kept.
    """

    def __init__(
        self, config: StreamsConfig, plans: Sequence[SubPlan], *, clock: Clock, log: Log
    ) -> None:
        self._config = config
        self._group = shutdown_group(config.application_id)
        self._places = {TopicPartition(name, 0) for plan in plans for name in plan.topics.sources}
        self._clock = clock
        self._log = log
        self._heard: ShutDownError | None = None
        self._tells = False

    def watched(self, contact: BrokerContact, stop: Callable[[], None]) -> ShutdownWatch:
        """The context in which a worker runs.

        Args:
            stop: has the worker stop; called from another thread.
        """

        def ended(error: ShutDownError) -> None:
            if self._tells:  # it is closing, and this may be its own word
                return
            self._heard = error
            self._log.warning("shutdown_heard", host=error.host, process=error.process)
            stop()

        return ShutdownWatch(
            self._config.application_id,
            lambda: OpenGroup(self._config.admin_config(), self._group, contact=contact),
            self._places,
            ended=ended,
            log=self._log,
        )

    def check(self) -> None:
        """Raise what was heard, once the worker has ended.

        Raises:
            ShutDownError: another process has asked for it.
        """
        if self._heard is not None:
            raise self._heard

    def tell(self, error: Exception) -> bool:
        """Have all workers that run now end; returns whether they can know, and logs if not."""
        self._tells = True
        failure = describe_failure(error, full=False)
        cluster = MemberlessGroup(
            self._config.admin_config(), timeout_s=TELL_WITHIN_S, stopping=lambda: False
        )
        try:
            write_note(
                ShutdownNote.of(failure.error, failure.reason),
                self._places,
                set_offsets=lambda offsets: cluster.set_offsets(self._group, offsets),
                clock=self._clock,
            )
        except (AccessError, FatalClientError) as unwritten:
            advice = "stop the application's other processes by hand"
            self._log.error("shutdown_not_told", reason=str(unwritten), advice=advice)
            return False
        self._log.warning("shutdown_told", group=self._group)
        return True
