"""What is written wrongly, a row each: what is written, and what the error must say.

Every row is refused where it is written, with a `TopologyError`. Add a row for what you find.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ConfigError
from headrace.topology import (
    JoinWindows,
    Materialized,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    TopologyError,
    UnlimitedWindows,
    serdes,
)
from headrace.topology.processors.stores import Stores

MINUTE = timedelta(minutes=1)
MINUTES = TimeWindows(size=MINUTE)


def stream() -> Any:
    return StreamsBuilder().stream("in")


def group() -> Any:
    return stream().group_by_key()


def cogroup() -> Any:
    return group().cogroup(lambda key, value, total: total)


def reads() -> Any:
    return Topology().add_source("read", "in")


def of(serialize: Any = str.encode, deserialize: Any = bytes.decode, name: Any = "mine") -> Any:
    return serdes.serde_from(serialize=serialize, deserialize=deserialize, name=name)


async def coroutine(value: Any) -> Any: ...
def act(record: Any, context: Any) -> None: ...


NAMED: Any = Stores.key_value("rows", key=serdes.string)
WRITTEN: dict[str, tuple[Callable[[], Any], str]] = {
    # no function, or one that takes others
    "cogroup(None)": (lambda: group().cogroup(None), "aggregator must be a function, not None"),
    "cogroup(other, None)": (lambda: cogroup().cogroup(group(), None), "aggregator must be a func"),
    "branch(None)": (lambda: stream().split().branch(None), "predicate must be a function, not "),
    "transform_values(None)": (
        lambda: stream().to_table().transform_values(None), "None is not a supplier of"),
    "deduplicate(key) arity": (
        lambda: stream().deduplicate(within=MINUTE, key=lambda k, v: v),
        r"key is called with 1 argument, and .* takes \(k, v\); give it 1 parameter"),
    "deduplicate(key) with_key": (
        lambda: stream().deduplicate(within=MINUTE, key=lambda v: v, with_key=True),
        r"key is called with 2 arguments, and .* takes \(v\); give it 2 parameters"),
    "aggregate(initializer)": (
        lambda: group().aggregate(lambda key: 0, lambda k, v, a: a),
        "initializer is called with no arguments, .* give it no parameters"),
    # serdes
    "serde_from arity": (lambda: of(lambda a, b: b""), r"called as serialize\(value\), .*\(a, b\)"),
    "serde_from deserialize": (lambda: of(deserialize=lambda: 1), r"called as deserialize\(data\)"),
    "serde_from str": (lambda: of("utf8"), "serialize must be a function, not a str"),
    "serde_from None": (lambda: of(deserialize=None), "deserialize must be a function, not No"),
    "serde_from coroutine": (lambda: of(coroutine), "is a coroutine function, which would never"),
    "serde_from name": (lambda: of(name=5), "a str as name=, not an int"),
    "time_windowed int": (
        lambda: serdes.time_windowed(serdes.string, size=0), "size must be a timedelta, not int"),  # type: ignore[arg-type]
    "time_windowed negative": (
        lambda: serdes.time_windowed(serdes.string, size=-MINUTE), "size must be at least 0 ms"),
    "time_windowed inner": (
        lambda: serdes.time_windowed("string", size=MINUTE), "write serdes.string"),  # type: ignore[arg-type]
    "session_windowed inner": (lambda: serdes.session_windowed(str), "write serdes.string"),  # type: ignore[arg-type]
    # windows
    "windowed_by class": (
        lambda: group().windowed_by(TimeWindows),
        r"windows must be TimeWindows\(\.\.\.\), .*, not the class TimeWindows"),
    "windowed_by timedelta": (lambda: group().windowed_by(MINUTE), "not a timedelta"),
    "windowed_by None": (lambda: group().windowed_by(None), "not None"),
    "cogroup windowed_by": (lambda: cogroup().windowed_by(SlidingWindows), "the class SlidingW"),
    "UnlimitedWindows": (lambda: UnlimitedWindows(start_ms="0"), "start_ms must be an int, not"),  # type: ignore[arg-type]
    "late str": (
        lambda: group().windowed_by(MINUTES, late="t"), "late must be a function, not a str"),
    "late returns a topic": (
        lambda: group().windowed_by(MINUTES, late=lambda s: "dead").count(),
        r"returned a str, which writes nothing; .*late=lambda stream: stream\.to\('dead'\)"),
    "late of a join": (
        lambda: stream().join(stream(), pow, JoinWindows(time_difference=MINUTE), late="t"),
        "late must be a function, not a str"),
    "suppress(5)": (
        lambda: group().count().suppress(5),
        r"until must be Suppressed\.until_window_closes\(\) or .*, not an int"),
    "suppress(class)": (lambda: group().count().suppress(Suppressed), "not the class Suppressed"),
    # topics, names and numbers
    "stream(None)": (
        lambda: StreamsBuilder().stream(None), r"stream\(\) requires the name of .* not None"),  # type: ignore[arg-type]
    "stream(5)": (lambda: StreamsBuilder().stream(5), "not an int"),  # type: ignore[arg-type]
    "table of two": (
        lambda: StreamsBuilder().table(["a", "b"]), r"table\(\) reads a single topic, .* 2"),  # type: ignore[arg-type]
    "global_table(None)": (lambda: StreamsBuilder().global_table(None), "not None"),  # type: ignore[arg-type]
    "repartition str": (
        lambda: stream().repartition(partitions="3"), "partitions must be an int, not a str"),
    "repartition float": (lambda: stream().repartition(partitions=1.5), "not a float"),
    "count(store=5)": (lambda: group().count(store=5), r"a name or Materialized\(\.\.\.\), not"),
    "Materialized(kind)": (
        lambda: Materialized("a", kind="rocks"), "kind must be 'rocksdb' or 'memory', .*did you"),  # type: ignore[arg-type]
    # other streams, tables and stores
    "merge(None)": (lambda: stream().merge(None), "other must be a KStream, not None"),
    "merge(table)": (lambda: stream().merge(stream().to_table()), "a KStream, not a KTable"),
    "table.join(stream)": (
        lambda: stream().to_table().join(stream(), pow), "other must be a KTable, not a KStr"),
    "cogroup(str)": (
        lambda: cogroup().cogroup("in", lambda k, v, a: a), r"group_by\(\) or .* not a str"),
    "stores str": (
        lambda: stream().process(act, stores="nope"),
        r"stores must be a list .*, not a str; write stores=\['nope'\]"),
    "stores one": (lambda: stream().process(act, stores=NAMED), "not a single store builder; put"),
    "stores None": (lambda: stream().process_values(act, stores=None), "names of stores, not"),
    "stores of ints": (lambda: stream().process(act, stores=[5]), "not a list with an int"),
    "stores of a transformer": (
        lambda: stream().to_table().transform_values(object, stores="nope"), "write stores="),
    "add_processor(stores)": (
        lambda: reads().add_processor("p", act, "read", stores="nope"), r"stores=\['nope'\]"),
    "add_state_store(str)": (
        lambda: StreamsBuilder().add_state_store("rows"), "a method of Stores, .* not a str"),  # type: ignore[arg-type]
    "Topology.add_state_store": (lambda: reads().add_state_store("rows"), "a method of Stores"),
    "two stores of one name": (
        lambda: [(b := StreamsBuilder()).add_state_store(NAMED),
                 b.add_state_store(Stores.key_value("rows", key=serdes.long))],
        "two different stores are named 'rows'"),
}  # fmt: skip


@pytest.mark.parametrize("written", WRITTEN)
def test_what_is_written_wrongly_is_refused_where_it_is_written(written: str) -> None:
    write, said = WRITTEN[written]
    with pytest.raises(TopologyError, match=said) as raised:
        write()
    place = re.search(r" at (\S+):\d+", str(raised.value))
    assert place is None or place[1] == __file__


def test_what_is_written_rightly_is_taken() -> None:
    builder = StreamsBuilder()
    stream: Any = builder.stream("in", key=serdes.string)
    stream.process(act, stores=(store for store in [NAMED]))
    stream.process(act, stores=["rows"])
    held: list[Any] = []
    stream.group_by_key().windowed_by(MINUTES, late=held.append).count(store="counts")
    stream.deduplicate(within=MINUTE, key=lambda k, v: v, with_key=True)
    stream.to_table().join(stream.to_table(), lambda a, b: a, foreign_key=None)
    JoinWindows(time_difference=MINUTE, before=MINUTE)
    serdes.time_windowed(serdes.string, size=timedelta(0))
    serdes.time_windowed(None, size=None)
    builder.build()


@pytest.mark.parametrize(
    ("extractor", "said"),
    [
        (lambda record: 0, r"called as extractor\(record, partition_time\), .* 2 parameters"),
        (coroutine, "coroutine function, and nothing awaits it"),
        (5, "must be a function or one of"),
    ],
)
def test_an_extractor_of_the_settings_is_looked_at_with_them(extractor: Any, said: str) -> None:
    settings = {"application.id": "a", "bootstrap.servers": "b:1"}
    with pytest.raises(ConfigError, match=said):
        StreamsConfig.parse({**settings, "default.timestamp.extractor": extractor})
