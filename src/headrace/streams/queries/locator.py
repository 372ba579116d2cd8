"""Host of each partition of a store, from the group description.

    key ─ murmur2 ─► partition ─ assignment ─► member ─ client.id ─► endpoint

This needs neither a topic nor an assignor. A description is used for a short time and then
refreshed in the background, so that no query waits for the brokers. It may be outdated for as long:
the queried host checks its own workers and reports that another host has the task, and then the
brokers are queried immediately. During a rebalance the description contains no assignment; the last
known assignment is used, because tasks that do not move continue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.streams.admin.overview import leads_of, owner_of
from headrace.streams.config.endpoints import client_of, endpoint_of
from headrace.streams.errors import FatalClientError, StreamsError
from headrace.streams.kafka.protocols import AdminClient, GroupState, Member
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.queries.descriptors import StoreDescriptor
from headrace.streams.queries.errors import NotReadableError

MAX_AGE_S = 2.0
"""Maximum age of the group description in seconds. A request takes a few milliseconds, and serves
all queries."""
PAUSE_S = 0.1
"""Minimum seconds between two requests, even if a description has turned out to be wrong."""
REQUEST_TIMEOUT_S = 5.0
"""Time-out in seconds of a request to the brokers."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Worker of the group with its tasks, such as ``0_3``.

    `machine` is its address as the brokers see it; its host serves its stores at `endpoint`.
    """

    id: str
    client_id: str
    machine: str
    endpoint: str | None
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Description of the group at a certain time.

    Args:
        partitions: the partition count of each sub-topology whose inputs exist, by its number.
        owners: the endpoints by sub-topology and partition; None for a member without an endpoint.
        endpoints: the endpoints of all members.
        state: the state of the group.
        at_s: the time of the request.
        members: all members, ordered by client.id.
    """

    partitions: Mapping[int, int]
    owners: Mapping[tuple[int, int], str | None]
    endpoints: frozenset[str]
    state: str
    at_s: float
    members: tuple[GroupMember, ...] = ()

    def host_of(self, store: StoreDescriptor, partition: int) -> str | None:
        assert store.sub_topology is not None, store.name
        return self.owners.get((store.sub_topology, partition))

    def are_all_at(self, host: str) -> bool:
        """Return whether a host has all tasks, so that no other host must be queried."""
        return set(self.owners.values()) == {host} and self.endpoints == {host}


class PartitionLocator:
    """Host of each partition of a store, from the group description. Thread-safe.

    `cluster` creates the client at the first request.
    """

    def __init__(
        self,
        group: str,
        plans: Sequence[SubPlan],
        cluster: Callable[[], AdminClient],
        *,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._group = group
        self._plans = plans
        self._make_cluster = cluster
        self._cluster: AdminClient | None = None
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._latest: GroupDescription | None = None
        self._requested_s = float("-inf")
        self._is_refreshing = False

    def description(self, *, at_most_s: float | None = None) -> GroupDescription:
        """Return the last known description of the group.

        If it has turned out to be wrong, `at_most_s` is its maximum age, and this waits for the
        brokers. NotReadableError is raised if no description is known, and no broker responds.
        """
        latest = self._latest
        now_s = self._monotonic_s()
        if latest is None or (at_most_s is not None and now_s - latest.at_s > at_most_s):
            return self._refresh(at_most_s or 0.0)
        if now_s - self._requested_s > MAX_AGE_S and not self._is_refreshing:
            self._is_refreshing = True
            threading.Thread(
                target=self._refresh_in_background, name="headrace-hosts", daemon=True
            ).start()
        return latest

    def _refresh_in_background(self) -> None:
        try:
            self._refresh(MAX_AGE_S)
        except NotReadableError:
            pass  # the last description is used until a broker responds
        finally:
            self._is_refreshing = False

    def _refresh(self, at_most_s: float) -> GroupDescription:
        with self._lock:
            now_s = self._monotonic_s()
            if self._latest is not None and now_s - self._requested_s <= max(at_most_s, PAUSE_S):
                return self._latest  # another thread has refreshed it
            self._requested_s = now_s
            try:
                self._latest = self._describe(now_s)
            except StreamsError as error:
                if self._latest is not None:
                    return self._latest
                raise NotReadableError(
                    f"the hosts of the partitions are unknown, because the group {self._group} "
                    f"cannot be described: {error}. Use route=none to query this host only"
                ) from error
            return self._latest

    def _describe(self, now_s: float) -> GroupDescription:
        if self._cluster is None:
            self._cluster = self._make_cluster()
        before = self._latest
        topics = dict.fromkeys(name for plan in self._plans for name in plan.topics.all_sources)
        counts = self._cluster.partition_counts(topics)
        group = self._cluster.group_state(self._group)
        if group.state == "dead" and before is not None:
            # Brokers do not know the group while its coordinator moves.
            raise FatalClientError(f"no broker knows the group {self._group} now")
        there = [plan for plan in self._plans if all(t in counts for t in plan.topics.all_sources)]
        owner = owner_of(leads_of(there, counts, group.members), group.members)
        owners = {
            (task.sub_topology, task.partition): endpoint_of(member.client_id)
            for task, member in owner.items()
        }
        if not owners and before is not None and group.members:
            owners = dict(before.owners)  # the group is rebalancing
        endpoints = (endpoint_of(member.client_id) for member in group.members)
        return GroupDescription(
            {plan.id: counts[plan.subscribed_topic(counts)] for plan in there},
            owners,
            frozenset(one for one in endpoints if one is not None),
            group.state,
            now_s,
            _members(group, owner),
        )


def _members(group: GroupState, owners: Mapping[TaskId, Member]) -> tuple[GroupMember, ...]:
    tasks: dict[Member, list[TaskId]] = {}
    for task, member in owners.items():
        tasks.setdefault(member, []).append(task)
    return tuple(
        GroupMember(
            member.id,
            client_of(member.client_id),
            member.host.removeprefix("/"),
            endpoint_of(member.client_id),
            tuple(map(str, sorted(tasks.get(member, ())))),
        )
        for member in sorted(group.members, key=lambda one: (one.client_id, one.id))
    )
