"""Runs a program as it will be run, and as the interpreter reads it, and compares."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import SubPlan, plan_application
from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.topology import KeySerdeWarning, StreamsBuilder, TopologyError
from headrace.topology.compile.source import partial_taker
from headrace.topology.graph.fold import Fold
from headrace.topology.graph.graph import Sink, SourceNode
from headrace.topology.serdes import long, partials
from headrace.topology.topology import Topology
from tests.reference.engine import Engine, Partial, Written
from tests.reference.functions import weight
from tests.reference.programs import GLOBAL, OPS, Event, Program, random_program, write
from tests.reference.recorder import Recorder, committed
from tests.reference.streams import Builder

Outcome = Literal["compared", "refused", "unknown"]
_OF_FOREIGN_KEYS = ("-subscription-registration", "-subscription-response")


@dataclass(frozen=True)
class Way:
    """How a topology is run.

    Args:
        partitions: of every topic.
        caching: whether updates are held back until the commit.
        interrupted: whether aborts and crashes come between records.
        exactly_once: the guarantee.
        on_disk: where RocksDB is to be used.
    """

    partitions: int = 1
    caching: bool = False
    interrupted: bool = False
    exactly_once: bool = True
    on_disk: str | None = None

    @property
    def settings(self) -> dict[str, object]:
        """The application's settings, without the serdes that a program draws."""
        guarantee = "exactly_once_v2" if self.exactly_once else "at_least_once"
        settings: dict[str, object] = {
            "processing.guarantee": guarantee,
            "null.key.policy": "drop",
            "stream.time": "fastest",  # the interpreter has Kafka Streams' rule
        }
        if not self.caching:
            settings["statestore.cache.max.bytes"] = 0
        return settings


def program_of(seed: int, way: Way, ops: Sequence[str] = OPS, *, failing: bool = False) -> Program:
    """Draw a program for one way of running it."""
    program = random_program(seed, interrupted=way.interrupted, cached=way.caching, ops=tuple(ops))
    return replace(program, failing=failing)


def settings_of(program: Program, way: Way) -> dict[str, object]:
    """The application's settings."""
    serdes = {
        "default.key.serde": program.keys.default,
        "default.value.serde": program.values.default,
    }
    handlers = {"processing.exception.handler": "continue"} if program.failing else {}
    return {**way.settings, **serdes, **handlers}


def check(program: Program, way: Way) -> Outcome:
    """Compare the compiled topology with the interpreter.

    Returns:
        What came of it: the DSL may not know the program, and one whose keys would never meet is
        refused, which the interpreter must find too.
    """
    builder = StreamsBuilder()
    try:
        write(program, builder)
        topology = builder.build()
    except TopologyError:
        return "unknown"
    engine = Engine(way.partitions, program.keys.default)
    write(program, Builder(engine))
    recorder = Recorder()
    with recorder.following():
        driver = _driver(topology, program, way, engine)
        if driver is None:
            return "refused"
        _act(driver, program.events)
    recorder.check_exactly_once(driver.cluster)
    plans = plan_application(topology, _config(program, way))
    _replay(engine, recorder, plans, program, way)
    _compare_states(driver, engine, way)
    _compare_outputs(driver, engine, plans, program, way)
    return "compared"


def _driver(
    topology: Topology, program: Program, way: Way, engine: Engine
) -> TopologyTestDriver | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KeySerdeWarning)
            driver = TopologyTestDriver(
                topology,
                settings_of(program, way),
                partitions=way.partitions,
                commit="manual" if way.interrupted or way.caching else "each_record",
                state_dir=way.on_disk,
            )
    except TopologyError as error:
        if not engine.never_meet:
            raise AssertionError("refused, although all keys meet") from error
        return None
    assert not engine.never_meet, f"not refused: {engine.never_meet}"
    return driver


def _act(driver: TopologyTestDriver, events: Sequence[Event]) -> None:
    for number, event in enumerate(events):
        if event.topic == GLOBAL and GLOBAL not in driver.cluster.topics:
            continue
        if event.kind == "send":
            given = [("id", b"%d" % number)] if number % 3 else None
            driver.input(event.topic).send(
                event.key, event.value, timestamp=event.timestamp, headers=given
            )
        elif event.kind == "commit":
            driver.commit()
        elif event.kind == "abort":
            driver.abort()
        elif event.kind == "crash":
            driver.crash(keep=number % 2 == 0)
        else:
            points = get_args(CrashPoint)
            driver.crash(at=points[number % len(points)], keep=number % 3 != 0)
            driver.commit()
    driver.run()
    driver.commit()


def _replay(
    engine: Engine, recorder: Recorder, plans: Sequence[SubPlan], program: Program, way: Way
) -> None:
    """Let the interpreter's tasks read what the tasks have read, and all the global rows first."""
    for event in program.events:
        if event.topic == GLOBAL and GLOBAL in engine.inputs:
            engine.read(GLOBAL, "0_0", event.key, event.value, event.timestamp)
    config = _config(program, way)
    sources: dict[str, tuple[SourceNode, partials.Take | None]] = {}
    for plan in plans:
        sub = plan.program.sub_topology
        for source in sub.sources:
            take = partial_taker(sub, source, config.default_value_serde)
            for topic in source.topics:
                sources[f"test-{topic}" if source.internal else topic] = source, take
    for task, message in recorder.read:
        source, take = sources[message.topic()]
        key = _decoded(source.key or config.default_key_serde, message.key())
        timestamp = message.timestamp()[1]
        partial = None if take is None else take(message.headers() or (), message.value())[0]
        if partial is not None:
            stands_for = partial if take is partials.take_count else 1
            value = 0 if take is partials.take_count else Partial(partial)
            for _ in range(stands_for):
                engine.read(message.topic(), task, key, value, timestamp, message.headers())
            continue
        value = _decoded(source.value or config.default_value_serde, message.value())
        if message.topic() in engine.inputs:  # not what foreign-key joins say to each other
            engine.read(message.topic(), task, key, value, timestamp, message.headers())


def _config(program: Program, way: Way) -> StreamsConfig:
    return StreamsConfig.parse(
        {"application.id": "test", "bootstrap.servers": "nowhere:1", **settings_of(program, way)}
    )


def _decoded(serde: Any, data: bytes | None) -> Any:
    return None if data is None else serde.deserialize(data)


def _compare_states(driver: TopologyTestDriver, engine: Engine, way: Way) -> None:
    for name, rows_of in engine.stores.items():
        may_be_gone = engine.may_be_gone.get(name)
        expected: dict[Any, Any] = {}
        optional: dict[Any, Any] = {}
        for task in range(way.partitions):
            for key, row in rows_of(task).items():
                gone = may_be_gone is not None and may_be_gone(task, key)
                (optional if gone else expected)[key] = row
        for committed_only in (False, True):
            rows = driver.store(name, committed=committed_only).rows()
            found = {key: (value, time) for key, value, time in rows}
            surplus = {k: row for k, row in found.items() if optional.get(k) == row}
            kept = {k: row for k, row in found.items() if k not in surplus or k in expected}
            if way.caching:
                # A row that is computed keeps its time while its value stays the same, and which
                # values it had in between is the cache's choice.
                kept, wanted = _values(kept), _values(expected)
            else:
                wanted = expected
            assert kept == wanted, f"store {name}: {kept} instead of {wanted}"


def _values(rows: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, (value, _) in rows.items()}


def _compare_outputs(
    driver: TopologyTestDriver,
    engine: Engine,
    plans: Sequence[SubPlan],
    program: Program,
    way: Way,
) -> None:
    nodes = [node for plan in plans for node in plan.program.sub_topology.nodes]
    for sink in (n for n in nodes if isinstance(n, Sink)):
        assert isinstance(sink.topic, str)
        if sink.internal and sink.topic.removesuffix("-topic").endswith(_OF_FOREIGN_KEYS):
            continue
        topic = f"test-{sink.topic}" if sink.internal else sink.topic
        if topic not in driver.cluster.topics:
            driver.cluster.create(topic)
        expected = engine.outputs.get(topic, [])
        if sink.combines is not None:
            _compare_combined(driver, sink, topic, expected, program)
            continue
        found = [
            Written(
                "",
                place.partition,
                _decoded(sink.key or program.keys.default, message.key()),
                _decoded(sink.value or program.values.default, message.value()),
                message.timestamp()[1],
                tuple(message.headers() or ()),
            )
            for place in driver.cluster.partitions(topic)
            for message in committed(driver.cluster, place)
        ]
        if topic in engine.finals:
            rows = engine.finals[topic]()
            _compare_last(topic, found, [Written("", 0, k, v, 0) for k, v in rows.items()])
        elif not way.caching or topic.startswith("stream-"):
            _compare_all(topic, found, expected, way)
        elif topic.startswith("table-"):
            _compare_last(topic, found, expected)


def _compare_combined(
    driver: TopologyTestDriver,
    sink: Sink,
    topic: str,
    expected: Sequence[Written],
    program: Program,
) -> None:
    """The same of each key in sum, with the same latest time, however many records it is.

    Of one task's records, in their order, the same is made.
    """
    combines = sink.combines
    assert combines is not None
    fold = combines.fold
    keys, values = sink.key or program.keys.default, sink.value or program.values.default
    read = long if fold.word == "count" else combines.value or program.values.default

    def of(message: Any) -> Written:
        is_partial = partials.call_of(message.headers() or ()) is not None
        key, value = _decoded(keys, message.key()), message.value()
        result = Partial(read.deserialize(value)) if is_partial else _decoded(values, value)
        return Written("", message.partition(), key, result, message.timestamp()[1])

    found = [
        of(message)
        for place in driver.cluster.partitions(topic)
        for message in committed(driver.cluster, place)
    ]
    summed = [_sums(fold.word, side) for side in (found, expected)]
    assert summed[0] == summed[1], f"{topic}: {summed[0]} instead of {summed[1]}"
    if len(driver.cluster.partitions(topic)) == 1 and fold.word != "count":
        made = [_folded(fold, side) for side in (found, expected)]
        assert made[0] == made[1], f"{topic}: {made[0]} instead of {made[1]}"


def _sums(call: str, records: Sequence[Written]) -> dict[Any, tuple[int, int]]:
    """By partition and key: what they have in sum, and their latest time."""
    sums: dict[Any, tuple[int, int]] = {}
    for one in records:
        if one.key is None or one.value is None:
            continue
        is_partial = isinstance(one.value, Partial)
        value = one.value.result if is_partial else one.value
        if call == "count":
            more = value if is_partial else 1
        else:
            more = weight(call, one.key, value, is_partial=is_partial)
        so_far, latest = sums.get((one.partition, one.key), (0, -1))
        sums[one.partition, one.key] = (so_far + more, max(latest, one.timestamp))
    return sums


def _folded(fold: Fold, records: Sequence[Written]) -> dict[Any, Any]:
    """By key: what becomes of a row."""
    rows: dict[Any, Any] = {}
    merger = fold.functions["merger"]
    for one in records:
        if one.key is None or one.value is None:
            continue
        old = rows.get(one.key)
        if not isinstance(one.value, Partial):
            rows[one.key] = fold.step(one.key, one.value, old)
        else:
            result = one.value.result
            rows[one.key] = result if old is None else merger(one.key, old, result)
    return rows


def _compare_all(
    topic: str, found: Sequence[Written], expected: Sequence[Written], way: Way
) -> None:
    wanted = [
        replaced(w, partition=w.partition if w.key is not None else -1, task="") for w in expected
    ]
    got = [replaced(w, partition=w.partition if w.key is not None else -1) for w in found]
    if way.partitions > 1:
        wanted, got = sorted(wanted, key=repr), sorted(got, key=repr)
    assert got == wanted, f"{topic}: {shown(got)} instead of {shown(wanted)}"


def replaced(written: Written, **changes: Any) -> Written:
    """The same record with other parts."""
    return written._replace(**changes)


def _compare_last(topic: str, found: Sequence[Written], expected: Sequence[Written]) -> None:
    """Per key the last value; nothing at all says as much as a deletion."""
    wanted = {w.key: w.value for w in expected}
    got = {w.key: w.value for w in found}
    assert {k: v for k, v in got.items() if v is not None} == {
        k: v for k, v in wanted.items() if v is not None
    }, f"{topic}: last values {got} instead of {wanted}"


def shown(records: Sequence[Written]) -> str:
    """Records on one line."""
    return " ".join(
        f"{w.partition}:{w.key}={w.value}@{w.timestamp}{dict(w.headers) or ''}" for w in records
    )


def shrunk(program: Program, way: Way) -> Program:
    """A smaller program that still fails: steps and events are left out while it does."""
    changed = True
    while changed:
        changed = False
        for part in ("events", "steps"):
            items = getattr(program, part)
            for place in reversed(range(len(items))):
                smaller = replace(program, **{part: items[:place] + items[place + 1 :]})
                if fails(smaller, way):
                    program, changed = smaller, True
                    break
    return program


def fails(program: Program, way: Way) -> bool:
    """Whether something differs, or breaks."""
    try:
        check(program, way)
    except Exception:
        return True
    return False


__all__ = ["Outcome", "Way", "check", "fails", "program_of", "shrunk"]
