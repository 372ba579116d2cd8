"""What each worker counted, beside what the cluster and its listeners saw of it."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.simulation import SimulationResult
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.simulation.setup import Incarnation
from headrace.streams.simulation.world.cluster import SimulatedCluster
from headrace.streams.simulation.world.transactions import Txn
from headrace.streams.worker.worker import Worker

LOGGED = {
    "abort": "transaction_aborted",
    "replace_producer": "producer_replaced",
    "join_again": "member_replaced",
    "rebuild_state": "state_rebuilt",
    "read_again": "offset_lost",
    "restore_again": "restore_lost",
}
"""What is logged where a reaction is counted."""


def figures_that_differ(result: SimulationResult) -> list[str]:
    """What a worker counted that is not so, in words; of a run with exactly-once."""
    found = Recount(result._cluster)
    differing = [
        f"{life.name}: {problem}"
        for life in result._outcome.lives
        if life.worker is not None
        for problem in found.problems_of(life)
    ]
    return [*differing, *found.problems_of_all(result._outcome.lives)]


class Recount:
    """Counts what the transactions of a run have consumed, from the logs of the inputs."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._reached: dict[TopicPartition, int] = {}
        self.committed: dict[Txn, int] = {}
        """Records, by committed transaction."""
        for txn in cluster.transactions.decided:
            if txn.committed:
                self.committed[txn] = self._records(txn)

    def _records(self, txn: Txn) -> int:
        count = 0
        for place, committed in txn.offsets.get(self._cluster.group.name, {}).items():
            log = self._cluster.log(place)
            before = self._reached.get(place, 0)
            for offset in range(before, min(committed.offset, log.end)):
                count += log.entries[offset] is not None and log.is_final(offset)
            self._reached[place] = max(before, committed.offset)
        return count

    def _of(self, life: Incarnation, *, committed: bool) -> list[Txn]:
        transactions = self._cluster.transactions
        return [
            txn
            for txn in transactions.decided
            if txn.committed is committed
            and transactions.owners.get((txn.owner, txn.epoch)) is life
        ]

    def problems_of(self, life: Incarnation) -> Iterable[str]:
        """What is not so of what one life of a worker counted."""
        worker = life.worker
        assert worker is not None
        gathering, parts = worker._snapshots, worker._parts
        counters, transactions = parts.counters, parts.transactions
        mine = [txn for txn in self._of(life, committed=True) if txn.offsets]
        made = sum(self.committed[txn] for txn in mine)
        beyond = made - counters.records_committed
        doubtful = counters.undecided_commits
        # Of a commit that was under way at the end, nobody can know.
        cut = counters._ending is not None
        if not counters.commits <= len(mine) <= counters.commits + doubtful + cut:
            yield f"{len(mine)} commits made, {counters.commits} counted, {doubtful} undecided"
        elif beyond and not (counters.commits < len(mine) and 0 < beyond <= _undecided(worker)):
            yield f"{made} records committed, {counters.records_committed} counted"
        by_task = sum(own.committed for own in counters.tasks.values())
        if by_task != counters.records_committed:
            yield f"{by_task} records committed by tasks, {counters.records_committed} in all"
        processed = sum(own.processed for own in counters.tasks.values())
        if processed != worker.processed:
            yield f"{processed} records processed by tasks, {worker.processed} in all"
        if processed < counters.records_committed:
            yield f"{processed} records processed, {counters.records_committed} committed"
        open_ = transactions._begun_s is not None
        begun = life.steps["transaction_begun"]
        if begun != counters.commits + doubtful + gathering.aborted + open_:
            yield (
                f"{begun} transactions begun, {counters.commits} committed, {doubtful} undecided, "
                f"{gathering.aborted} aborted, {open_:d} open"
            )
        aborted = len(self._of(life, committed=False))
        if aborted > gathering.aborted + doubtful + open_:
            yield f"{aborted} aborted by the cluster, {gathering.aborted} counted"
        if transactions.replaced != life.producers - 1:
            yield f"{transactions.replaced} producers replaced, {life.producers} made"
        if parts.restorer.restored != life.watch.restored:
            yield f"{parts.restorer.restored} records restored, {life.watch.restored} told"
        for how, event in LOGGED.items():
            if counters.reactions.get(how, 0) != life.events[event] and how != "replace_producer":
                yield f"{event}: {life.events[event]} logged, {counters.reactions} counted"

    def problems_of_all(self, lives: Iterable[Incarnation]) -> Iterable[str]:
        """What is not so of all lives together."""
        workers = [life.worker for life in lives if life.worker is not None]
        counted = sum(worker._parts.counters.records_committed for worker in workers)
        undecided = sum(map(_undecided, workers))
        made = sum(self.committed.values())
        if not counted <= made <= counted + undecided:
            yield f"{made} records committed in all, {counted} counted and {undecided} undecided"


def _undecided(worker: Worker) -> int:
    """Records of which a worker could not tell, with those of a commit that its end has cut."""
    counters = worker._parts.counters
    return counters.undecided + (counters.open if counters._ending is not None else 0)
