"""Membership of a worker in its consumer group: joining, heartbeats, and metadata for commits.

A new generation of the group starts before its callbacks are called, and brokers reject commits
under the previous generation from then on. So a commit requests the current membership. It is used
only if it belongs to the same member as at the last callback. A member that was removed from the
group and has rejoined has a different member ID, and with its new membership the brokers would
accept a commit for lost partitions. A member that keeps its ID keeps its partitions until it
releases them in a callback, and joins the next generation only after that.
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
from headrace.streams.tasks.background_request import BackgroundRequest
from headrace.streams.worker.restarts import RateWindow

FENCED_TIMES = 6
"""A duplicate instance fences within each heartbeat interval; broker failures fence rarely."""
FENCED_WITHIN_S = 60.0
CHECK_AFTER_S = 1.0
JOIN_PATIENCE_SESSIONS = 4
HEARTBEAT_CHECK_S = 0.05
"""Seconds between two checks of the client whether a heartbeat is due."""
JOINING_S, JOINING_POLL_S = 5.0, 0.01
"""Seconds after a start with short polls for the first partitions, and seconds per poll."""
UNSETTLED = frozenset({TopicPartition("", -1)})
"""Placeholder for an inconclusive answer."""

_JOIN_REPEATED = (
    "nothing is lost. The worker rejoins the group. Act only if it continues: brokers may be slow"
)
_REQUESTED = "nothing is lost. No member had these partitions, and the group assigns them again"
_GROUP_UNKNOWN = "the check is repeated later. Act on the reason if it continues"


class Membership:
    """Membership of a worker in its consumer group.

    Args:
        session_s: session.timeout.ms in seconds.
        assigned: returns the partitions assigned to members; None during a rebalance.
        subscribed: returns the partitions that the group must assign.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        session_s: float,
        assigned: Callable[[], frozenset[TopicPartition] | None],
        subscribed: Callable[[], frozenset[TopicPartition]],
        background: Background,
        clock: Clock,
        log: Log,
    ) -> None:
        self._consumer = consumer
        self._assigned = assigned
        self._subscribed = subscribed
        self._join_patience_s = JOIN_PATIENCE_SESSIONS * session_s
        self._clock = clock
        self._log = log
        self._fenced = RateWindow(FENCED_TIMES, within_s=FENCED_WITHIN_S, clock=clock)
        self._metadata: GroupMetadata | None = None
        self._member_id: str | None = None
        self._is_fenced = False
        self._is_new = False
        """Whether the group has started a generation since the last turn."""
        self._heartbeat_checked_s = -math.inf
        self._joining_since_s: float | None = None
        self._check_at_s: float | None = None
        """Time of the next check for orphaned partitions: after each join, until an answer is
        conclusive."""
        self._orphans: frozenset[TopicPartition] = frozenset()
        self._orphan_check = BackgroundRequest[frozenset[TopicPartition]](background)

    def metadata(self) -> GroupMetadata:
        """Return the membership for commits: the current membership of the same member."""
        assert self._metadata is not None, "a commit without a membership"
        current = self._consumer.group_metadata()
        # This order is safe: a member that was removed never gets its ID back.
        if current is not None and self._consumer.member_id() == self._member_id:
            self._metadata = current
        return self._metadata

    def join(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self._joining_since_s = self._clock.monotonic_s()
        self._consumer.subscribe(topics, listener)

    @property
    def poll_max_s(self) -> float:
        """Maximum duration of a poll; short while joining, as an assignment does not end a poll."""
        since_s = self._joining_since_s
        is_soon = since_s is not None and self._clock.monotonic_s() - since_s < JOINING_S
        return JOINING_POLL_S if is_soon else math.inf

    def take_new_membership(self) -> bool:
        """Record the membership of this callback; return whether the member ID has changed.

        Then other workers may have owned the tasks, so work under the old membership must not be
        committed under the new membership. A client that is closing may have no membership, which
        does not count as a change.
        """
        member_id, current = self._consumer.member_id(), self._consumer.group_metadata()
        if current is None:
            return False
        before, self._member_id, self._metadata = self._member_id, member_id, current
        has_new_id = before is not None and before != self._member_id
        if has_new_id:
            # The client has rejoined on its own. The group may count partitions that it released
            # as assigned, and a check would not find them; the join triggers a new check.
            self._check_at_s = None
        return has_new_id

    def was_removed(self) -> bool:
        """Return whether the group has removed this member since the last callback."""
        return self._member_id is not None and self._consumer.member_id() != self._member_id

    def record_assignment(self) -> None:
        """Record that the group has assigned partitions, so the worker has joined."""
        self._joining_since_s = None
        self._is_new = True
        if self._check_at_s is None:
            self._check_at_s = self._clock.monotonic_s() + CHECK_AFTER_S

    def turn(self) -> None:
        if self._is_fenced:
            self._is_fenced = False
            self._rejoin()
        self._send_heartbeat()
        self._check_orphans()
        since_s = self._joining_since_s
        if since_s is not None and self._clock.monotonic_s() - since_s > self._join_patience_s:
            # A client that was started while a broker did not answer may wait for it forever.
            self._log.warning(
                "join_repeated", after_s=round(self._join_patience_s), advice=_JOIN_REPEATED
            )
            self._rejoin()

    def _send_heartbeat(self) -> None:
        """Send heartbeats between two commits, to take part in rebalances early.

        In a commit, the client would rejoin with the answer, so that offsets in flight are
        rejected.
        """
        if self._is_new:
            self._is_new = False
            # A new member receives partitions that others revoke in the following generation.
            self._consumer.trigger_rejoin()
        now_s = self._clock.monotonic_s()
        if now_s - self._heartbeat_checked_s >= HEARTBEAT_CHECK_S:
            self._heartbeat_checked_s = now_s
            self._consumer.send_heartbeat()

    def _check_orphans(self) -> None:
        """Request a rebalance if the group has left partitions without a member.

        A static member that returns within its session gets its old assignment. Partitions that its
        predecessor was about to revoke when it died have no member until the next rebalance.
        """
        if self._orphan_check.is_pending:
            self._on_orphans()
        elif self._check_at_s is not None and self._clock.monotonic_s() >= self._check_at_s:
            self._orphan_check.submit(self._find_orphans)

    def _on_orphans(self) -> None:
        orphans = self._orphan_check.poll()
        if orphans is None:
            return
        self._check_at_s = self._clock.monotonic_s() + CHECK_AFTER_S
        if orphans is UNSETTLED:
            return
        if not orphans:
            self._check_at_s = math.inf
        elif orphans == self._orphans:
            self._log.warning(
                "rebalance_requested", partitions=sorted(map(str, orphans)), advice=_REQUESTED
            )
            self._consumer.ask_for_rebalance()
            orphans = frozenset()
        # Require two equal checks: partitions may be moving during a single check.
        self._orphans = orphans

    def _find_orphans(self) -> frozenset[TopicPartition]:
        try:
            assigned = self._assigned()
        except StreamsError as error:
            self._log.warning("group_unknown", reason=str(error), advice=_GROUP_UNKNOWN)
            return UNSETTLED
        return UNSETTLED if assigned is None else self._subscribed() - assigned

    def replace(self, reason: MemberFencedError) -> None:
        """Rejoin in the next turn, because a callback of the old client may call this."""
        if self._fenced.is_too_much():
            raise IdentityError(
                f"another live worker has the same identity, because this worker was fenced in its "
                f"group {FENCED_TIMES} times within a minute ({reason}). Give each worker a unique "
                "worker.id"
            ) from reason
        self._is_fenced = True

    def _rejoin(self) -> None:
        self._is_new = False
        self._member_id = None
        self._check_at_s = None
        self._joining_since_s = self._clock.monotonic_s()
        self._consumer.rejoin()
