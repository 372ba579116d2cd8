"""Which fault may happen at which call, how often, and what it does to the call."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from headrace.streams.simulation.world.coverage import Coverage
from headrace.streams.simulation.world.kernel import MS, SECOND, CrashError
from headrace.streams.simulation.world.process import Process
from headrace.streams.simulation.world.transactions import RefusedError

T = TypeVar("T")

_CRASHES = ("crash_before", "crash_after")
_REQUEST = ("retriable", "timeout_lost", "timeout_done", "delay", "stall", *_CRASHES)
_DECIDING = ("retriable", "timeout_lost", "timeout_done", "timeout_late", "fatal", "expire")

CALLS: Mapping[str, tuple[str, ...]] = {
    "init_transactions": _REQUEST,
    "produce": ("queue_full", "crash_before", "stall"),
    "delivery": ("delay", "abortable", "fatal", "lost_answer"),
    "producer.poll": ("stall", "crash_before"),
    "flush": ("stall", *_CRASHES),
    "send_offsets_to_transaction": (*_REQUEST, "abortable", "fatal", "expire"),
    "commit_transaction": (*_DECIDING, "abortable", "delay", "stall", *_CRASHES),
    "abort_transaction": (*_DECIDING, "delay", "stall", *_CRASHES),
    "consume": ("error", "max_poll", "stall", "crash_before"),
    "rebalance": ("stall",),
    "committed": (*_REQUEST, "partition_error"),
    "commit": _REQUEST,
    "end_offsets": ("delay", "stall", *_CRASHES),
    "start_offsets": ("delay", "crash_before"),
    "describe": ("delay", "stall", *_CRASHES),
    "delete_records": ("failure", "delay", *_CRASHES),
    "store.write": ("corrupted", "stall", *_CRASHES),
    "store.begin_restore": ("stall", *_CRASHES),
    "store.restore": ("corrupted", "stall", *_CRASHES),
    "store.end_restore": ("stall", *_CRASHES),
    "store.drop": _CRASHES,
    "store.open": ("corrupted", "stall", *_CRASHES),
    "probe": ("stall", "crash_before"),
}
"""Every fault that can happen, by the call that it happens to.

| fault | what happens |
|---|---|
| `retriable` | the call fails at once, and can be made again |
| `abortable` | the call fails, and the transaction must be aborted |
| `fatal` | the call fails, and the client is done |
| `expire` | the broker aborts the transaction as too old, then the call goes on |
| `timeout_lost` | the call times out, and has done nothing |
| `timeout_done` | the call times out, and has done what it should |
| `timeout_late` | the call times out, and does what it should some time later |
| `delay` | the call takes long |
| `stall` | the whole process stands still, often for longer than its session |
| `crash_before`, `crash_after` | the process is killed |
| `queue_full` | the client's queue has no room |
| `lost_answer` | a record is written, and the client does not hear of it |
| `error`, `partition_error` | an error comes as a result |
| `max_poll` | the member has not polled for too long, and is put out of the group |
| `corrupted` | the local files cannot be read |
| `failure` | the admin client gives up |
"""

SINK_CALLS: Mapping[str, tuple[str, ...]] = {
    "sink.positions": ("unreachable", "timeout_done", "delay", "stall", *_CRASHES),
    "sink.write": (
        "unreachable", "timeout_done", "timeout_late", "delay", "stall", *_CRASHES,
    ),
}  # fmt: skip
"""The same of tables outside of Kafka, for topologies that have some; `unreachable` is a connection
that is refused or lost before anything was done."""

WEIGHTS: Mapping[str, float] = {
    # What happens for every record or every turn would stop everything otherwise.
    **dict.fromkeys(
        ("produce", "producer.poll", "consume", "probe", "delivery", "start_offsets"), 1 / 12
    ),
    # Only where a plan has it in focus.
    "describe": 0.0,
    # What happens seldom is to be hit all the same.
    "abort_transaction": 8.0,
    "init_transactions": 2.0,
    "flush": 2.0,
    "commit": 3.0,
    "store.restore": 2.0,
    "store.end_restore": 2.0,
    "delete_records": 2.0,
    **dict.fromkeys(SINK_CALLS, 3.0),
    # Who stands still with callbacks to be served never hears what it has lost.
    "rebalance": 6.0,
}
"""How likely a fault is at a call, compared with others."""

FOCUSED = 0.7
"""How likely a fault is at the call and in the phase that a plan has in focus."""

STOPPED_WITH_WORK = 0.15
"""How likely a worker is told to stop when it begins a transaction, if `closing` is in focus."""

_RETRIABLE = (
    KafkaError._TRANSPORT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How much goes wrong.

    Args:
        rate: how likely a fault is at a call to a client or a store, while faults happen.
        crashes: how many workers are killed at a random moment, on average.
        stalls: how many are left standing at a random moment, on average.
        restarts: how many are stopped cleanly and started again, on average.
        longest_stall: how long at most, in seconds; more than 6 outlasts a session, as it is set in
            simulations, and more than 10 a transaction.
        lost_state: how likely a worker that died finds its local state gone, or an older copy.
        slow_markers: how likely a transaction's marker is written seconds late.
        foreign_transactions: whether the input has open and aborted transactions of others; only
            under exactly-once.
        backlog: whether all input is there before the first worker starts.
        compaction: how many times changelogs are compacted, on average.
        full_disks: how many times a host's disk is full for a while, on average.
        clock_jumps: how many times the clock on the wall jumps, back or forth, on average.
        twins: how many times a worker is started, on average, while another with its identity
            stands still; only under exactly-once, as nothing fences the other one otherwise.
        slow_restores: how likely nothing has come yet when a consumer without a group looks, so
            that other things happen in the middle of a restore.
        broker_rate: how many records per second the brokers take of a producer, from the first
            moment to the last; None for all at once.
        sink_rate: how many rows per second a table outside of Kafka takes; None for all at once.
        disaster: what happens once and may end the application, by its name in
            `headrace.streams.simulation.run.DISASTERS`; see `SimulationResult.refusals`.
        calls: only at these calls; None for all of
        `headrace.streams.simulation.world.faults.CALLS`.
        kinds: only these faults; None for all.
        focus: a call and a phase of `headrace.streams.simulation.world.coverage.PHASES` in which it
            is often struck, besides what else happens; for `closing` workers are stopped with work
            in hand.

    Example:
        >>> FaultPlan(rate=0.0, crashes=3).crashes
        3
    """

    rate: float = 0.02
    crashes: float = 1.0
    stalls: float = 0.7
    restarts: float = 0.7
    longest_stall: float = 16.0
    lost_state: float = 0.15
    slow_markers: float = 0.08
    foreign_transactions: bool = True
    backlog: bool = False
    compaction: float = 0.5
    full_disks: float = 0.0
    clock_jumps: float = 0.0
    twins: float = 0.0
    slow_restores: float = 0.0
    broker_rate: float | None = None
    sink_rate: float | None = None
    disaster: str | None = None
    calls: frozenset[str] | None = None
    kinds: frozenset[str] | None = None
    focus: tuple[str, str] | None = None


CALM = FaultPlan(
    rate=0.0,
    crashes=0,
    stalls=0,
    restarts=0,
    lost_state=0.0,
    slow_markers=0.0,
    foreign_transactions=False,
    compaction=0,
)
"""Nothing goes wrong."""


@dataclass(slots=True)
class Faults:
    """Draws faults, and counts those that happened by call and kind."""

    plan: FaultPlan
    random: random.Random
    is_on: bool = True
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    coverage: Coverage = field(default_factory=Coverage)
    _calls: dict[str, tuple[float, tuple[str, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        self._calls = {}
        for call, kinds in {**CALLS, **SINK_CALLS}.items():
            if plan.calls is not None and call not in plan.calls:
                continue
            chosen = tuple(k for k in kinds if plan.kinds is None or k in plan.kinds)
            if chosen:
                self._calls[call] = (plan.rate * WEIGHTS.get(call, 1.0), chosen)

    def draw(self, process: Process, call: str) -> str | None:
        """Decide what goes wrong with a call, if anything."""
        if not self.is_on:
            return None
        self.coverage.calls[call, process.phase] += 1
        found = self._calls.get(call)
        if found is None:
            return None
        likely = FOCUSED if self.plan.focus == (call, process.phase) else found[0]
        # Without a chance no dice are thrown, and seeds stay what they are.
        if not likely or self.random.random() >= likely:
            return None
        kind = self.random.choice(found[1])
        self.hit(process, call, kind)
        return kind

    def is_slow_to_restore(self) -> bool:
        """Whether nothing has come yet for a restore."""
        likely = self.plan.slow_restores
        return self.is_on and likely > 0 and self.random.random() < likely

    def is_told_to_stop(self, step: str) -> bool:
        """Whether a worker is told to stop at a step, as its last commit is to be struck."""
        if not self.is_on or self.plan.focus is None or step != "transaction_begun":
            return False
        return self.plan.focus[1] == "closing" and self.random.random() < STOPPED_WITH_WORK

    def hit(self, process: Process, call: str, kind: str) -> None:
        """Count a fault and note it."""
        self.counts[call, kind] += 1
        self.coverage.struck[call, process.phase] += 1
        process.note(f"{call}: ! {kind}")

    def stall_us(self) -> int:
        """How long a process stands: sometimes longer than its session or its transaction."""
        longest = self.plan.longest_stall
        if longest <= 5 or self.random.random() < 0.4:
            return int(self.random.uniform(0.05, min(3, longest)) * SECOND)
        return int(self.random.uniform(5, longest) * SECOND)

    def around(self, process: Process, call: str, effect: Callable[[], T]) -> T:
        """Do something that is not a request, with the faults that need no answer."""
        process.check()
        kind = self.draw(process, call)
        if kind == "crash_before":
            raise crash(process)
        if kind == "stall":
            process.stand(self.stall_us())
            process.settle()
        if kind == "delay":
            process.sleep(int(self.random.uniform(0.1, 2) * SECOND))
        result = effect()
        if kind == "crash_after":
            raise crash(process)
        return result


def crash(process: Process) -> CrashError:
    """Kill a process from within."""
    process.die()
    return CrashError(process.name)


def failure(code: int, text: str = "", **marks: bool) -> KafkaException:
    """Make a client's error."""
    return KafkaException(
        KafkaError(
            code,
            text or "simulated",
            marks.get("fatal", False),
            marks.get("retriable", False),
            marks.get("txn_requires_abort", False),
        )
    )


def request(
    faults: Faults,
    process: Process,
    call: str,
    effect: Callable[[], T],
    *,
    timeout_s: float,
    special: Callable[[str], None] | None = None,
) -> T:
    """Send a request to a broker and wait for the answer, with all that can go wrong on the way.

    Args:
        effect: what the broker does; raises `RefusedError`.
        special: does what is this client's own fault; may raise.

    Raises:
        RefusedError: the broker's answer.
        KafkaException: the client's own.
    """
    kernel = process.kernel
    process.check()
    kind = faults.draw(process, call)
    if kind == "crash_before":
        raise crash(process)
    if kind == "retriable":
        process.sleep(kernel.between(100, 20 * MS))
        raise failure(faults.random.choice(_RETRIABLE), retriable=True)
    if kind in ("timeout_lost", "timeout_done", "timeout_late"):
        _time_out(process, call, effect, kind, timeout_s)
    stands_later = kind == "stall" and faults.random.random() < 0.5
    if kind == "stall" and not stands_later:
        process.stand(faults.stall_us())
    elif kind == "delay":
        process.sleep(int(faults.random.uniform(0.1, 2) * SECOND))
    elif kind is not None and special is not None:
        special(kind)
    process.sleep(kernel.between(100, 2 * MS))
    deadline_us = kernel.now_us + int(timeout_s * SECOND)
    while True:
        try:
            result = effect()
            break
        except RefusedError as refused:
            if refused.code != KafkaError.CONCURRENT_TRANSACTIONS:
                process.sleep(kernel.between(50, MS))
                raise
            # The client asks again by itself.
            if kernel.now_us >= deadline_us:
                raise failure(KafkaError._TIMED_OUT, "transaction ends", retriable=True) from None
            process.sleep(kernel.between(MS, 20 * MS))
    if kind == "crash_after":
        raise crash(process)
    if stands_later:
        process.stand(faults.stall_us())
    process.sleep(kernel.between(50, MS))
    return result


def _time_out(
    process: Process,
    call: str,
    effect: Callable[[], Any],
    kind: str,
    timeout_s: float,
) -> None:
    kernel = process.kernel

    def arrive() -> None:
        try:
            effect()
        except RefusedError as refused:
            kernel.note("cluster", f"late {call} of {process.name} is refused: {refused.code}")
        else:
            if kind == "timeout_late":
                kernel.note("cluster", f"late {call} of {process.name} arrives")

    if kind == "timeout_done":
        kernel.after(kernel.between(100, 5 * MS), arrive)
    elif kind == "timeout_late":
        late_us = int(timeout_s * SECOND) + kernel.between(0, 3 * SECOND)
        kernel.after(late_us, arrive)
    process.sleep(int(timeout_s * SECOND))
    raise failure(KafkaError._TIMED_OUT, "timed out")
