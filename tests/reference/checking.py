"""Runs a program as it will be run, and as the interpreter reads it, and compares."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import plan_application
from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.topology import KeySerdeWarning, StreamsBuilder, TopologyError
from headrace.topology.graph.graph import Sink, Source
from headrace.topology.serdes import partials
from headrace.topology.topology import Topology
from tests.reference.engine import Engine, Written
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
        }
        if not self.caching:
            settings["statestore.cache.max.bytes"] = 0
        return settings


def program_of(seed: int, way: Way, ops: Sequence[str] = OPS) -> Program:
    """Draw a program for one way of running it."""
    return random_program(seed, interrupted=way.interrupted, cached=way.caching, ops=tuple(ops))


def settings_of(program: Program, way: Way) -> dict[str, object]:
    """The application's settings."""
    serdes = {
        "default.key.serde": program.keys.default,
        "default.value.serde": program.values.default,
    }
    return {**way.settings, **serdes}


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
    _replay(engine, recorder, topology, program, way)
    _compare_states(driver, engine, way)
    _compare_outputs(driver, engine, topology, program, way)
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
            driver.input(event.topic).send(event.key, event.value, timestamp=event.timestamp)
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
    engine: Engine, recorder: Recorder, topology: Topology, program: Program, way: Way
) -> None:
    """Let the interpreter's tasks read what the tasks have read, and all the global rows first."""
    for event in program.events:
        if event.topic == GLOBAL and GLOBAL in engine.inputs:
            engine.read(GLOBAL, "0_0", event.key, event.value, event.timestamp)
    config = _config(program, way)
    sources: dict[str, Source] = {}
    for plan in plan_application(topology, config):
        for source in plan.program.sub_topology.sources:
            for topic in source.topics:
                sources[f"test-{topic}" if source.internal else topic] = source
    for task, message in recorder.read:
        source = sources[message.topic()]
        key = _decoded(source.key or config.default_key_serde, message.key())
        stands_for = _stands_for(message)
        if stands_for is not None:
            for _ in range(stands_for):
                engine.read(message.topic(), task, key, 0, message.timestamp()[1])
            continue
        value = _decoded(source.value or config.default_value_serde, message.value())
        if message.topic() in engine.inputs:  # not what foreign-key joins say to each other
            engine.read(message.topic(), task, key, value, message.timestamp()[1])


def _config(program: Program, way: Way) -> StreamsConfig:
    return StreamsConfig.parse(
        {"application.id": "test", "bootstrap.servers": "nowhere:1", **settings_of(program, way)}
    )


def _stands_for(message: Any) -> int | None:
    """How many records a partial count stands for; None of a record like any other."""
    return partials.take_count(message.headers() or (), message.value())[0]


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
    driver: TopologyTestDriver, engine: Engine, topology: Topology, program: Program, way: Way
) -> None:
    plans = plan_application(topology, _config(program, way))
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
            _compare_counts(driver, topic, sink.key or program.keys.default, expected)
            continue
        found = [
            Written(
                "",
                place.partition,
                _decoded(sink.key or program.keys.default, message.key()),
                _decoded(sink.value or program.values.default, message.value()),
                message.timestamp()[1],
            )
            for place in driver.cluster.places(topic)
            for message in committed(driver.cluster, place)
        ]
        if topic in engine.finals:
            rows = engine.finals[topic]()
            _compare_last(topic, found, [Written("", 0, k, v, 0) for k, v in rows.items()])
        elif not way.caching or topic.startswith("stream-"):
            _compare_all(topic, found, expected, way)
        elif topic.startswith("table-"):
            _compare_last(topic, found, expected)


def _compare_counts(
    driver: TopologyTestDriver, topic: str, serde: Any, expected: Sequence[Written]
) -> None:
    """As many records of each key, and the same latest time, however many stand for one another."""
    wanted: dict[Any, list[int]] = {}
    for one in expected:
        if one.value is not None:
            wanted.setdefault((one.partition, one.key), []).append(one.timestamp)
    got: dict[Any, list[int]] = {}
    for place in driver.cluster.places(topic):
        for message in committed(driver.cluster, place):
            if message.value() is not None:
                many = [message.timestamp()[1]] * (_stands_for(message) or 1)
                key = _decoded(serde, message.key())
                got.setdefault((place.partition, key), []).extend(many)
    summed = [{key: (len(t), max(t)) for key, t in side.items()} for side in (got, wanted)]
    assert summed[0] == summed[1], f"{topic}: {summed[0]} instead of {summed[1]}"


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
    return " ".join(f"{w.partition}:{w.key}={w.value}@{w.timestamp}" for w in records)


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
