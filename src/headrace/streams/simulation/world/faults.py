"""Faults of a run: kinds by call, probabilities, and their effect on the call."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from headrace.streams.simulation.world.coverage import Coverage
from headrace.streams.simulation.world.kernel import MS, SECOND, CrashError
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.streams.simulation.world.transactions import BrokerResponseError
from headrace.topology.context.task_context import RESULTS_PER_COMMIT

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
"""All kinds of faults, by call.

| fault | effect |
|---|---|
| `retriable` | the call fails immediately, and can be retried |
| `abortable` | the call fails, and the transaction must be aborted |
| `fatal` | the call fails, and the client cannot be used any more |
| `expire` | the broker aborts the transaction because of its time-out, then the call continues |
| `timeout_lost` | the call times out without an effect |
| `timeout_done` | the call times out after its effect |
| `timeout_late` | the call times out, and its effect follows some time later |
| `delay` | the call takes long |
| `stall` | the whole process is suspended, often for longer than its session |
| `crash_before`, `crash_after` | the process is killed |
| `queue_full` | the client's queue is full |
| `lost_answer` | a record is written, and the client receives no acknowledgement |
| `error`, `partition_error` | an error is returned as a result |
| `max_poll` | the member has exceeded max.poll.interval.ms, and is removed from the group |
| `corrupted` | the local files cannot be read |
| `failure` | the admin client fails |
"""

SINK_CALLS: Mapping[str, tuple[str, ...]] = {
    "sink.positions": ("unreachable", "timeout_done", "delay", "stall", *_CRASHES),
    "sink.write": (
        "unreachable", "timeout_done", "timeout_late", "delay", "stall", *_CRASHES,
    ),
}  # fmt: skip
"""All kinds of faults of external sinks; `unreachable` is a connection that is refused, or lost
before the call had an effect."""

WEIGHTS: Mapping[str, float] = {
    # Otherwise calls for every record or iteration would stop all progress.
    **dict.fromkeys(
        ("produce", "producer.poll", "consume", "probe", "delivery", "start_offsets"), 1 / 12
    ),
    # Only if a plan has it in focus.
    "describe": 0.0,
    # Rare calls need a higher weight.
    "abort_transaction": 8.0,
    "init_transactions": 2.0,
    "flush": 2.0,
    "commit": 3.0,
    "store.restore": 2.0,
    "store.end_restore": 2.0,
    "delete_records": 2.0,
    **dict.fromkeys(SINK_CALLS, 3.0),
    # A worker suspended with due callbacks never receives the loss of its partitions.
    "rebalance": 6.0,
}
"""Relative probability of a fault by call."""

FOCUSED = 0.7
"""Probability of a fault in the call and phase that a plan has in focus."""

STOPPED_WITH_WORK = 0.15
"""Probability that a worker is stopped at the start of a transaction, if `closing` is in focus."""

_RETRIABLE = (
    KafkaError._TRANSPORT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Kinds and rates of the faults of a run.

    Args:
        rate: the probability of a fault in a call to a client or a store, in the phase with faults.
        crashes: the average number of workers killed at a random time.
        stalls: the average number of workers suspended at a random time.
        restarts: the average number of workers stopped cleanly and restarted.
        longest_stall: the maximum duration of a suspension in seconds; more than 6 exceeds a
            session with the settings of simulations, and more than 10 a transaction.
        lost_state: the probability that a dead worker's local state is lost, or replaced by an
            older copy.
        slow_markers: the probability that a transaction marker is written seconds late.
        foreign_transactions: whether the input contains open and aborted transactions of other
            producers; only under exactly-once.
        backlog: whether all input is written before the first worker starts.
        compaction: the average number of compactions of a changelog.
        full_disks: the average number of times that a host's disk is full for some seconds.
        clock_jumps: the average number of jumps of the wall clock, forward or backward.
        twins: the average number of duplicate instances, started while a worker with the same
            identity is suspended; only under exactly-once, because otherwise the worker is not
            fenced.
        slow_restores: the probability that a consumer without a group receives nothing in a poll,
            so that other events happen during a restore.
        broker_rate: the number of records per second that brokers accept from a producer, during
            the whole run; None is unlimited.
        sink_rate: the number of rows per second that an external sink accepts; None is unlimited.
        results_per_commit: the number of results of closed windows in one commit; a small number
            spreads emission over many commits.
        disaster: a disaster that happens once and may end the application, by its name in
            `headrace.streams.simulation.run.DISASTERS`; see `SimulationResult.refusals`.
        calls: the calls with faults; None for all calls in
            `headrace.streams.simulation.world.faults.CALLS`.
        kinds: the kinds of faults; None for all.
        focus: a call, and a phase of `headrace.streams.simulation.world.coverage.PHASES`, in which
            faults are frequent, in addition to all other faults; for `closing`, workers are stopped
            during a transaction.

    Examples:
        >>> from headrace import StreamsBuilder, serdes
        >>> from headrace.simulation import simulate
        >>> builder = StreamsBuilder()
        >>> builder.stream("words", key=serdes.string, value=serdes.string).to("copies")
        >>> only_crashes = FaultPlan(rate=0, crashes=3, stalls=0, restarts=0)
        >>> result = simulate(
        ...     builder.build(), inputs={"words": [("a", "to")]}, seed=7, faults=only_crashes
        ... )
        >>> result.check().outputs("copies")
        [('a', 'to')]
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
    results_per_commit: int = RESULTS_PER_COMMIT
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
"""Plan without faults."""


@dataclass(slots=True)
class Faults:
    """Random faults, with counters by call and kind."""

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

    def draw(self, process: SimulatedProcess, call: str) -> str | None:
        if not self.is_on:
            return None
        self.coverage.calls[call, process.phase] += 1
        found = self._calls.get(call)
        if found is None:
            return None
        likely = FOCUSED if self.plan.focus == (call, process.phase) else found[0]
        # Without a probability no random number is drawn, so that seeds keep their meaning.
        if not likely or self.random.random() >= likely:
            return None
        kind = self.random.choice(found[1])
        self.hit(process, call, kind)
        return kind

    def is_slow_to_restore(self) -> bool:
        """Return whether a restore receives nothing in this poll."""
        likely = self.plan.slow_restores
        return self.is_on and likely > 0 and self.random.random() < likely

    def stops_at(self, step: str) -> bool:
        """Return whether to stop a worker at a step, so that faults happen in its last commit."""
        if not self.is_on or self.plan.focus is None or step != "transaction_begun":
            return False
        return self.plan.focus[1] == "closing" and self.random.random() < STOPPED_WITH_WORK

    def hit(self, process: SimulatedProcess, call: str, kind: str) -> None:
        self.counts[call, kind] += 1
        self.coverage.struck[call, process.phase] += 1
        process.note(f"{call}: ! {kind}")

    def stall_us(self) -> int:
        """Return the duration of a suspension, sometimes longer than a session or a transaction."""
        longest = self.plan.longest_stall
        if longest <= 5 or self.random.random() < 0.4:
            return int(self.random.uniform(0.05, min(3, longest)) * SECOND)
        return int(self.random.uniform(5, longest) * SECOND)

    def strike(self, process: SimulatedProcess, kind: str | None) -> None:
        """Kill or suspend the process, if this is the kind of fault."""
        if kind == "crash_before":
            raise crash(process)
        if kind == "stall":
            process.suspend(self.stall_us())
            process.settle()

    def serve(
        self,
        process: SimulatedProcess,
        kind: str | None,
        effect: Callable[[], T],
        *,
        special: Callable[[str], None] | None = None,
    ) -> T:
        """Run a request that is answered, with a suspension or a delay; see `request`."""
        kernel = process.kernel
        suspends_later = kind == "stall" and self.random.random() < 0.5
        if kind == "stall" and not suspends_later:
            process.suspend(self.stall_us())
        elif kind == "delay":
            process.sleep(int(self.random.uniform(0.1, 2) * SECOND))
        elif kind is not None and special is not None:
            special(kind)
        process.sleep(kernel.between(100, 2 * MS))
        result = effect()
        if kind == "crash_after":
            raise crash(process)
        if suspends_later:
            process.suspend(self.stall_us())
        process.sleep(kernel.between(50, MS))
        return result

    def around(self, process: SimulatedProcess, call: str, effect: Callable[[], T]) -> T:
        """Run a call that is not a request, with the faults that need no response."""
        process.check()
        kind = self.draw(process, call)
        self.strike(process, kind)
        if kind == "delay":
            process.sleep(int(self.random.uniform(0.1, 2) * SECOND))
        result = effect()
        if kind == "crash_after":
            raise crash(process)
        return result


def crash(process: SimulatedProcess) -> CrashError:
    """Kill a process from within its own thread, and return the error to raise."""
    process.die()
    return CrashError(process.name)


def failure(code: int, text: str = "", **marks: bool) -> KafkaException:
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
    process: SimulatedProcess,
    call: str,
    effect: Callable[[], T],
    *,
    timeout_s: float,
    special: Callable[[str], None] | None = None,
) -> T:
    """Run `effect` as the broker's action; `special` handles the client's own faults."""
    process.check()
    kind = faults.draw(process, call)
    if kind == "crash_before":
        raise crash(process)
    if kind == "retriable":
        process.sleep(process.kernel.between(100, 20 * MS))
        raise failure(faults.random.choice(_RETRIABLE), retriable=True)
    if kind in ("timeout_lost", "timeout_done", "timeout_late"):
        _time_out(process, call, effect, kind, timeout_s)
    return faults.serve(
        process, kind, partial(_retried, process, effect, timeout_s), special=special
    )


def _retried(process: SimulatedProcess, effect: Callable[[], T], timeout_s: float) -> T:
    """Run `effect`, and retry it while the last transaction ends, as the client does."""
    kernel = process.kernel
    deadline_us = kernel.now_us + int(timeout_s * SECOND)
    while True:
        try:
            return effect()
        except BrokerResponseError as refused:
            if refused.code != KafkaError.CONCURRENT_TRANSACTIONS:
                process.sleep(kernel.between(50, MS))
                raise
            if kernel.now_us >= deadline_us:
                raise failure(KafkaError._TIMED_OUT, "transaction ends", retriable=True) from None
            process.sleep(kernel.between(MS, 20 * MS))


def _time_out(
    process: SimulatedProcess,
    call: str,
    effect: Callable[[], Any],
    kind: str,
    timeout_s: float,
) -> None:
    kernel = process.kernel

    def arrive() -> None:
        try:
            effect()
        except BrokerResponseError as refused:
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
