"""Protection against two versions of a topology that own the same partitions at the same time.

Each worker reports a digest of its version's ownership to the group, in its client.id (see
`headrace.streams.plan.ownership`). The description of the deployed topology contains the whole
ownership. A worker compares both twice:

1. Before it creates a topic or joins: workers of a conflicting version may still be members, so it
   waits until the sessions of killed workers have ended, and then refuses to start.
2. When it is a member, before a task starts: two versions may have started at the same moment. Each
   sees the other then, and the version with the larger digest refuses to start.

A worker that rejoins after it lost its membership is compared again before its tasks start. So no
task starts while a member of a conflicting version is in the group. Workers of older releases
compare nothing: if such a worker joins later, the existing workers stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.endpoints import version_of
from headrace.streams.errors import FatalClientError, StopRequestedError, VersionConflictError
from headrace.streams.kafka.acls import GroupDeniedError
from headrace.streams.kafka.protocols import (
    AdminClient,
    Clock,
    GroupState,
    Log,
    Member,
    TopicDescription,
)
from headrace.streams.plan.deployed import DeployedTopology
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.ownership import (
    OLDER_RELEASE,
    OlderOwnership,
    TopicOwnership,
    keep_subscribed,
    older_reads,
)
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import TopicPlan

WAIT_MORE_S = 5.0
"""Seconds to wait for killed members in addition to the session timeout."""
UNKNOWN_MORE_S = 30.0
"""Additional seconds to wait for members whose version has no description.

They have just joined, or were told to stop before they wrote it and are still closing.
"""
DESCRIBED_S = 3.0
"""Seconds that a running version may take to write its description."""
_ASK_AGAIN_S = 0.2
_UNSETTLED = "the group is rebalancing, and the members' older release reports no version"
_UNKNOWN = (
    "the partitions that they own are unknown, because no description of their version is stored"
)
_PREDECESSOR = "the group still has the worker that had this worker.id before"
_ASKED_LATER = "nothing is lost: it asks again when the group has changed"
_ADVICE = (
    "if they were stopped, it starts when their sessions have ended; if they run, stop all of them"
)


class LiveVersions:
    """Check that two versions of a topology never own the same partitions."""

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        deployed: DeployedTopology,
        *,
        clock: Clock,
        log: Log,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._group = config.application_id
        self._wait_s = config.session_timeout_ms / 1000 + WAIT_MORE_S
        self.plans = plans
        """The sub-topologies, with the subscribed topics of the deployed version once resolved."""
        self._deployed = deployed
        self._clock = clock
        self._log = log
        self._stopping = stopping
        self._admin: AdminClient | None = None
        self._own = TopicOwnership({}, {}, {}, {})
        self._identity = ""
        self._reported_within_s = config.task_timeout_ms / 1000
        self._absent_since_s: float | None = None
        self._waits_since_s: float | None = None

    @property
    def version(self) -> str:
        return self._own.version

    def resolve(
        self, admin: AdminClient, plan: TopicPlan, descriptions: Mapping[str, TopicDescription]
    ) -> None:
        """Choose the subscribed topics; wait until no member conflicts, or raise if it remains."""
        self._admin = admin
        partitions = {name: topic.partitions for name, topic in descriptions.items()}
        partitions |= {topic.name: topic.partitions for topic in plan.create}
        before = self._deployed.before
        if before is not None:
            known = (
                TopicOwnership.of(before, self._group)
                if before.subs
                else self._older(before, GroupState("", {})).known
            )
            self.plans = keep_subscribed(self.plans, known)
        self._deployed.describe_subscriptions(self.plans, partitions)
        self._own = TopicOwnership.of(self._deployed.present, self._group)
        while conflicts := self._conflicts(state := self._state()):
            self._wait_once(self._error(state, conflicts), self._at_most_s(conflicts))
        self._waits_since_s = None

    def take(self, identity: str) -> None:
        """Wait until no member with this identity runs another version, or raise if it remains.

        Otherwise the broker would give this worker the old member's assignment, which may contain
        topics that this version does not subscribe to, and would still report the old version.
        """
        self._identity = identity
        while self._reported(self._state()) not in (None, self.version):
            conflict = VersionConflictError(self._group, [identity], [_PREDECESSOR])
            self._wait_once(conflict, self._wait_s)
        self._waits_since_s = None

    def _reported(self, state: GroupState) -> str | None:
        versions = (_version(member) for member in state.members if member.id == self._identity)
        return next(versions, None)

    def _wait_once(self, conflict: VersionConflictError, at_most_s: float) -> None:
        self._wait(conflict, at_most_s)
        if self._stopping():
            raise StopRequestedError(f"stopped while waiting: {conflict}")
        self._clock.sleep(_ASK_AGAIN_S)

    def _wait(self, conflict: VersionConflictError, at_most_s: float) -> None:
        """Log the conflict once, and raise it after it has lasted for the given time."""
        now_s = self._clock.monotonic_s()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
            self._log.warning(
                "start_waits_for_other_version",
                members=list(conflict.members),
                reasons=list(conflict.reasons),
                at_most_s=round(at_most_s),
                advice=_ADVICE,
            )
        if now_s - self._waits_since_s >= at_most_s:
            raise conflict

    def may_begin(self) -> bool:
        """Return whether tasks may start, now that this worker is a member; if not, call again."""
        state = self._state()
        if self._reported(state) != self.version:
            self._wait_to_be_reported()
            return False
        self._absent_since_s = None
        conflicts = self._conflicts(state)
        if not conflicts:
            self._waits_since_s = None
            return True
        is_lower = min(conflicts) < self.version
        own_s = 0.0 if _are_known(conflicts) else DESCRIBED_S
        self._wait(self._error(state, conflicts), own_s if is_lower else self._at_most_s(conflicts))
        return False

    def _at_most_s(self, conflicts: Mapping[str, Sequence[str]]) -> float:
        return self._wait_s if _are_known(conflicts) else self._wait_s + UNKNOWN_MORE_S

    def _wait_to_be_reported(self) -> None:
        """Raise if the group has not reported this worker as a member within task.timeout.ms."""
        now_s = self._clock.monotonic_s()
        if self._absent_since_s is None:
            self._absent_since_s = now_s
        elif now_s - self._absent_since_s > self._reported_within_s:
            raise FatalClientError(
                f"the brokers do not report this worker as a member of group {self._group} that "
                f"runs its version ({self._identity}, version {self.version}). Check that no "
                "other worker has its worker.id, and that its user may describe the group"
            )

    def refuse_older(self) -> None:
        """Raise if a member of an older release conflicts: it does not compare versions itself."""
        try:
            state = self._state()
        except FatalClientError as error:
            self._log.warning("versions_unknown", reason=str(error), advice=_ASKED_LATER)
            return
        conflicting = self._conflicts(state).get(OLDER_RELEASE, [_UNSETTLED])
        if OLDER_RELEASE in map(_version, state.members) and conflicting != [_UNSETTLED]:
            raise self._error(state, {OLDER_RELEASE: conflicting})

    def _state(self) -> GroupState:
        assert self._admin is not None, "called before `resolve`"
        return self._admin.group_state(self._group)

    def _error(
        self, state: GroupState, conflicts: Mapping[str, Sequence[str]]
    ) -> VersionConflictError:
        members = [member.id for member in state.members if _version(member) in conflicts]
        reasons = dict.fromkeys(reason for some in conflicts.values() for reason in some)
        return VersionConflictError(self._group, members, list(reasons))

    def _conflicts(self, state: GroupState) -> dict[str, list[str]]:
        """Return the conflicts by the version of live members."""
        others = {_version(member) for member in state.members} - {self.version}
        others -= self._deployed.alongside - {OLDER_RELEASE}
        if not others:
            return {}
        try:
            described = self._deployed.read()
        except GroupDeniedError:
            described = None
        conflicts = {other: self._compare(other, described, state) for other in others}
        self._deployed.alongside |= {other for other, reasons in conflicts.items() if not reasons}
        return {other: reasons for other, reasons in conflicts.items() if reasons}

    def _compare(self, version: str, described: Deployment | None, state: GroupState) -> list[str]:
        if described is None:
            return [_UNKNOWN]
        if not described.subs:
            if version != OLDER_RELEASE:
                return [_UNKNOWN]
            if state.state != "stable":
                return [_UNSETTLED]
            return self._older(described, state).conflicts(self._own)
        other = TopicOwnership.of(described, self._group)
        if other.version == version:
            return self._own.conflicts(other)
        is_known = other.version == self.version and version in described.alongside
        return [] if is_known else [_UNKNOWN]

    def _older(self, described: Deployment, state: GroupState) -> OlderOwnership:
        assert self._admin is not None, "called before `resolve`"
        assigned = {
            tp.topic
            for member, tps in state.members.items()
            if _version(member) == OLDER_RELEASE
            for tp in tps
        }
        names = {topic for reads in older_reads(described, self._group) for topic in reads}
        descriptions = self._admin.describe(names | assigned | self._own.subscribed.keys())
        partitions = {name: topic.partitions for name, topic in descriptions.items()}
        return OlderOwnership.of(described, self._group, assigned, partitions)


def _are_known(conflicts: Mapping[str, Sequence[str]]) -> bool:
    return any(some not in ([_UNKNOWN], [_UNSETTLED]) for some in conflicts.values())


def _version(member: Member) -> str:
    return version_of(member.client_id)
