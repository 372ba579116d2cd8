"""Transaction coordinator of a simulated cluster, as librdkafka 2.16 uses it.

    EMPTY ─► ONGOING ─► PREPARE_COMMIT ─► COMPLETE_COMMIT ─► ONGOING …
                 └────► PREPARE_ABORT ──► COMPLETE_ABORT ──► ONGOING …

A transaction is decided when its end is prepared. Its markers are written later, at a different
time in each partition: offsets can be visible while a changelog has no marker yet. The epoch is
incremented by each `init` and each expiry, not by each transaction (EndTxn v1), so a late request
ends any transaction that its producer has open at that time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from confluent_kafka import KafkaError

from headrace.streams.kafka.protocols import Offsets, TopicPartition
from headrace.streams.simulation.world.kernel import MS, SECOND, Kernel
from headrace.streams.testing.local_cluster import Transaction


class BrokerResponseError(Exception):
    """Error response of a broker."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


@dataclass(slots=True, eq=False)
class Txn(Transaction):
    """Transaction of a producer; `committed` is the decision of the coordinator."""

    owner: str = ""
    epoch: int = 0
    markers_due: int = 0


class TransactionState(Enum):
    """State of a transactional.id."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare commit"
    PREPARE_ABORT = "prepare abort"
    COMPLETE_COMMIT = "complete commit"
    COMPLETE_ABORT = "complete abort"

    @property
    def is_prepared(self) -> bool:
        """Whether markers must still be written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


@dataclass(slots=True, eq=False)
class TransactionalId:
    """Transactional.id with its epoch, and its current or last transaction."""

    name: str
    timeout_us: int
    epoch: int = -1
    state: TransactionState = TransactionState.EMPTY
    txn: Txn | None = None


class TransactionCoordinator:
    """Transaction coordinator of a simulated cluster.

    Args:
        write_marker: writes a marker to a partition, or makes a group's offsets final.
        pend: called with a transaction that contains offsets.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        write_marker: Callable[[TopicPartition | None, Txn], None],
        pend: Callable[[Txn], None],
    ) -> None:
        self._kernel = kernel
        self._write_marker = write_marker
        self._pend = pend
        self.slow = 0.0
        """The probability that a marker is written much later, as by an unavailable broker."""
        self.identities: dict[str, TransactionalId] = {}
        self.decided: list[Txn] = []
        """All decided transactions, in this order."""
        self.owners: dict[tuple[str, int], object] = {}
        """The process whose producer had each epoch of an identity, if known."""

    def init(self, name: str, timeout_us: int) -> int:
        """Fence the previous producer, abort its open transaction, and return the new epoch."""
        identity = self.identities.setdefault(name, TransactionalId(name, timeout_us))
        if identity.state is TransactionState.ONGOING:
            identity.epoch += 1
            self._decide(identity, committed=False)
        if identity.state.is_prepared:
            raise BrokerResponseError(KafkaError.CONCURRENT_TRANSACTIONS)
        identity.epoch += 1
        identity.state = TransactionState.EMPTY
        identity.timeout_us = timeout_us
        return identity.epoch

    def join(self, name: str, epoch: int, tp: TopicPartition | None) -> Txn:
        """Add a partition, or a group's offsets (None), to the producer's transaction."""
        identity = self._own(name, epoch)
        if identity.state.is_prepared:
            raise BrokerResponseError(KafkaError.CONCURRENT_TRANSACTIONS)
        if identity.state is not TransactionState.ONGOING:
            identity.state = TransactionState.ONGOING
            identity.txn = Txn(owner=name, epoch=epoch)
            self._expire_later(identity, identity.txn)
        assert identity.txn is not None
        if tp is not None:
            identity.txn.partitions[tp] = None
        return identity.txn

    def add_offsets(self, name: str, epoch: int, group: str, offsets: Offsets) -> None:
        txn = self.join(name, epoch, None)
        txn.offsets.setdefault(group, {}).update(offsets)
        self._pend(txn)

    def end(self, name: str, epoch: int, *, committed: bool) -> None:
        identity = self._own(name, epoch)
        if identity.state is TransactionState.ONGOING:
            self._decide(identity, committed=committed)
            return
        if identity.state.is_prepared:
            wanted = (
                TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
            )
            if identity.state is wanted:
                raise BrokerResponseError(KafkaError.CONCURRENT_TRANSACTIONS)
            raise BrokerResponseError(KafkaError.INVALID_TXN_STATE)
        complete = (
            TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        )
        if identity.state is not complete:
            raise BrokerResponseError(KafkaError.INVALID_TXN_STATE)

    def expire(self, name: str) -> bool:
        identity = self.identities.get(name)
        if identity is None or identity.state is not TransactionState.ONGOING:
            return False
        self._kernel.note("cluster", f"transaction of {name} expires")
        identity.epoch += 1
        self._decide(identity, committed=False)
        return True

    @property
    def busy(self) -> bool:
        return any(
            i.state is TransactionState.ONGOING or i.state.is_prepared
            for i in self.identities.values()
        )

    def _own(self, name: str, epoch: int) -> TransactionalId:
        identity = self.identities.get(name)
        if identity is None:
            raise BrokerResponseError(KafkaError.INVALID_PRODUCER_ID_MAPPING)
        if identity.epoch != epoch:
            raise BrokerResponseError(
                KafkaError.PRODUCER_FENCED, f"epoch {epoch} of {identity.epoch}"
            )
        return identity

    def _expire_later(self, identity: TransactionalId, txn: Txn) -> None:
        def expire() -> None:
            if identity.txn is txn and txn.committed is None:
                self.expire(identity.name)

        self._kernel.after(identity.timeout_us, expire)

    def _decide(self, identity: TransactionalId, *, committed: bool) -> None:
        txn = identity.txn
        assert txn is not None
        assert txn.committed is None
        txn.committed = committed
        self.decided.append(txn)
        identity.state = (
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        )
        targets: list[TopicPartition | None] = list(txn.partitions)
        if txn.offsets:
            targets.append(None)
        txn.markers_due = len(targets)
        verb = "commits" if committed else "aborts"
        self._kernel.note("cluster", f"{identity.name} {verb}: {_describe(txn)}")
        if not targets:
            self._completed(identity, txn)
        for target in targets:
            delay_us = self._kernel.between(50, 3 * MS)
            if self._kernel.chance(self.slow):
                delay_us = self._kernel.between(20 * MS, 3 * SECOND)
            self._kernel.after(delay_us, lambda t=target: self._mark(identity, txn, t))  # type: ignore[misc]

    def _mark(self, identity: TransactionalId, txn: Txn, target: TopicPartition | None) -> None:
        self._write_marker(target, txn)
        txn.markers_due -= 1
        if txn.markers_due == 0:
            self._completed(identity, txn)

    def _completed(self, identity: TransactionalId, txn: Txn) -> None:
        assert identity.txn is txn
        identity.state = (
            TransactionState.COMPLETE_COMMIT if txn.committed else TransactionState.COMPLETE_ABORT
        )


def _describe(txn: Txn) -> str:
    offsets = ", ".join(
        f"{tp}@{c.offset}" for found in txn.offsets.values() for tp, c in found.items()
    )
    return (
        f"records in {', '.join(map(str, txn.partitions)) or 'nothing'}, offsets {offsets or '-'}"
    )
