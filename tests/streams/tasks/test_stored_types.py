"""What a store hands out is what its bytes give back, whenever commits, evictions and crashes come.

Each place is a step with a store; its functions make the values of a case, one for each record, and
note what they are shown. The same records run with a commit for each, where each row is read back
from its bytes, and with none between, with caches and without, and with a crash in the middle: what
is seen must be the same to the last type.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import pytest

from headrace.streams.errors import StreamsError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    serdes,
)
from headrace.topology.serdes import avro
from tests.support.topologies import EXACTLY_ONCE, NO_CACHE

MS = timedelta(milliseconds=1)
HOUR = timedelta(hours=1)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Plain(Enum):
    ONE = 1


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Pair(NamedTuple):
    one: int
    other: float


@dataclass(frozen=True)
class Frozen:
    amount: float
    colour: Colour = Colour.RED


@dataclass
class Loose:
    amount: float
    parts: list[float]


@dataclass
class Amount:
    amount: float


class Typed(TypedDict):
    amount: float


RECORD = {"type": "record", "name": "Amount", "fields": [{"name": "amount", "type": "double"}]}
HALF = serdes.serde_from(
    name="text-of-numbers",
    serialize=lambda value: str(value).encode(),
    deserialize=lambda data: float(data),
    immutable=True,
)
LOOSE_HALF = serdes.serde_from(
    name="lists-of-numbers",
    serialize=lambda value: ",".join(map(str, value)).encode(),
    deserialize=lambda data: [float(part) for part in data.split(b",")],
)

CASES: dict[str, tuple[Any, list[Any]]] = {
    "double": (serdes.double, [1, 2.5, True, Real(2), 0, float("nan"), 2**60, -0.0]),
    "integer": (serdes.integer, [1, True, Number(2), Level.LOW, 2.0]),
    "long": (serdes.long, [1, 2**40, False, Number(2), "1"]),
    "string": (serdes.string, ["a", Colour.RED, Text("b"), b"c"]),
    "bytes": (serdes.bytes, [b"a", bytearray(b"b"), memoryview(b"c"), "d"]),
    "json": (
        serdes.json,
        [
            *(1, 2.5, "a", True, -0.0, (1, 2), [], {}, {"a": [1, None]}, {"n": 1.0, "m": [True]}),
            *({"a": (1,)}, [{"b": [Plain.ONE]}], Colour.RED, Level.LOW, UUID(int=1), {1: 2}),
            *(OrderedDict(a=1), Text("a"), Number(1), Pair(1, 2), {"a": Text()}, 2**70),
        ],
    ),
    "json_of frozen": (serdes.json_of(Frozen), [Frozen(1.5), Frozen(1), Frozen(2, "red")]),  # type: ignore[arg-type]
    "json_of loose": (serdes.json_of(Loose), [Loose(1, [1]), Loose(1.5, [2, 0.5]), Loose(1, [])]),
    "json_of typed dict": (serdes.json_of(Typed), [{"amount": 1}, {"amount": 1.5}]),
    "json_of tuple": (serdes.json_of(tuple[float, ...]), [(1, 2), (1.5,), [1]]),
    "json_of float": (serdes.json_of(float), [1, 1.5, True]),
    "json_of pair": (serdes.json_of(Pair), [Pair(1, 2), Pair(1, 2.5), (1, 2)]),
    "json_of unchecked": (
        serdes.json_of(dict[str, float], checked=False),
        [{"a": 1}, {"a": 1.5}, {"a": True}],
    ),
    "list_of": (serdes.list_of(serdes.double), [[1], [1.5, 2], []]),
    "list_of bytes": (serdes.list_of(serdes.string, nulls=True), [[Colour.RED, None], ["a"]]),
    "avro long": (avro.serde("double"), [1, 1.5]),
    "avro record": (avro.serde(RECORD), [{"amount": 1}, {"amount": 1.5}]),
    "avro into": (avro.serde(RECORD, into=Amount), [Amount(1), Amount(1.5)]),
    "own immutable": (HALF, [1, 1.5, "2"]),
    "own": (LOOSE_HALF, [[1], [1.5, "2"], (1, 2)]),
}


def _come_back(serde: Any, values: list[Any]) -> list[Any]:
    """Those of the values that the serde takes, whatever it gives back."""
    taken = []
    for value in values:
        try:
            serde.deserialize(serde.serialize(value))
        except Exception:
            continue
        taken.append(value)
    return taken


def told(value: Any) -> Any:
    """A value with the types of all that is in it."""
    kind = type(value).__qualname__
    if is_dataclass(value):
        return kind, [told(getattr(value, one.name)) for one in fields(value)]
    if isinstance(value, dict):
        return kind, [(told(k), told(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return kind, [told(one) for one in value]
    return kind, repr(value)


Note = Callable[[Any], None]
Make = Callable[[Any], Any]
Place = Callable[[StreamsBuilder, Any, Make, Note], None]


def _stream(builder: StreamsBuilder, topic: str = "in") -> Any:
    return builder.stream(topic, key=serdes.string, value=serdes.json)


def aggregate(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    def fold(_: Any, number: int, old: Any) -> Any:
        note(old)
        return make(number)

    table = _stream(builder).group_by_key().aggregate(lambda: None, fold, store="s", value=serde)
    table.to_stream().for_each(lambda _, value: note(value))


def aggregate_alone(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    def fold(_: Any, number: int, old: Any) -> Any:
        note(old)
        return make(number)

    table = _stream(builder).group_by_key().aggregate(lambda: None, fold, store="s", value=serde)
    table.to_stream().to("out", value=serde)


def reduce(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    def fold(old: Any, new: Any) -> Any:
        note(old)
        return new

    grouped = _stream(builder).map_values(make).group_by_key()
    grouped.reduce(fold, store="s", value=serde).to_stream().for_each(lambda _, v: note(v))


def _windowed(windows: Any, *, merger: bool = False) -> Place:
    def place(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
        def fold(_: Any, number: int, old: Any) -> Any:
            note(old)
            return make(number)

        def merge(_: Any, __: Any, other: Any) -> Any:
            note(other)
            return other

        grouped = _stream(builder).group_by_key().windowed_by(windows)
        mergers = (merge,) if merger else ()
        table = grouped.aggregate(lambda: None, fold, *mergers, store="s", value=serde)
        table.to_stream().for_each(lambda _, value: note(value))

    return place


def table(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    rows = _stream(builder).map_values(make).to_table(store="s", value=serde)
    rows.to_stream().for_each(lambda _, value: note(value))
    _stream(builder, "asks").join(rows, lambda _, row: note(row)).for_each(lambda _, __: None)


def versioned_table(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    kept = Materialized("s", history=HOUR)
    rows = _stream(builder).map_values(make).to_table(store=kept, value=serde)
    rows.to_stream().for_each(lambda _, value: note(value))
    _stream(builder, "asks").join(rows, lambda _, row: note(row)).for_each(lambda _, __: None)


def mapped_table(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    rows = builder.table("in", key=serdes.string, value=serdes.json)
    mapped = rows.map_values(make, store="s", value=serde)
    mapped.to_stream().for_each(lambda _, value: note(value))
    _stream(builder, "asks").join(mapped, lambda _, row: note(row)).for_each(lambda _, __: None)


def cogroup(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    def fold(_: Any, number: int, old: Any) -> Any:
        note(old)
        return make(number)

    grouped = _stream(builder).group_by_key()
    folded = grouped.cogroup(fold).aggregate(lambda: None, store="s", value=serde)
    folded.to_stream().for_each(lambda _, value: note(value))


def table_group(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    def fold(_: Any, number: int, old: Any) -> Any:
        note(old)
        return make(number)

    rows = builder.table("in", key=serdes.string, value=serdes.json)
    grouped = rows.group_by(lambda key, value: (key, value), key=serdes.string, value=serdes.json)
    folded = grouped.aggregate(lambda: None, fold, lambda _, __, old: old, store="s", value=serde)
    folded.to_stream().for_each(lambda _, value: note(value))


def suppressed(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    rows = _stream(builder).map_values(make).to_table(store="s", value=serde)
    held = rows.suppress(Suppressed.until_time_limit(2 * MS))
    held.to_stream().for_each(lambda _, value: note(value))


def joined_streams(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
    made = _stream(builder).map_values(make)
    windows = JoinWindows(time_difference=HOUR)
    others = _stream(builder, "asks")
    others.left_join(
        made, lambda _, value: note(value), windows, value=serdes.json, other_value=serde
    ).for_each(lambda _, __: None)


class _Puts:
    """A processor that reads a store before and after it writes it."""

    def __init__(self, make: Make, note: Note) -> None:
        self._make = make
        self._note = note

    def init(self, context: Any) -> None:
        self._store = context.store("s")
        self._context = context

    def process(self, record: Any) -> None:
        store, value = self._store, self._make(record.value)
        kind = type(store).__name__
        if kind == "WindowStore":
            self._note(store.get(record.key, 0))
            store.put(record.key, value, 0)
            self._note([row for _, row in store.all()])
        elif kind == "VersionedStore":
            self._note(store.get(record.key))
            store.put(record.key, value, record.timestamp)
            self._note(store.get(record.key))
        else:
            self._note(store.get(record.key))
            store.put(record.key, value)
            self._note(list(store.all()))


def _store(describe: Callable[[Any], Any]) -> Place:
    def place(builder: StreamsBuilder, serde: Any, make: Make, note: Note) -> None:
        _stream(builder).process(lambda: _Puts(make, note), stores=[describe(serde)])

    return place


PLACES: dict[str, Place] = {
    "aggregate": aggregate,
    "aggregate to a topic": aggregate_alone,
    "reduce": reduce,
    "tumbling": _windowed(TimeWindows(size=HOUR)),
    "sliding": _windowed(SlidingWindows(time_difference=HOUR)),
    "session": _windowed(SessionWindows(inactivity_gap=HOUR), merger=True),
    "table": table,
    "versioned table": versioned_table,
    "mapped table": mapped_table,
    "cogroup": cogroup,
    "table group": table_group,
    "suppress": suppressed,
    "joined streams": joined_streams,
    "key-value store": _store(lambda v: Stores.key_value("s", key=serdes.string, value=v)),
    "window store": _store(
        lambda v: Stores.window("s", key=serdes.string, value=v, size=HOUR, retention=HOUR)
    ),
    "versioned store": _store(
        lambda v: Stores.versioned("s", key=serdes.string, value=v, history=HOUR)
    ),
}


WITH_ALL_SERDES = ("aggregate", "tumbling", "table")
IN_ALL_PLACES = ("double", "string", "json", "json_of frozen", "json_of loose", "list_of")


class _Run:
    """One run of a place over the values of a case."""

    def __init__(self, place: Place, serde: Any, values: list[Any]) -> None:
        self.seen: list[Any] = []
        builder = StreamsBuilder()
        builder.stream("other", key=serdes.string, value=serdes.json)
        place(builder, serde, lambda number: values[number % len(values)], self._note)
        self._topology: Topology = builder.build()
        self._count = 3 * len(values)

    def _note(self, value: Any) -> None:
        self.seen.append(told(value))

    def seen_with(self, settings: Any, *, commit: Any, crash: bool = False) -> list[Any]:
        """What the functions were shown."""
        self.seen.clear()
        with TopologyTestDriver(self._topology, settings, commit=commit) as driver:
            for number in range(self._count):
                driver.input("in").send("k", number, timestamp=number)
                if crash:
                    driver.commit()
                    driver.crash(keep=number % 2 == 0)
            if "asks" in driver_inputs(self._topology):
                driver.input("asks").send("k", 0, timestamp=self._count)
            driver.commit()
        return list(self.seen)


def driver_inputs(topology: Topology) -> set[str]:
    return {t for sub in topology.sub_topologies for one in sub.sources for t in one.topics}


def _is_quick(place: str, case: str) -> bool:
    """Each place with the values of one serde, and each serde in one place."""
    return place == WITH_ALL_SERDES[0] or case == "json"


@pytest.mark.parametrize(
    ("place", "case"),
    [
        pytest.param(place, case, marks=[] if _is_quick(place, case) else pytest.mark.slow)
        for place in PLACES
        for case in CASES
        if place in WITH_ALL_SERDES or case in IN_ALL_PLACES
    ],
)
def test_what_is_seen_does_not_depend_on_commits_and_crashes(place: str, case: str) -> None:
    serde, values = CASES[case]
    run = _Run(PLACES[place], serde, _come_back(serde, values))
    expected = run.seen_with(NO_CACHE, commit="each_record")
    assert expected, "the place shows nothing"
    assert run.seen_with(NO_CACHE, commit="manual") == expected
    assert run.seen_with(NO_CACHE, commit="manual", crash=True) == expected
    cached = run.seen_with(EXACTLY_ONCE, commit="manual")
    assert cached[-1:] in (expected[-1:], []), "one update for each commit, or none that is due"
    assert all(one in expected for one in cached)


def _slow(*places: str) -> list[Any]:
    return [pytest.param(place, marks=pytest.mark.slow) for place in places]


@pytest.mark.parametrize("place", ["aggregate", *_slow("tumbling", "table", "key-value store")])
@pytest.mark.parametrize("case", CASES)
def test_what_a_serde_refuses_is_refused(place: str, case: str) -> None:
    serde, values = CASES[case]
    taken = [told(value) for value in _come_back(serde, values)]
    for value in values:
        if told(value) in taken:
            continue
        run = _Run(PLACES[place], serde, [value])
        for commit in ("each_record", "manual"):
            with pytest.raises(StreamsError):
                run.seen_with(NO_CACHE, commit=commit)


@pytest.mark.parametrize("place", ["aggregate", *_slow("tumbling", "session", "table", "cogroup")])
@pytest.mark.parametrize("case", ["double", "json", "json_of frozen", "own immutable"])
def test_what_is_seen_is_the_same_where_a_handler_may_go_on(place: str, case: str) -> None:
    serde, values = CASES[case]
    run = _Run(PLACES[place], serde, _come_back(serde, values))
    expected = run.seen_with(NO_CACHE, commit="each_record")
    goes_on = {**NO_CACHE, "processing.exception.handler": "continue"}
    assert run.seen_with(goes_on, commit="each_record") == expected
    assert run.seen_with(goes_on, commit="manual") == expected


def test_a_count_in_a_serde_that_is_not_for_ints_is_what_its_bytes_give_back() -> None:
    builder = StreamsBuilder()
    seen: list[Any] = []
    counts = _stream(builder).group_by_key().count(store="s", value=serdes.double)  # type: ignore[arg-type]
    counts.to_stream().for_each(lambda _, value: seen.append(value))
    with TopologyTestDriver(builder.build(), NO_CACHE, commit="manual") as driver:
        for number in range(3):
            driver.input("in").send("k", number)
    assert list(map(repr, seen)) == ["1.0", "2.0", "3.0"]
