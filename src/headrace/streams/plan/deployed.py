"""Description of the deployed topology on the cluster; a start that would lose state is refused.

The description is the metadata of an offset in the group `<application.id>.topology`, at partition
0 of the first input. The largest offset in the group is the current description, so a changed first
input needs no cleanup. docs/decisions/0003-deployed-topology.md gives the reasons.

Such an offset expires `offsets.retention.minutes` after it was written, a week by default, so a
running application writes it again after a quarter of that time (see
`headrace.streams.worker.retention`). After a longer standstill the application's own offsets have
expired, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.settings import TOPOLOGY_ENDING
from headrace.streams.errors import (
    FatalClientError,
    ResetRefusedError,
    StopRequestedError,
    TopologyChangedError,
)
from headrace.streams.kafka.acls import AccessError, GroupDeniedError
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    Log,
    OffsetClient,
    Offsets,
    TopicPartition,
)
from headrace.streams.plan.deployment import Deployment, change_code, is_accepted
from headrace.streams.plan.deployment_changes import changes, is_other_application
from headrace.streams.plan.ownership import TopicOwnership
from headrace.streams.plan.plan import SubPlan

TRY_AGAIN_S = 600.0
FRESH_S = 30.0
"""Interval in seconds between checks whether new topics have committed offsets."""
SHORTENED = (
    "the description of the topology is too large for the offset metadata and was shortened: the "
    "next start cannot check changes of schemas, and perhaps of windows; give stores shorter "
    "names, or serdes smaller schemas"
)
VERSIONS_MAX = 8
"""Maximum number of compatible versions in a description; all other versions are refused."""
LAST_WRITE_S = 5.0
"""Maximum time in seconds that a stop waits for a write in progress."""


def topology_group(application_id: str) -> str:
    return application_id + TOPOLOGY_ENDING


@dataclass(frozen=True, slots=True)
class _NumberedDeployment:
    number: int = 0
    deployment: Deployment | None = None


class DeployedTopology:
    """Description of the deployed topology on the cluster, compared with the program's.

    As a context manager (see `kept_every`) it writes the description in a separate thread, first
    when `running` is called and then repeatedly.

    Args:
        wait: waits for a number of seconds and returns whether to stop; for tests.
    """

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        cluster: OffsetClient,
        log: Log,
        *,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._accepted = config.topology_change_accept
        self._application_id = config.application_id
        self._group = topology_group(config.application_id)
        self._tp = next(TopicPartition(t, 0) for p in plans for t in p.topics.sources)
        self._config = config
        self._present = Deployment.of(plans, config)
        self._cluster = cluster
        self._log = log
        self.before: Deployment | None = None
        """The deployed topology that `check` has read, or None if it is unknown."""
        self._partitions: dict[str, int] = {}
        self.alongside: set[str] = set()
        """The versions that were compared with this version and may run at the same time."""
        self._has_fresh = False
        self._was_running = False
        self._is_running = threading.Event()
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        self._keep_every_s = TRY_AGAIN_S
        self._keeping = threading.Thread(
            target=self._keep_writing, name="headrace-topology", daemon=True
        )

    @property
    def present(self) -> Deployment:
        return self._present

    def describe_subscriptions(
        self, plans: Sequence[SubPlan], partitions: Mapping[str, int]
    ) -> None:
        self._partitions = dict(partitions)
        self._present = self._present.with_subs(plans, partitions, self._config)

    def read(self) -> Deployment | None:
        return self._read().deployment

    def _read(self) -> _NumberedDeployment:
        stored = self._cluster.committed(self._group, decided=False).values()
        # Other offsets in this group were not committed by this application.
        read = [_NumberedDeployment(c.offset, Deployment.decode(c.metadata)) for c in stored]
        readable = [one for one in read if one.deployment is not None]
        return max(readable, key=lambda one: one.number, default=_NumberedDeployment())

    def check(self, has_stored_nothing: Callable[[Deployment], bool] = lambda _: False) -> None:
        """Raise TopologyChangedError if state would be lost or misread; call it before creation.

        Args:
            has_stored_nothing: returns whether the deployed topology has committed nothing yet, so
                that nothing can be lost.
        """
        try:
            before = self.before = self.read()
        except GroupDeniedError as error:
            self._log.warning("topology_not_read", reason=str(error))
            return
        if before is None or before == self._present:
            return
        differences = changes(before, self._present, application_id=self._application_id)
        refused = [str(change) for change in differences if change.refused]
        code = change_code(before, self._present)
        is_fine = bool(refused) and (
            is_accepted(self._accepted, code) or has_stored_nothing(before)
        )
        for change in differences:
            warns = change.refused or change.lets_go
            say = self._log.warning if warns else self._log.info
            accepted = change.refused and is_fine
            text = change.what if accepted else str(change)
            say(
                "topology_changed",
                refused=change.refused and not is_fine,
                accepted=accepted,
                change=text,
            )
        if refused and not is_fine:
            raise TopologyChangedError(
                refused, code, is_other=is_other_application(before, self._present)
            )

    def keep(self) -> bool:
        """Write the program's description after its topics exist, and return whether it worked."""
        try:
            stored = self._read()
            present = self._with_stored(stored.deployment)
            fitting = present.fitting()
            if fitting != present:
                self._log.warning("topology_shortened", reason=SHORTENED)
            number = stored.number if stored.deployment == fitting else stored.number + 1
            offset = CommittedOffset(number, fitting.encode())
            self._cluster.set_offsets(self._group, {self._tp: offset})
            self._has_fresh = bool(fitting.fresh)
        except (AccessError, FatalClientError, ResetRefusedError, ValueError) as error:
            self._log.warning("topology_not_stored", reason=str(error))
            return False
        return True

    def _with_stored(self, stored: Deployment | None) -> Deployment:
        """Return the program's description, completed by the stored description."""
        known, fresh = set(self.alongside), frozenset[str]()
        if stored is not None and stored.subs:
            if self._has_same_ownership(stored):
                known.update(stored.alongside)
            fresh = self._uncommitted(self._present.reads - stored.reads.difference(stored.fresh))
        return replace(
            self._present,
            alongside=tuple(sorted(known)[:VERSIONS_MAX]),
            fresh=tuple(sorted(fresh)),
        )

    def _uncommitted(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the topics with any partition without a committed offset."""
        tps = [TopicPartition(t, p) for t in topics for p in range(self._partitions[t])]
        if not tps:
            return frozenset()
        committed = self._cluster.committed_at(self._application_id, tps, decided=False)
        return frozenset(tp.topic for tp in tps if tp not in committed)

    def _has_same_ownership(self, stored: Deployment) -> bool:
        if not self._present.subs:
            return False
        present, other = (
            TopicOwnership.of(one, self._application_id) for one in (self._present, stored)
        )
        return present == other

    def running(self) -> None:
        """Mark the program as deployed; call it before the first task starts."""
        self._was_running = True
        self._is_running.set()

    def kept_every(self, seconds: float) -> Self:
        self._keep_every_s = seconds
        return self

    def __enter__(self) -> Self:
        # In a separate thread, so that processing does not wait for it.
        self._keeping.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._is_running.set()
        self._keeping.join(LAST_WRITE_S)

    def _keep_writing(self) -> None:
        self._is_running.wait()
        with suppress(StopRequestedError):
            if not self._was_running:
                return  # it was refused, or has ended before
            while not self._wait(self._next_s(stored=self.keep())):
                pass

    def _next_s(self, *, stored: bool) -> float:
        if self._has_fresh:
            return min(self._keep_every_s, FRESH_S)
        return self._keep_every_s if stored else min(self._keep_every_s, TRY_AGAIN_S)


def delete_description(application_id: str, cluster: OffsetClient) -> None:
    """Delete the description of the deployed topology: the next start is compared with nothing."""
    offsets = deletion_offsets(application_id, cluster)
    if offsets:
        cluster.set_offsets(topology_group(application_id), offsets)


def deletion_offsets(application_id: str, cluster: OffsetClient) -> Offsets:
    """Return the offsets to commit in the topology's group to delete the description, if any."""
    stored = cluster.committed(topology_group(application_id), decided=False)
    # Versions whose first input differs have written their descriptions at several partitions.
    last = max((c.offset for c in stored.values()), default=0)
    described = [tp for tp, c in stored.items() if c.metadata]
    return dict.fromkeys(described, CommittedOffset(last + 1))
