"""Keeps what an application has deployed on the cluster, and refuses a start that would lose state.

The description is the metadata of an offset in the group `<application.id>.topology`, at partition
0 of the first input. The offset itself counts: the largest is the present one, so another first
input needs no cleaning up. docs/decisions/0003-deployed-topology.md says why it is there.

Such an offset expires `offsets.retention.minutes` after it was written, a week by default, so a
running application writes it again at a quarter of that (see
`headrace.streams.worker.retention`). After a longer standstill the offsets of the
application itself are gone too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, Self

from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.settings import TOPOLOGY_ENDING
from headrace.streams.errors import (
    FatalClientError,
    ResetRefusedError,
    StopRequestedError,
    TopologyChangedError,
)
from headrace.streams.kafka.access_errors import AccessError, GroupDeniedError
from headrace.streams.kafka.protocols import CommittedOffset, Log, Member, Offsets, TopicPartition
from headrace.streams.plan.deployment import Deployment, change_code, is_accepted
from headrace.streams.plan.deployment_changes import changes
from headrace.streams.plan.ownership import Ownership
from headrace.streams.plan.plan import SubPlan

TRY_AGAIN_S = 600.0
FRESH_S = 30.0
"""How long until the next look whether topics that are new have committed offsets."""
SHORTENED = (
    "the description of the topology does not fit beside an offset whole: changes of schemas, and "
    "perhaps of windows, cannot be judged at the next start; give stores shorter names, or serdes "
    "smaller schemas"
)
VERSIONS_MAX = 8
"""How many other versions a description names; those that it does not name are refused."""
LAST_WRITE_S = 5.0
"""How long a stop waits for a write that is under way."""


class GroupOffsets(Protocol):
    """What is asked of a cluster; live ones are `MemberlessGroup` and `GroupAdmin`."""

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        """All offsets of a group; with `decided`, once no open transaction may change one."""

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets of a group without members."""


class DescribedGroups(GroupOffsets, Protocol):
    """What a description needs of a cluster; the live one is `MemberlessGroup`."""

    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of a group at some places."""


class Groups(GroupOffsets, Protocol):
    """Groups from outside; the live one is `headrace.streams.kafka.group_admin.GroupAdmin`."""

    def members(self, group: str) -> tuple[Member, ...]:
        """The members of a group."""


def topology_group(application_id: str) -> str:
    """The group that an application's description is kept in."""
    return application_id + TOPOLOGY_ENDING


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int = 0
    deployment: Deployment | None = None


class DeployedTopology:
    """The description on the cluster, and the one of the program.

    Used as the context of `kept_every` it is written at the begin, and again and again.

    Args:
        wait: waits for some seconds, and says whether it is to end; for tests.
    """

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        cluster: DescribedGroups,
        log: Log,
        *,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._accepted = config.topology_change_accept
        self._application_id = config.application_id
        self._group = topology_group(config.application_id)
        self._place = next(TopicPartition(t, 0) for p in plans for t in p.topics.sources)
        self._config = config
        self._present = Deployment.of(plans, config)
        self._cluster = cluster
        self._log = log
        self.before: Deployment | None = None
        """What `check` has found to be deployed, if that is known."""
        self._partitions: dict[str, int] = {}
        self.alongside: set[str] = set()
        """The versions that this one may run beside, as far as they were compared."""
        self._has_fresh = False
        self._was_running = False
        self._is_running = threading.Event()
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._keep_every_s = TRY_AGAIN_S
        self._keeping = threading.Thread(
            target=self._keep_on, name="headrace-topology", daemon=True
        )

    @property
    def present(self) -> Deployment:
        """What the program makes."""
        return self._present

    def describe_subscriptions(
        self, plans: Sequence[SubPlan], partitions: Mapping[str, int]
    ) -> None:
        """Add to the program's description what its workers subscribe to."""
        self._partitions = dict(partitions)
        self._present = self._present.with_subs(plans, partitions, self._config)

    def read(self) -> Deployment | None:
        """What the last version that started has kept, if that is known."""
        return self._read().deployment

    def _read(self) -> _Kept:
        kept = self._cluster.committed(self._group, decided=False).values()
        # Whatever else is committed there was not committed by this application.
        read = [_Kept(c.offset, Deployment.decode(c.metadata)) for c in kept]
        found = [one for one in read if one.deployment is not None]
        return max(found, key=lambda one: one.number, default=_Kept())

    def check(self) -> None:
        """Compare the program with what is deployed; call it before anything is created.

        Raises:
            TopologyChangedError: state would be lost or misread, and nobody has accepted that.
        """
        try:
            before = self.before = self.read()
        except GroupDeniedError as error:
            self._log.warning("topology_not_read", reason=str(error))
            return
        if before is None or before == self._present:
            return
        found = changes(before, self._present, application_id=self._application_id)
        for change in found:
            warns = change.refused or change.lets_go
            say = self._log.warning if warns else self._log.info
            say("topology_changed", refused=change.refused, change=str(change))
        refused = [str(change) for change in found if change.refused]
        code = change_code(before, self._present)
        if refused and not is_accepted(self._accepted, code):
            raise TopologyChangedError(refused, code)

    def keep(self) -> bool:
        """Write the program's description, now that its topics are there; whether that is done."""
        try:
            kept = self._read()
            present = self._beside(kept.deployment)
            fitting = present.fitting()
            if fitting != present:
                self._log.warning("topology_shortened", reason=SHORTENED)
            number = kept.number if kept.deployment == fitting else kept.number + 1
            offset = CommittedOffset(number, fitting.encode())
            self._cluster.set_offsets(self._group, {self._place: offset})
            self._has_fresh = bool(fitting.fresh)
        except (AccessError, FatalClientError, ResetRefusedError, ValueError) as error:
            self._log.warning("topology_not_kept", reason=str(error))
            return False
        return True

    def _beside(self, kept: Deployment | None) -> Deployment:
        """The program's description, with what follows from the one that is there."""
        known, fresh = set(self.alongside), frozenset[str]()
        if kept is not None and kept.subs:
            if self._is_owned_alike(kept):
                known.update(kept.alongside)
            fresh = self._uncommitted(self._present.reads - kept.reads.difference(kept.fresh))
        return replace(
            self._present,
            alongside=tuple(sorted(known)[:VERSIONS_MAX]),
            fresh=tuple(sorted(fresh)),
        )

    def _uncommitted(self, topics: Iterable[str]) -> frozenset[str]:
        """Those of some topics of which a partition has no committed offset yet."""
        places = [TopicPartition(t, p) for t in topics for p in range(self._partitions[t])]
        if not places:
            return frozenset()
        there = self._cluster.committed_at(self._application_id, places, decided=False)
        return frozenset(place.topic for place in places if place not in there)

    def _is_owned_alike(self, kept: Deployment) -> bool:
        if not self._present.subs:
            return False
        own, other = (Ownership.of(one, self._application_id) for one in (self._present, kept))
        return own == other

    def running(self) -> None:
        """The first task may begin: the program is what is deployed from now on."""
        self._was_running = True
        self._is_running.set()

    def kept_every(self, seconds: float) -> Self:
        """The context in which it is written; how often follows from the brokers' retention."""
        self._keep_every_s = seconds
        return self

    def __enter__(self) -> Self:
        # Beside the worker: records need not wait for it.
        self._keeping.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._is_running.set()
        self._keeping.join(LAST_WRITE_S)

    def _keep_on(self) -> None:
        self._is_running.wait()
        with suppress(StopRequestedError):
            if not self._was_running:
                return  # it was refused, or has ended before
            while not self._wait(self._next_s(kept=self.keep())):
                pass

    def _next_s(self, *, kept: bool) -> float:
        if self._has_fresh:
            return min(self._keep_every_s, FRESH_S)
        return self._keep_every_s if kept else min(self._keep_every_s, TRY_AGAIN_S)


def forget(application_id: str, cluster: GroupOffsets) -> None:
    """Write that nothing is deployed: what starts next is compared with nothing."""
    offsets = forgotten(application_id, cluster)
    if offsets:
        cluster.set_offsets(topology_group(application_id), offsets)


def forgotten(application_id: str, cluster: GroupOffsets) -> Offsets:
    """What to commit in the group of the topology so that nothing is deployed; may be nothing."""
    kept = cluster.committed(topology_group(application_id), decided=False)
    if not kept:
        return {}
    place, last = max(kept.items(), key=lambda item: item[1].offset)
    return {place: CommittedOffset(last.offset + 1)}
