"""Stores of an application, readable while its workers run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import AdminClient
from headrace.streams.metrics.snapshots import ApplicationSnapshot
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan
from headrace.streams.queries.committed_rows import (
    AgeLimit,
    CommittedRows,
    LocalHost,
    TaskReport,
    task_reports,
)
from headrace.streams.queries.descriptors import StoreDescriptor, describe_stores, store_of
from headrace.streams.queries.errors import (
    ApplicationFailedError,
    NotReadableError,
    StoppingError,
    TooOldError,
    WrongQueryError,
)
from headrace.streams.queries.locator import REQUEST_TIMEOUT_S, PartitionLocator
from headrace.streams.queries.query_queue import Workers
from headrace.streams.queries.readers import READERS, StoreReader
from headrace.streams.queries.replicas import ReplicaTrackers
from headrace.topology.errors import require_timedelta

if TYPE_CHECKING:
    from headrace.streams.queries.answers import PartitionPosition

REPORTS_MAX_AGE_S = 0.05
_RETRY_S = 0.01


class Queries:
    """Stores of an application on this host, readable while its workers run. Thread-safe.

    Args:
        snapshot: returns the reports of this host's workers; None without reports.
        workers: queries the workers of this host for rows in their memory.
        cluster: creates the client that looks up the group's assignment; None is the live client.
        monotonic_s: the clock of the reports.
        require_working: raises if the application has failed in this process.
    """

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        global_plans: Sequence[GlobalPlan] = (),
        *,
        snapshot: Callable[[], ApplicationSnapshot] | None = None,
        workers: Workers = lambda: None,
        cluster: Callable[[], AdminClient] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        require_working: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.plans = tuple(plans)
        self.global_plans = tuple(global_plans)
        self.application = config.application_id
        self.host = config.application_server
        self.locator = PartitionLocator(
            config.application_id,
            plans,
            cluster or (lambda: _live_cluster(config)),
            monotonic_s=monotonic_s,
        )
        self.stores: Mapping[str, StoreDescriptor] = describe_stores(plans, global_plans, config)
        self._snapshot = snapshot
        self._workers = workers
        self._monotonic_s = monotonic_s
        self._reports: tuple[float, Mapping[str, TaskReport]] = (float("-inf"), {})
        self._replicas = ReplicaTrackers(
            config.state_dir / config.application_id, monotonic_s=monotonic_s
        )
        self._local = LocalHost(
            replicas=self._replicas,
            reports=self._task_reports,
            now_ms=now_ms,
            workers=lambda: self._workers(),
            endpoint=self.host,
            require_working=require_working,
        )
        self.reports_of = self._local.reports_of

    def _task_reports(self) -> Mapping[str, TaskReport]:
        if self._snapshot is None:
            return {}
        now_s = self._monotonic_s()
        if now_s - self._reports[0] > REPORTS_MAX_AGE_S:
            self._reports = (now_s, task_reports(self._snapshot(), now_s))
        return self._reports[1]

    def store(self, name: str, *, max_age: timedelta | None = None) -> Any:
        """Return the reader of a store, by its kind (see `headrace.streams.queries.readers`).

        If `max_age` is None, rows that a task has left on this host more than a minute ago are
        refused (see `headrace.streams.queries.committed_rows`).
        """
        if max_age is not None:
            require_timedelta("max_age", max_age)
        most_ms = None if max_age is None else round(max_age.total_seconds() * 1000)
        return self.reader(name, age=AgeLimit(most_ms))

    def reader(
        self,
        name: str,
        *,
        only: frozenset[int] | None = None,
        partitions: int | None = None,
        age: AgeLimit | None = None,
    ) -> StoreReader[Any, Any]:
        """Return a reader of some partitions; None is all on this host.

        `partitions` is the partition count, if known. Without `age`, rows of any age are accepted.
        """
        store = store_of(self.stores, self.application, name)
        return READERS[store.kind](
            store, lambda: CommittedRows(store, self._local, only, partitions, age)
        )

    def are_at_work(self) -> bool:
        return self._replicas.are_at_work()

    def require_read(
        self, name: str, topic: str | None, partition: int, partitions: int | None
    ) -> None:
        """Raise WrongQueryError if the tasks that own a store can never reach a position.

        Without `topic` it is of the store's own changelog; `partitions` is None if unknown.
        """
        store = store_of(self.stores, self.application, name)
        read = {t for p in self.plans if p.id == store.sub_topology for t in p.topics.all_sources}
        if topic is not None and topic not in read:
            there = ", ".join(sorted(read)) or "none that commits offsets"
            raise WrongQueryError(
                f"min_position: the tasks of store {name!r} do not read topic {topic[:80]!r} "
                f"themselves. Use a topic that they read: {there}"
            )
        if partitions is not None and partition >= partitions:
            raise WrongQueryError(
                f"min_position: partition {partition} of store {name!r} does not exist. Use 0 to "
                f"{partitions - 1}"
            )

    def wait(
        self,
        name: str,
        is_there: Callable[[PartitionPosition], bool],
        *,
        partition: int,
        timeout_s: float,
        fresh: bool = True,
        is_earlier: bool = False,
        ended: threading.Event | None = None,
    ) -> None:
        """Wait until a partition of a store contains the caller's own writes.

        Args:
            fresh: update the view of the files first, because reports may be ahead of the view;
                otherwise it is updated only if the last view has not reached the position.
            is_earlier: whether the position comes from an earlier result; changes the message.
            ended: set when the process that answers stops; raises StoppingError.

        Raises:
            TooOldError: the position was not reached in time.
            ApplicationFailedError: the application has failed in this process.
        """
        store = store_of(self.stores, self.application, name)
        give_up_s = self._monotonic_s() + timeout_s
        ended = ended or threading.Event()
        while True:
            try:
                source = CommittedRows(store, self._local)
                # Rows that are read after a report contain everything in the report.
                part = next(p for p in source.parts() if p.shown_partition in (partition, None))
                with source.read(part, fresh=fresh) as access:
                    pass
                position = access.position
                assert position is not None
                if is_there(position):
                    return
                status = f"is at offset {position.offset} of its changelog"
                if not fresh:
                    fresh = True
                    continue
            except ApplicationFailedError:
                raise
            except StopIteration:
                status = "is not on this host"
            except NotReadableError as error:
                status = f"cannot be read: {error}"
            if self._monotonic_s() >= give_up_s:
                here = f"partition {partition} of store {name!r} {status}"
                if is_earlier:
                    raise TooOldError(
                        f"{here}, but an earlier answer was newer, and this host has not caught up "
                        f"after {timeout_s:g} s. Retry later"
                    )
                raise TooOldError(
                    f"{here} and has not reached the requested position after {timeout_s:g} s. "
                    "Retry, or request an earlier position"
                )
            if ended.wait(_RETRY_S):
                raise StoppingError

    def close(self) -> None:
        self._replicas.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _live_cluster(config: StreamsConfig) -> AdminClient:
    from headrace.streams.kafka.group_admin import RetryingAdmin  # loads Kafka's client

    return RetryingAdmin(config.admin_config(), timeout_s=REQUEST_TIMEOUT_S)
