"""Producer client of a simulated cluster, with the API and errors of confluent_kafka.

    READY ─► IN_TRANSACTION ─► ENDING ─► READY
                 └─► ABORTABLE ─► ENDING        any state ─► FATAL

Records are queued and reach the brokers later, from a background that continues while the caller
does other work. After a commit or an abort that timed out the client is stuck, like the real
client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, Message

from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.simulation.world.cluster import SimulatedCluster
from headrace.streams.simulation.world.faults import Faults, failure, request
from headrace.streams.simulation.world.groups import Metadata
from headrace.streams.simulation.world.kernel import MS, NEVER_US, SECOND
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.streams.simulation.world.transactions import BrokerResponseError
from headrace.topology.context.environment import Headers

_THROTTLED_S = 0.1
"""Interval in seconds at which slow brokers accept records."""

Report = Callable[[KafkaError | None, Message], None]

_FENCING = frozenset(
    {
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_CANNOT = frozenset({KafkaError.INVALID_TXN_STATE})


class ClientState(Enum):
    """State of the client, which determines the allowed calls."""

    NEW = "new"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    ABORTABLE = "in a transaction that must be aborted"
    ENDING = "ending a transaction"
    FATAL = "fatal"


@dataclass(slots=True)
class _SentRecord:
    tp: TopicPartition
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers | None
    report: Report | None


class SimulatedProducer:
    """Producer client of a simulated cluster, with confluent_kafka's API and errors."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        process: SimulatedProcess,
        faults: Faults,
        config: dict[str, Any],
        *,
        life: object = None,
    ) -> None:
        self._cluster = cluster
        self._kernel = cluster.kernel
        self._process = process
        self._faults = faults
        self._life = life
        self._id: str | None = config.get("transactional.id")
        timeout_ms = config.get("transaction.timeout.ms", 60_000)
        self._timeout_us = int(str(timeout_ms)) * MS
        self._only_errors = bool(config.get("delivery.report.only.error"))
        self._on_delivery: Report | None = config.get("on_delivery")
        self._state = ClientState.READY if self._id is None else ClientState.NEW
        self._epoch = -1
        self._has_identity = False
        self._registered = False
        """Whether the broker knows the transaction."""
        self._failure = (0, "")
        self._fatal_reported = True
        self._queue: deque[_SentRecord] = deque()
        self._reports: deque[tuple[Report, KafkaError | None, Message]] = deque()
        self._delivery_due = False

    def __len__(self) -> int:
        return len(self._queue) + len(self._reports)

    # -- records -------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Report | None = None,
        partitioner: object = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        del partitioner
        process = self._process
        process.check()
        kind = self._faults.draw(process, "produce")
        if kind == "queue_full":
            raise BufferError("Local: Queue full")
        self._faults.strike(process, kind)
        if self._state is ClientState.FATAL:
            raise failure(KafkaError._FATAL, self._failure[1], fatal=True)
        if self._id is not None and self._state is not ClientState.IN_TRANSACTION:
            raise failure(KafkaError._STATE, "Local: Erroneous state")
        try:
            tp = self._cluster.route(topic, key, partition)
        except BrokerResponseError as refused:
            raise failure(refused.code, refused.text) from None
        # The client takes 0 for no timestamp.
        when_ms = timestamp or self._kernel.now_ms()
        report = on_delivery or self._on_delivery
        self._queue.append(_SentRecord(tp, key, value, when_ms, headers, report))
        if not self._delivery_due:
            self._deliver_later(self._kernel.between(200, 6 * MS))

    def _deliver_later(self, delay_us: int) -> None:
        self._delivery_due = True
        self._process.when_up(delay_us, self._deliver)

    def _deliver(self) -> None:
        """Write the queued records in the background; the order of partitions is random."""
        self._delivery_due = False
        if self._state is ClientState.FATAL or not self._queue:
            self._process.wake()
            return
        kind = self._faults.draw(self._process, "delivery")
        if kind == "abortable":
            self._fail_delivery(KafkaError._MSG_TIMED_OUT)
        elif kind == "fatal":
            self._become_fatal(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence lost")
        elif kind == "delay":
            self._deliver_later(self._kernel.between(50 * MS, 2 * SECOND))
            return
        elif (rate := self._faults.plan.broker_rate) is not None:
            count = max(1, int(rate * _THROTTLED_S))
            self._write(lost_answer=kind == "lost_answer", count=count)
            if self._queue and not self._delivery_due:
                self._deliver_later(int(count / rate * SECOND))
        else:
            self._write(lost_answer=kind == "lost_answer")
        if self._queue and not self._delivery_due:
            self._deliver_later(self._kernel.between(200, 5 * MS))
        self._process.wake()

    def _write(self, *, lost_answer: bool, count: int | None = None) -> None:
        queue = list(self._queue)[:count]
        tps = list(dict.fromkeys(record.tp for record in queue))
        self._kernel.random.shuffle(tps)
        if len(tps) > 1 and self._kernel.chance(0.1):
            tps.pop()  # it is late
        try:
            for tp in tps:
                self._write_to(tp, [r for r in queue if r.tp == tp], lost_answer)
        except BrokerResponseError as refused:
            if refused.code == KafkaError.CONCURRENT_TRANSACTIONS:
                # The previous transaction has not ended in all partitions: the client retries.
                # Written records are not in the queue any more.
                self._deliver_later(self._kernel.between(MS, 10 * MS))
                return
            self._take(refused)

    def _write_to(self, tp: TopicPartition, records: list[_SentRecord], lost_answer: bool) -> None:
        cluster = self._cluster
        txn = None
        if self._id is not None:
            txn = cluster.transactions.join(self._id, self._epoch, tp)
            self._registered = True
        error = KafkaError(KafkaError._MSG_TIMED_OUT, "simulated") if lost_answer else None
        for r in records:
            message = cluster.append(r.tp, r.key, r.value, r.timestamp_ms, r.headers, txn)
            self._report(r, error, message)
        written = set(map(id, records))
        self._queue = deque(r for r in self._queue if id(r) not in written)
        if lost_answer and self._id is not None:
            self._become_abortable(KafkaError._MSG_TIMED_OUT, "a record was not acknowledged")

    def _report(self, record: _SentRecord, error: KafkaError | None, message: Message) -> None:
        if record.report is not None and (error is not None or not self._only_errors):
            self._reports.append((record.report, error, message))

    def _fail_delivery(self, code: int) -> None:
        for r in self._queue:
            message = Message(topic=r.tp.topic, partition=r.tp.partition)
            self._report(r, KafkaError(code, "simulated"), message)
        self._queue.clear()
        if self._id is not None:
            self._become_abortable(code, "a record could not be delivered")

    def poll(self, timeout: float = -1) -> int:
        self._process.check()
        self._faults.around(self._process, "producer.poll", lambda: None)
        if self._queue:
            # Waiting for a report takes time; otherwise a loop would never end.
            self._process.sleep(self._kernel.between(100, MS))
        elif timeout > 0 and not self._reports:
            self._process.sleep(int(timeout * SECOND))
        return self._serve()

    def _serve(self) -> int:
        if not self._fatal_reported:
            self._fatal_reported = True
            raise failure(self._failure[0], self._failure[1], fatal=True)
        served = len(self._reports)
        for _ in range(served):
            report, error, message = self._reports.popleft()
            report(error, message)
        return served

    def flush(self, timeout: float = -1) -> int:
        self._faults.around(self._process, "flush", lambda: None)
        self._await_delivery(NEVER_US if timeout < 0 else int(timeout * SECOND))
        self._serve()
        return len(self)

    def _await_delivery(self, timeout_us: int) -> None:
        deadline_us = self._kernel.now_us + timeout_us
        while self._queue and self._state is not ClientState.FATAL:
            left_us = deadline_us - self._kernel.now_us
            if left_us <= 0:
                return
            self._process.sleep(min(left_us, SECOND))

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Discard the queued records; some of them may already be in flight and are written."""
        del in_queue, in_flight, blocking
        self._process.check()
        flying = [r for r in self._queue if self._kernel.chance(0.5)]
        if self._id is None and self._state is not ClientState.FATAL and flying:
            for r in flying[: self._kernel.random.randrange(len(flying) + 1)]:
                self._cluster.append(r.tp, r.key, r.value, r.timestamp_ms, r.headers, None)
        self._queue.clear()

    # -- transactions --------------------------------------------------------------------------

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> None:
        """Do nothing: coordinators are known without topic metadata here."""
        del topic, timeout
        self._process.check()

    def init_transactions(self, timeout: float) -> None:
        assert self._id is not None
        transactions, identity = self._cluster.transactions, self._id
        self._require(ClientState.NEW)
        # The real client sends a second request in parallel, and keeps the older epoch.
        assert not self._has_identity, "a client requests its identity a second time"
        self._has_identity = True
        self._epoch = self._request(
            "init_transactions", lambda: transactions.init(identity, self._timeout_us), timeout
        )
        transactions.owners[identity, self._epoch] = self._life
        self._state = ClientState.READY
        self._process.note(f"init_transactions: epoch {self._epoch}")

    def begin_transaction(self) -> None:
        self._process.check()
        self._require(ClientState.READY)
        self._state = ClientState.IN_TRANSACTION
        self._registered = False

    def send_offsets_to_transaction(
        self,
        positions: Sequence[confluent_kafka.TopicPartition],
        metadata: Metadata,
        timeout: float,
    ) -> None:
        assert self._id is not None
        self._require(ClientState.IN_TRANSACTION)
        if not positions:
            return
        offsets = {
            TopicPartition(p.topic, p.partition): CommittedOffset(p.offset, p.metadata or "")
            for p in positions
        }
        text = ", ".join(f"{tp}@{c.offset}" for tp, c in offsets.items())
        self._process.note(f"send_offsets: {text} in generation {metadata.generation}")
        add = partial(self._cluster.transactional_offsets, self._id, self._epoch, offsets, metadata)
        try:
            # Even if the response is lost, the broker may know the transaction.
            self._registered = True
            self._request("send_offsets_to_transaction", add, timeout)
        except BrokerResponseError as refused:
            self._become_abortable(refused.code, "offsets refused")
            raise failure(refused.code, "offsets refused", txn_requires_abort=True) from None

    def commit_transaction(self, timeout: float) -> None:
        self._require(ClientState.IN_TRANSACTION)
        self._await_delivery(int(timeout * SECOND))
        self._require(ClientState.IN_TRANSACTION)
        if self._queue:
            raise failure(KafkaError._TIMED_OUT, "records are still under way", retriable=True)
        self._end("commit_transaction", timeout, committed=True)

    def abort_transaction(self, timeout: float) -> None:
        self._require(ClientState.IN_TRANSACTION, ClientState.ABORTABLE)
        self._queue.clear()
        self._end("abort_transaction", timeout, committed=False)

    def _end(self, call: str, timeout: float, *, committed: bool) -> None:
        identity = self._id
        assert identity is not None
        before, self._state = self._state, ClientState.ENDING
        transactions, epoch = self._cluster.transactions, self._epoch
        if self._registered:
            end = partial(transactions.end, identity, epoch, committed=committed)
            try:
                self._request(call, end, timeout)
            except confluent_kafka.KafkaException as error:
                cause = error.args[0]
                # A retriable error does not change the client's state.
                if self._state is ClientState.ENDING and (
                    cause.retriable() or cause.txn_requires_abort()
                ):
                    self._state = before
                raise
        else:
            self._process.sleep(self._kernel.between(50, MS))
        self._state = ClientState.READY
        self._registered = False
        self._process.note(f"{call}: done")

    def _request(self, call: str, effect: Callable[[], Any], timeout_s: float) -> Any:
        """Send a request to the coordinator; a refusal sets the client's state and error."""

        def special(kind: str) -> None:
            if kind == "expire":
                assert self._id is not None
                self._cluster.transactions.expire(self._id)
            elif kind == "fatal":
                self._become_fatal(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence lost")
                raise failure(*self._failure, fatal=True)
            elif kind == "abortable":
                self._become_abortable(KafkaError._MSG_TIMED_OUT, "must be aborted")
                raise failure(*self._failure, txn_requires_abort=True)

        try:
            return request(
                self._faults, self._process, call, effect, timeout_s=timeout_s, special=special
            )
        except BrokerResponseError as refused:
            if refused.code in _FENCING or refused.code in _CANNOT:
                self._take(refused)
                raise failure(*self._failure, fatal=True) from None
            raise

    # -- states --------------------------------------------------------------------------------

    def _require(self, *states: ClientState) -> None:
        self._process.check()
        if self._state in states:
            return
        if self._state is ClientState.FATAL:
            raise failure(*self._failure, fatal=True)
        if self._state is ClientState.ABORTABLE:
            raise failure(*self._failure, txn_requires_abort=True)
        raise failure(KafkaError._STATE, f"not valid while {self._state.value}")

    def _take(self, refused: BrokerResponseError) -> None:
        if refused.code in _FENCING:
            self._become_fatal(KafkaError._FENCED, f"fenced: {refused.text}")
        else:
            self._become_fatal(refused.code, refused.text or "refused")

    def _become_fatal(self, code: int, text: str) -> None:
        if self._state is not ClientState.FATAL:
            self._state = ClientState.FATAL
            self._failure = (code, text)
            self._fatal_reported = False
            self._process.note(f"producer is done: {text}")
            self._queue.clear()

    def _become_abortable(self, code: int, text: str) -> None:
        if self._state is not ClientState.FATAL:
            self._state = ClientState.ABORTABLE
            self._failure = (code, text)

    def close(self, timeout: float = -1) -> None:
        del timeout
        self._process.check()
        self._queue.clear()
