"""Which host has which partition of a store: the group's own description says it.

    key ─ murmur2 ─► partition ─ assignment ─► member ─ client.id ─► endpoint

No topic is kept for it and no assignor is needed. What was heard is used for a short time, and then
looked up again beside the questions, so that none waits for the brokers. It may be wrong for as
long: whoever is asked looks at what its own workers have, says that it is somebody else's, and the
brokers are asked at once. While the group is rebalanced its description gives nobody anything;
what was known before holds then, as tasks that do not move go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.streams.admin.overview import leads_of, owner_of
from headrace.streams.config.endpoints import client_of, endpoint_of
from headrace.streams.errors import FatalClientError, StreamsError
from headrace.streams.kafka.protocols import GroupState, Member
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.queries.errors import NotReadableError

KEPT_S = 2.0
"""So old may be what was heard of the group; a look costs brokers and this host some milliseconds
of waiting, and there is one for all questions."""
AGAIN_S = 0.1
"""Not sooner is looked again, whoever says that he was sent to the wrong host."""
ASK_S = 5.0
"""How long brokers are asked for it."""


class AskedCluster(Protocol):
    """What is asked of a cluster."""

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """How many partitions those topics have that exist."""

    def group_state(self, group: str) -> GroupState:
        """A group's state, and who has what."""


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """A worker of the group.

    Args:
        machine: the address that it has for the brokers.
        endpoint: where its host serves its stores; None where it does not say.
        tasks: which it has, as ``0_3``.
    """

    id: str
    client_id: str
    machine: str
    endpoint: str | None
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Heard:
    """What the cluster said.

    Args:
        partitions: of each sub-topology whose inputs exist, by its number.
        owners: the endpoints, by sub-topology and partition; None of a member without one.
        endpoints: of all members.
        state: of the group.
        at_s: when it was asked.
        members: all of them, in the order of their clients.
    """

    partitions: Mapping[int, int]
    owners: Mapping[tuple[int, int], str | None]
    endpoints: frozenset[str]
    state: str
    at_s: float
    members: tuple[GroupAssignment, ...] = ()

    def are_all_at(self, host: str) -> bool:
        """Whether a host has all tasks, so that there is nobody else to ask."""
        return set(self.owners.values()) == {host} and self.endpoints == {host}


class PartitionLocator:
    """Host of each partition of a store, by the description of the group. Thread-safe.

    Args:
        group: the application's.
        plans: its sub-topologies.
        cluster: makes what is asked, when it is first.
        monotonic_s: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        group: str,
        plans: Sequence[SubPlan],
        cluster: Callable[[], AskedCluster],
        *,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._group = group
        self._plans = plans
        self._make_cluster = cluster
        self._cluster: AskedCluster | None = None
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._heard: Heard | None = None
        self._asked_s = float("-inf")
        self._is_looking = False

    def heard(self, *, at_most_s: float | None = None) -> Heard:
        """What the cluster said last.

        Args:
            at_most_s: how old it may be, where it has turned out to be wrong; the brokers are
                waited for then.

        Raises:
            NotReadableError: nothing is known, and no broker says it.
        """
        heard = self._heard
        now_s = self._monotonic_s()
        if heard is None or (at_most_s is not None and now_s - heard.at_s > at_most_s):
            return self._look(at_most_s or 0.0)
        if now_s - self._asked_s > KEPT_S and not self._is_looking:
            self._is_looking = True
            threading.Thread(target=self._look_beside, name="headrace-hosts", daemon=True).start()
        return heard

    def _look_beside(self) -> None:
        try:
            self._look(KEPT_S)
        except NotReadableError:
            pass  # what is known is used until somebody answers
        finally:
            self._is_looking = False

    def _look(self, at_most_s: float) -> Heard:
        with self._lock:
            now_s = self._monotonic_s()
            if self._heard is not None and now_s - self._asked_s <= max(at_most_s, AGAIN_S):
                return self._heard  # another thread has asked meanwhile
            self._asked_s = now_s
            try:
                self._heard = self._ask(now_s)
            except StreamsError as error:
                if self._heard is not None:
                    return self._heard
                raise NotReadableError(
                    f"which host has what is not known, as the group {self._group} cannot be "
                    f"described: {error}; route=none asks this host alone"
                ) from error
            return self._heard

    def _ask(self, now_s: float) -> Heard:
        if self._cluster is None:
            self._cluster = self._make_cluster()
        before = self._heard
        topics = dict.fromkeys(name for plan in self._plans for name in plan.topics.all_sources)
        counts = self._cluster.partition_counts(topics)
        group = self._cluster.group_state(self._group)
        if group.state == "dead" and before is not None:
            # No broker names it while its coordinator moves.
            raise FatalClientError(f"no broker knows the group {self._group} at this moment")
        there = [plan for plan in self._plans if all(t in counts for t in plan.topics.all_sources)]
        found = owner_of(leads_of(there, counts, group.members), group.members)
        owners = {
            (task.sub_topology, task.partition): endpoint_of(member.client_id)
            for task, member in found.items()
        }
        if not owners and before is not None and group.members:
            owners = dict(before.owners)  # it is being rebalanced
        endpoints = (endpoint_of(member.client_id) for member in group.members)
        return Heard(
            {plan.id: counts[plan.lead(counts)] for plan in there},
            owners,
            frozenset(one for one in endpoints if one is not None),
            group.state,
            now_s,
            _members(group, found),
        )


def _members(group: GroupState, owners: Mapping[TaskId, Member]) -> tuple[GroupAssignment, ...]:
    tasks: dict[Member, list[TaskId]] = {}
    for task, member in owners.items():
        tasks.setdefault(member, []).append(task)
    return tuple(
        GroupAssignment(
            member.id,
            client_of(member.client_id),
            member.host.removeprefix("/"),
            endpoint_of(member.client_id),
            tuple(map(str, sorted(tasks.get(member, ())))),
        )
        for member in sorted(group.members, key=lambda one: (one.client_id, one.id))
    )
