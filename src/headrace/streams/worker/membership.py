"""A worker's place in its group: under which membership it commits, and how it joins.

A generation of the group begins before its callbacks come, and commits under the one before are
refused from then on. So a commit asks for the present one. It takes it only from the very member
of the last callback: one that the group gave up, and that has joined again, has another name, and
its new membership would have the brokers accept a commit of lost partitions. Who keeps its name
keeps its partitions until it lets go of them itself, in a callback, and joins the next generation
only after that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headrace.streams.errors import IdentityError, MemberFencedError, StreamsError
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import (
    Clock,
    Consumer,
    GroupMetadata,
    Log,
    RebalanceListener,
    TopicPartition,
)
from headrace.streams.tasks.inquiry import Inquiry
from headrace.streams.worker.rate_window import RateWindow

FENCED_TIMES = 6
"""A twin fences within a heartbeat, again and again; brokers that fall, now and then."""
FENCED_WITHIN_S = 60.0
LOOK_AFTER_S = 1.0
JOIN_PATIENCE_SESSIONS = 4
HEARTBEAT_LOOK_S = 0.05
"""How often to have the client look whether a heartbeat is due."""
JOINING_S, JOINING_LOOK_S = 5.0, 0.01
"""How long after a start to look for the first partitions, and how often."""
UNSETTLED = frozenset({TopicPartition("", -1)})
"""Stands for an answer that is none yet."""

_JOIN_REPEATED = (
    "nothing is lost: it joins the group anew; act only if it goes on, as brokers may be slow"
)
_REQUESTED = "nothing is lost: no member had these partitions, and the group shares them out again"
_GROUP_UNKNOWN = "it goes on, and asks again later; act on the reason if it stays"


class Membership:
    """Membership of a worker in its consumer group.

    Args:
        session_s: session.timeout.ms in seconds.
        assigned: asks which partitions the group's members have; None while it rebalances.
        leads: the partitions that the group is to give out.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        session_s: float,
        assigned: Callable[[], frozenset[TopicPartition] | None],
        leads: Callable[[], frozenset[TopicPartition]],
        background: Background,
        clock: Clock,
        log: Log,
    ) -> None:
        self._consumer = consumer
        self._assigned = assigned
        self._leads = leads
        self._join_patience_s = JOIN_PATIENCE_SESSIONS * session_s
        self._clock = clock
        self._log = log
        self._fenced = RateWindow(FENCED_TIMES, within_s=FENCED_WITHIN_S, clock=clock)
        self._metadata: GroupMetadata | None = None
        self._member_id: str | None = None
        self._is_fenced = False
        self._is_new = False
        """Whether the group has begun a generation since the last turn."""
        self._touched_s = -math.inf
        self._joining_since_s: float | None = None
        self._look_at_s: float | None = None
        """When to look for orphans: after each join, until an answer is sure."""
        self._orphans: frozenset[TopicPartition] = frozenset()
        self._inquiry = Inquiry[frozenset[TopicPartition]](background)

    def metadata(self) -> GroupMetadata:
        """The membership to commit under: the present one, as long as it is of the same member."""
        assert self._metadata is not None, "a commit without a membership"
        present = self._consumer.group_metadata()
        # Asked for in this order: a member that was given up never gets its name back.
        if present is not None and self._consumer.member_id() == self._member_id:
            self._metadata = present
        return self._metadata

    def join(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join for the first time."""
        self._joining_since_s = self._clock.monotonic_s()
        self._consumer.subscribe(topics, listener)

    @property
    def poll_max_s(self) -> float:
        """How long a poll may wait: that which hears of partitions waits to its end for records."""
        since_s = self._joining_since_s
        is_soon = since_s is not None and self._clock.monotonic_s() - since_s < JOINING_S
        return JOINING_LOOK_S if is_soon else math.inf

    def hear(self) -> bool:
        """Take the membership of this callback; returns whether it is another than before.

        Whoever was given up by the group and has joined again may meet that in any callback, and
        has a valid membership by now. Other workers may have had the tasks in between, so nothing
        that was done under the old membership may be committed under the new one. A client that
        closes may have no membership in its last callbacks, and so no other one.
        """
        name, present = self._consumer.member_id(), self._consumer.group_metadata()
        if present is None:
            return False
        before, self._member_id, self._metadata = self._member_id, name, present
        is_another = before is not None and before != self._member_id
        if is_another:
            # The client has joined anew by itself: what the group takes for its own, though it
            # has let go of it, is given to nobody and given up by nobody.
            self._look_at_s = None
        return is_another

    def is_given_up(self) -> bool:
        """Whether the group has given this member up since the last callback."""
        return self._member_id is not None and self._consumer.member_id() != self._member_id

    def assigned(self) -> None:
        """The group has given out partitions, so the worker has joined."""
        self._joining_since_s = None
        self._is_new = True
        if self._look_at_s is None:
            self._look_at_s = self._clock.monotonic_s() + LOOK_AFTER_S

    def turn(self) -> None:
        """See that the worker does join, and that nothing is left without a member."""
        if self._is_fenced:
            self._is_fenced = False
            self._join_anew()
        self._keep_in_touch()
        self._look_for_orphans()
        since_s = self._joining_since_s
        if since_s is not None and self._clock.monotonic_s() - since_s > self._join_patience_s:
            # A client that was started while a broker was silent may wait for it for ever.
            self._log.warning(
                "join_repeated", after_s=round(self._join_patience_s), advice=_JOIN_REPEATED
            )
            self._join_anew()

    def _keep_in_touch(self) -> None:
        """Hear soon of a rebalance, and take part in it at once: what moves is nobody's until then.

        Heartbeats go out here, between two commits, rather than when a commit asks for the
        generation: the client joins with the answer, and offsets on their way are refused then.
        """
        if self._is_new:
            self._is_new = False
            # Who has got nothing yet waits for what others give up, in the generation after this.
            self._consumer.hasten()
        now_s = self._clock.monotonic_s()
        if now_s - self._touched_s >= HEARTBEAT_LOOK_S:
            self._touched_s = now_s
            self._consumer.keep_in_touch()

    def _look_for_orphans(self) -> None:
        """Have partitions shared out that the group has left without a member.

        A static member that comes back within its session gets its old assignment, without a
        rebalance. What its predecessor was about to give up when it died is in nobody's
        assignment then, until the group shares out again.
        """
        if self._inquiry.is_open:
            self._hear_of_orphans()
        elif self._look_at_s is not None and self._clock.monotonic_s() >= self._look_at_s:
            self._inquiry.ask(self._find_orphans)

    def _hear_of_orphans(self) -> None:
        orphans = self._inquiry.take()
        if orphans is None:
            return
        self._look_at_s = self._clock.monotonic_s() + LOOK_AFTER_S
        if orphans is UNSETTLED:
            return
        if not orphans:
            self._look_at_s = math.inf
        elif orphans == self._orphans:
            self._log.warning(
                "rebalance_requested", partitions=sorted(map(str, orphans)), advice=_REQUESTED
            )
            self._consumer.ask_for_rebalance()
            orphans = frozenset()
        # One look could have met them on their way.
        self._orphans = orphans

    def _find_orphans(self) -> frozenset[TopicPartition]:
        """Ask which partitions no member has; runs beside the worker."""
        try:
            assigned = self._assigned()
        except StreamsError as error:
            self._log.warning("group_unknown", reason=str(error), advice=_GROUP_UNKNOWN)
            return UNSETTLED
        return UNSETTLED if assigned is None else self._leads() - assigned

    def replace(self, reason: MemberFencedError) -> None:
        """Join with a new client in the next turn, as the group does not accept this one any more.

        Not here: it may be one of the old client's own callbacks that has found out.

        Raises:
            IdentityError: it happens again and again.
        """
        if self._fenced.is_too_much():
            raise IdentityError(
                f"this worker was fenced in its group {FENCED_TIMES} times within a minute "
                f"({reason}): another live worker has the same identity; give each worker its own "
                "worker.id"
            ) from reason
        self._is_fenced = True

    def _join_anew(self) -> None:
        self._is_new = False
        self._member_id = None
        self._look_at_s = None
        self._joining_since_s = self._clock.monotonic_s()
        self._consumer.rejoin()
