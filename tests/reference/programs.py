"""Random programs in the DSL's words; each writes a topology, or the interpreter's mirror."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from headrace.topology import Materialized, Stores, serdes
from headrace.topology.dsl.suppressed import Suppressed
from headrace.topology.serdes import Serde
from headrace.topology.serdes._serde import StringSerde
from headrace.topology.windows import SessionWindows
from tests.reference.functions import (
    KEYS,
    MS,
    Transformer,
    WindowTransformer,
    aggregated,
    aggregated_null,
    failing,
    join_windows_of,
    joined,
    kept,
    kept_window,
    key_of,
    last_of,
    last_of_both,
    mapped,
    merged,
    reduced,
    subtracted,
    summed,
    unwindowed,
    window_text,
    windowed_total,
    windows_of,
)

SOURCES = ("in-0", "in-1")
GLOBAL = "all"
"""The topic of the global table; it is written before all others are, as its rows have no time."""

KeySerde = Serde[Any] | None
ValueSerde = Serde[Any] | None
NUMBERS: tuple[Serde[Any], ...] = (
    serdes.long,
    serdes.integer,
    serdes.json,
    serdes.json_of(int),
    serdes.serde_from(serialize=lambda n: str(n).encode(), deserialize=int, name="digits"),
)
"""Several that write a whole number, each in bytes that others cannot read or read otherwise."""
STRINGS = (serdes.string, StringSerde(name="names"))
"""Two that are not equal and write the same bytes."""


@dataclass(frozen=True)
class Keys:
    """The serdes of a program's keys; None leaves it to the step, to upstream or to the settings.

    Args:
        default: the setting.
        sources: of each source.
        calls: of each step, in turn.
    """

    default: Serde[Any] = serdes.string
    sources: tuple[KeySerde, ...] = (serdes.string, serdes.string)
    calls: tuple[KeySerde, ...] = (serdes.string,)


@dataclass(frozen=True)
class Values:
    """The serdes of a program's values, all of which are whole numbers; None as for keys.

    Args:
        default: the setting.
        sources: of each source.
        calls: of each place that takes one, in turn.
    """

    default: Serde[Any] = serdes.long
    sources: tuple[ValueSerde, ...] = (serdes.long, serdes.long)
    calls: tuple[ValueSerde, ...] = (serdes.long,)


@dataclass(frozen=True)
class Step:
    """One call: which of the streams or tables so far it goes on from, and its numbers."""

    op: str
    index: int
    other: int
    n: int
    key: int = 0
    """Which of the program's key serdes it names."""


@dataclass(frozen=True)
class Event:
    """A record to send, or what happens between two records."""

    kind: str
    topic: str = ""
    key: str | None = None
    value: int | None = None
    timestamp: int = 0


@dataclass(frozen=True)
class Program:
    """A topology to write, and what to do with it."""

    steps: tuple[Step, ...]
    events: tuple[Event, ...]
    mutable: bool
    """Whether values have a serde of mutable values."""
    cached: bool = False
    """Whether updates are held back: what goes on of a table then depends on when it commits, and
    a fold of that would depend on it too, so tables are not read as streams by others."""
    keys: Keys = Keys()
    values: Values = Values()
    failing: bool = False
    """Whether functions fail for some records, and a handler lets the application continue."""


def random_program(
    seed: int, *, interrupted: bool, cached: bool, ops: tuple[str, ...], plain: bool = False
) -> Program:
    """Draw a program.

    Args:
        seed: decides everything.
        interrupted: whether commits, aborts and crashes come between records.
        cached: whether the topology will hold back updates.
        ops: the calls to choose from.
        plain: whether all keys are strings, the default one; then there are no global rows.
    """
    rng = random.Random(seed)
    steps = tuple(
        Step(rng.choice(ops), rng.randrange(30), rng.randrange(30), rng.randrange(12), place)
        for place in range(rng.randint(1, 8) if plain else rng.randint(2, 12))
    )
    events = [] if plain else _global_rows(rng)
    time = 100
    for _ in range(rng.randint(1, 25)):
        if interrupted and rng.random() < 0.3:
            events.append(Event(rng.choice(("commit", "commit", "abort", "crash", "crash at"))))
        time = max(0, time + rng.choice((0, 1, 1, 2, 3, 5, 11, 60, -1, -2, -4, -9)))
        key = rng.choice(KEYS) if rng.random() < 0.95 else None
        value = rng.randrange(20) if rng.random() < 0.9 else None
        events.append(Event("send", rng.choice(SOURCES), key, value, time))
    mutable = rng.random() < 0.5
    if plain:
        usual = serdes.json if mutable else serdes.long
        values = Values(usual, (usual, usual), (usual,))
        return Program(steps, tuple(events), mutable, cached, Keys(), values)
    keys = _keys(rng)
    return Program(steps, tuple(events), mutable, cached, keys, _values(rng, mutable=mutable))


def _global_rows(rng: random.Random) -> list[Event]:
    return [
        Event("send", GLOBAL, key, rng.randrange(20) if rng.random() < 0.9 else None, 0)
        for key in rng.choices(KEYS, k=rng.randint(1, 6))
    ]


def _keys(rng: random.Random) -> Keys:
    """Mostly one kind of bytes, named or not, so that most programs run."""
    usual = rng.choice((serdes.string, serdes.json))
    default = usual if rng.random() < 0.6 else rng.choice((serdes.string, serdes.json))

    def drawn(absent: float) -> KeySerde:
        number = rng.random()
        if number < absent:
            return None
        if number < 0.94:
            return rng.choice(STRINGS) if usual is serdes.string else usual
        return rng.choice((serdes.string, serdes.json))

    less = 0.3 if default is usual else 0.02
    sources = tuple(drawn(less) for _ in SOURCES)
    return Keys(default, sources, tuple(drawn(0.5) for _ in range(8)))


def _values(rng: random.Random, *, mutable: bool) -> Values:
    usual = serdes.json if mutable else rng.choice(NUMBERS)

    def drawn() -> ValueSerde:
        number = rng.random()
        if number < 0.2:
            return None
        return usual if number < 0.6 else rng.choice(NUMBERS)

    default = usual if rng.random() < 0.5 else rng.choice(NUMBERS)
    return Values(default, tuple(drawn() for _ in SOURCES), tuple(drawn() for _ in range(11)))


def write(program: Program, builder: Any) -> None:
    """Call the DSL, or its mirror."""
    written = Written(
        builder, program.values, program.keys, cached=program.cached, failing=program.failing
    )
    for place, step in enumerate(program.steps):
        written.step(step, place)
    written.end()


class Written:
    """The streams and tables that a program has made so far.

    Each public method is a call that programs are drawn from (see `OPS`), those whose names begin
    with ``table_`` go on from a table; what helps them begins with an underscore.
    """

    def __init__(
        self, builder: Any, values: Values, keys: Keys, *, cached: bool, failing: bool = False
    ) -> None:
        self._cached = cached
        self._failing = failing
        self._builder = builder
        self._values = values
        self._taken = 0
        """How many serdes of values were asked for."""
        self._keys = keys
        self._streams = [
            builder.stream(topic, key=key, value=value, name=f"read-{topic}")
            for topic, key, value in zip(SOURCES, keys.sources, values.sources, strict=True)
        ]
        self._named: list[Any] = list(self._streams)
        """The streams whose node has a name that is known here."""
        self._tables: list[Any] = []
        self._derived: set[int] = set()
        self._versioned: list[Any] = []
        self._global: Any = None

    def step(self, step: Step, place: int) -> None:
        """Make one call; one that needs a table where there is none makes nothing."""
        self._taken = 3 * place  # whatever other steps there are
        call: Callable[[Any, Step, int], None] = getattr(self, step.op)
        if step.op.startswith("table_"):
            if self._tables:
                call(self._tables[step.index % len(self._tables)], step, place)
                self._derived.add(id(self._tables[-1]))
            return
        call(self._streams[step.index % len(self._streams)], step, place)

    def end(self) -> None:
        """Write everything to topics of its own."""
        for place, stream in enumerate(self._streams):
            stream.to(f"stream-{place}", value=self._value)
        for place, table in enumerate(self._tables):
            table.to_stream().to(f"table-{place}", key=serdes.string, value=self._value)

    def _user(self, function: Any, step: Step) -> Any:
        """A function that a step is given, which fails for some records in failing programs."""
        return failing(function, step.n + step.other) if self._failing else function

    def _other_table(self, step: Step) -> Any:
        return self._tables[step.other % len(self._tables)]

    @property
    def _value(self) -> ValueSerde:
        """The serde that a place names, another one each time; None if it names none."""
        self._taken += 1
        return self._values.calls[self._taken % len(self._values.calls)]

    def _key(self, step: Step) -> dict[str, Any]:
        """The serde that a call names, if it names one."""
        key = self._keys.calls[step.key % len(self._keys.calls)]
        return {} if key is None else {"key": key}

    # -- streams -------------------------------------------------------------------------------

    def _add(self, stream: Any) -> None:
        self._streams.append(stream)
        self._named.append(stream)

    def filter(self, stream: Any, step: Step, place: int) -> None:
        self._add(
            stream.filter(self._user(lambda k, v: kept(k, v, step.n), step), name=f"n{place}")
        )

    def filter_not(self, stream: Any, step: Step, place: int) -> None:
        self._add(
            stream.filter_not(self._user(lambda k, v: kept(k, v, step.n), step), name=f"n{place}")
        )

    def map_values(self, stream: Any, step: Step, place: int) -> None:
        self._add(
            stream.map_values(self._user(lambda v: mapped(v, step.n), step), name=f"n{place}")
        )

    def flat_map_values(self, stream: Any, step: Step, place: int) -> None:
        def several(value: int | None) -> list[int | None]:
            return [value, mapped(value, step.n)][: step.n % 3]

        self._add(stream.flat_map_values(self._user(several, step), name=f"n{place}"))

    def map(self, stream: Any, step: Step, place: int) -> None:
        def both(key: str | None, value: int | None) -> tuple[str | None, int | None]:
            return key_of(key, value, step.n), mapped(value, step.n)

        self._add(stream.map(self._user(both, step), name=f"n{place}"))

    def select_key(self, stream: Any, step: Step, place: int) -> None:
        self._add(
            stream.select_key(self._user(lambda k, v: key_of(k, v, step.n), step), name=f"n{place}")
        )

    def merge(self, stream: Any, step: Step, place: int) -> None:
        other = self._streams[step.other % len(self._streams)]
        self._add(stream.merge(other, name=f"n{place}"))

    def split(self, stream: Any, step: Step, place: int) -> None:
        split = stream.split(name=f"n{place}-")
        split.branch(self._user(lambda k, v: kept(k, v, step.n), step), name="one")
        split.branch(lambda k, v: (v or 0) % 2 == step.n % 2, name="two")
        ends = split.default_branch(name="rest") if step.n % 3 else split.no_default_branch()
        for one in ends.values():
            self._add(one)

    def deduplicate(self, stream: Any, step: Step, place: int) -> None:
        options: dict[str, Any] = {"key_serde": self._key(step).get("key")}
        if step.other % 2:
            options |= {"key": lambda v: None if v is None else v % 4, "id_serde": serdes.long}
        within, grace = (step.n + 1) * 3 * MS, step.n % 4 * 5 * MS
        names = {"store": f"s{place}", "name": f"d{place}"}
        self._add(stream.deduplicate(within=within, grace=grace, **names, **options))

    def sample(self, stream: Any, step: Step, place: int) -> None:
        self._add(stream.sample(step.n / 8 if step.n < 8 else 0.5, by="key", name=f"n{place}"))

    def repartition(self, stream: Any, step: Step, place: int) -> None:
        self._streams.append(
            stream.repartition(name=f"p{place}", value=self._value, **self._key(step))
        )

    def to_table(self, stream: Any, step: Step, place: int) -> None:
        store = f"s{place}" if step.n % 3 else None
        options = {"value": self._value, **self._key(step)}
        self._tables.append(stream.to_table(store=store, name=f"t{place}", **options))

    def versioned_table(self, stream: Any, step: Step, place: int) -> None:
        """One that keeps its past, which joins read as it was at a record's time."""
        kept = Materialized(f"s{place}", history=timedelta(hours=1))
        options = {"value": self._value, **self._key(step)}
        self._versioned.append(stream.to_table(store=kept, name=f"t{place}", **options))

    # -- folds ---------------------------------------------------------------------------------

    def _grouped(self, stream: Any, step: Step, place: int) -> Any:
        options = {"value": self._value, "name": f"g{place}", **self._key(step)}
        if step.other % 2:
            return stream.group_by_key(**options)
        return stream.group_by(self._user(lambda k, v: key_of(k, v, step.n), step), **options)

    def count(self, stream: Any, step: Step, place: int) -> None:
        options = {"store": f"s{place}", "value": self._value}
        self._tables.append(self._grouped(stream, step, place).count(**options))

    def reduce(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        self._tables.append(grouped.reduce(self._user(reduced, step), store=f"s{place}"))

    def aggregate(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        options = {"store": f"s{place}", "value": self._value}
        self._tables.append(
            grouped.aggregate(lambda: step.n, self._user(aggregated, step), **options)
        )

    def reduce_merged(self, stream: Any, step: Step, place: int) -> None:
        options = {"merger": lambda _, one, other: one + other, "store": f"s{place}"}
        self._tables.append(
            self._grouped(stream, step, place).reduce(self._user(summed, step), **options)
        )

    def aggregate_merged(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        options = {"merger": last_of_both, "store": f"s{place}", "value": self._value}
        self._tables.append(grouped.aggregate(int, self._user(last_of, step), **options))

    def cogroup(self, stream: Any, step: Step, place: int) -> None:
        other = self._streams[step.other % len(self._streams)]
        if other is stream:
            return
        options = {"value": self._value}
        one = stream.group_by_key(name=f"g{place}a", **self._key(step), **options)
        two = other.group_by_key(name=f"g{place}b", **options)
        both = one.cogroup(self._user(aggregated, step)).cogroup(two, self._user(subtracted, step))
        self._tables.append(both.aggregate(lambda: step.n, store=f"s{place}", **options))

    def process(self, stream: Any, step: Step, place: int) -> None:
        counts = Stores.key_value(f"s{place}", key=serdes.string, value=serdes.long)

        def count(record: Any, context: Any) -> None:
            if record.key is not None:
                number = (context.store(f"s{place}").get(record.key) or 0) + 1
                context.store(f"s{place}").put(record.key, number)
                context.forward(record.with_value(number))

        self._add(stream.process_values(count, stores=[counts], name=f"n{place}"))

    # -- windows -------------------------------------------------------------------------------

    def windows(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        windowed = grouped.windowed_by(windows_of(step.n), **self._emission(step, place))
        options = {"store": f"s{place}", "value": self._value}
        if step.other % 3 == 0:
            table = windowed.count(**options)
        else:
            table = windowed.aggregate(lambda: step.n, self._user(aggregated_null, step), **options)
        self._windowed(table, place)

    def sessions(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        sessions = SessionWindows(inactivity_gap=(step.n + 1) * MS, grace=step.n % 4 * 5 * MS)
        windowed = grouped.windowed_by(sessions, **self._emission(step, place))
        options = {"store": f"s{place}", "value": self._value}
        if step.other % 3 == 0:
            table = windowed.count(**options)
        else:
            table = windowed.aggregate(
                lambda: step.n,
                self._user(aggregated_null, step),
                self._user(merged, step),
                **options,
            )
        self._windowed(table, place)

    def windowed_keys(self, stream: Any, step: Step, place: int) -> None:
        """Steps with stores whose keys are windowed already; then keys are plain again."""
        if self._cached:
            return
        grouped, kept = self._grouped(stream, step, place), {"value": self._value}
        gap = SessionWindows(inactivity_gap=(step.n % 5 + 1) * MS, grace=9 * MS)
        folded = grouped.windowed_by(gap if step.index % 2 else windows_of(step.n))
        one = folded.count(store=f"s{place}", **kept).to_stream()
        again = one.group_by_key(name=f"g{place}w")
        store, kind = f"s{place}w", step.n % 6
        if kind == 0:
            table = one.to_table(store=store, name=f"t{place}w", **kept)
        elif kind == 1:
            table = again.aggregate(
                lambda: step.n, self._user(windowed_total, step), store=store, **kept
            )
        elif kind == 2:
            table = again.windowed_by(windows_of(step.other)).count(store=store, **kept)
        elif kind == 3:
            table = again.windowed_by(gap).count(store=store, **kept)
        elif kind == 4:
            other = one.filter(lambda k, v: kept_window(k, step.n), name=f"n{place}w")
            both = again.cogroup(windowed_total).cogroup(
                other.group_by_key(name=f"g{place}x"), windowed_total
            )
            table = both.aggregate(lambda: step.n, store=store, **kept)
        else:
            past = Materialized(store, history=timedelta(hours=1))
            versions = one.to_table(store=past, name=f"t{place}w", **kept)
            joined_stream = one.left_join(versions, self._user(joined, step), name=f"j{place}w")
            self._streams.append(joined_stream.select_key(lambda k, v: window_text(k)))
            return
        self._streams.append(table.to_stream().select_key(lambda k, v: window_text(k)))

    def final_windows(self, stream: Any, step: Step, place: int) -> None:
        """Final results, also where a filter or a mapping drops what closes the windows."""
        if self._cached:
            return
        options = {"store": f"s{place}", "value": self._value}
        windows: Any = windows_of(step.n)
        if step.key % 3 == 0:
            windows = SessionWindows(inactivity_gap=(step.n + 1) * MS, grace=step.n % 4 * 5 * MS)
        table = self._grouped(stream, step, place).windowed_by(windows).count(**options)
        kind = step.index % 6
        kept = {"store": f"s{place}f", "value": self._value} if kind % 2 else {}
        if kind in (1, 2, 3):
            keep = self._user(lambda k, v: (v + step.n) % 3 != 0, step)
            table = table.filter(keep, **kept)
        if kind in (3, 4):
            table = table.map_values(self._user(lambda v: mapped(v, step.n), step))
        if kind == 5:
            supplier = partial(WindowTransformer, step.n, failing=self._failing)
            table = table.transform_values(supplier, name=f"v{place}", value=self._value)
        final = table.suppress(Suppressed.until_window_closes(), name=f"w{place}")
        self._windowed(final, place)

    def late_windows(self, stream: Any, step: Step, place: int) -> None:
        """Other steps go on from the records that came too late."""
        windowed = self._grouped(stream, step, place).windowed_by(
            windows_of(step.n), late=self._streams.append
        )
        self._windowed(windowed.count(store=f"s{place}", value=self._value), place)

    def late_sessions(self, stream: Any, step: Step, place: int) -> None:
        """The same of sessions, most of which take late records for some time."""
        sessions = SessionWindows(inactivity_gap=(step.n + 1) * MS, grace=step.n % 4 * 5 * MS)
        grouped = self._grouped(stream, step, place)
        windowed = grouped.windowed_by(sessions, late=self._streams.append)
        self._windowed(windowed.count(store=f"s{place}", value=self._value), place)

    def _windowed(self, table: Any, place: int) -> None:
        stream = unwindowed(table.to_stream())
        if self._cached:
            stream.to(f"table-w{place}", value=self._value)
        else:
            self._streams.append(stream)

    def _emission(self, step: Step, place: int) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if step.index % 2:
            options["emit"] = "on_window_close"
        if step.index % 3 == 0:
            options["late"] = lambda stream: stream.to(f"late-{place}", value=self._value)
        return options

    # -- joins ---------------------------------------------------------------------------------

    def join_table(self, stream: Any, step: Step, place: int) -> None:
        table = self._other_table(step) if self._tables else None
        # Behind a cache a derived table with a store of its own lags behind until the commit.
        if table is None or (self._cached and id(table) in self._derived):
            return
        self._looked_up(stream, table, step, place)

    def join_versioned(self, stream: Any, step: Step, place: int) -> None:
        if self._versioned:
            table = self._versioned[step.other % len(self._versioned)]
            self._looked_up(stream, table, step, place)

    def _looked_up(self, stream: Any, table: Any, step: Step, place: int) -> None:
        join = stream.left_join if step.n % 2 else stream.join
        name = self._name(step, place, stream)
        options = {"value": self._joined(name), **name, **self._key(step)}
        self._streams.append(join(table, self._user(joined, step), **options))

    def _joined(self, name: dict[str, Any]) -> ValueSerde:
        """The serde of a join's values; those that may share a topic have one, as keys tell."""
        return self._value if name else self._values.default

    def _name(self, step: Step, place: int, *streams: Any) -> dict[str, Any]:
        """A join's name; without one it shares a repartition topic with others."""
        known = all(any(stream is one for one in self._named) for stream in streams)
        return {} if known and step.index % 3 else {"name": f"j{place}"}

    def join_global(self, stream: Any, step: Step, place: int) -> None:
        if self._global is None:
            serdes_of = {"value": self._value, **self._key(step)}
            self._global = self._builder.global_table(GLOBAL, store="all-rows", **serdes_of)
        join = stream.left_join if step.n % 2 else stream.join

        def wanted(key: str | None, value: int | None) -> str | None:
            return key_of(key, value, step.other)

        self._add(
            join(
                self._global,
                self._user(joined, step),
                key_mapper=self._user(wanted, step),
                name=f"n{place}",
            )
        )

    def join_stream(self, stream: Any, step: Step, place: int) -> None:
        other = self._streams[step.other % len(self._streams)]
        self._put_together(stream, other, step, **self._name(step, place, stream, other))

    def join_twice(self, stream: Any, step: Step, place: int) -> None:
        """Two joins without names behind one change of the key, each with a serde of its own."""
        self.select_key(stream, step, place)
        changed = self._streams[-1]
        for more in range(2):
            other = self._named[(step.other + more) % len(self._named)]
            self._put_together(changed, other, replace(step, key=step.key + more))

    def late_join(self, stream: Any, step: Step, place: int) -> None:
        """Other steps go on from the records of both sides that came too late."""
        late = {"late": self._streams.append, "other_late": self._streams.append}
        other = self._streams[step.other % len(self._streams)]
        self._put_together(stream, other, step, name=f"j{place}", **late)

    def _put_together(self, stream: Any, other: Any, step: Step, **given: Any) -> None:
        join = (stream.join, stream.left_join, stream.outer_join)[step.n % 3]
        values = {"value": self._joined(given), "other_value": self._joined(given)}
        options = {**values, **given, **self._key(step)}
        if step.n % 3 and step.index % 2:
            options["late_match"] = "drop"
        self._streams.append(
            join(other, self._user(joined, step), join_windows_of(step.n), **options)
        )

    def table_group(self, table: Any, step: Step, place: int) -> None:
        options = {"value": self._value, "name": f"g{place}", **self._key(step)}

        def group_of(key: str, value: int) -> tuple[str | None, int | None]:
            return key_of(key, value, step.n), mapped(value, step.n)

        grouped = table.group_by(self._user(group_of, step), **options)
        kept = {"store": f"s{place}", "value": self._value}
        if step.other % 3 == 0:
            self._tables.append(grouped.count(**kept))
        else:
            self._tables.append(
                grouped.aggregate(
                    lambda: step.n,
                    self._user(aggregated, step),
                    self._user(subtracted, step),
                    **kept,
                )
            )

    def table_suppress(self, table: Any, step: Step, place: int) -> None:
        # When a cache passes updates on, stream time has gone on already.
        if not self._cached:
            limit = Suppressed.until_time_limit(step.n * MS)
            self._tables.append(table.suppress(limit, name=f"w{place}"))

    def table_join(self, table: Any, step: Step, place: int) -> None:
        join = (table.join, table.left_join, table.outer_join)[step.n % 3]
        other = self._other_table(step)
        if other is not table:
            self._tables.append(join(other, self._user(joined, step), **self._maybe(step, place)))

    def table_join_foreign(self, table: Any, step: Step, place: int) -> None:
        """Its results are compared as they are in the end: on the way they come in any order."""
        join = table.left_join if step.n % 2 else table.join
        other = self._other_table(step)
        options = {"store": f"s{place}", "value": self._value, "name": f"f{place}"}
        wanted = self._user(lambda v: key_of(None, v, step.n), step)
        named = join(other, self._user(joined, step), foreign_key=wanted, **options)
        named.to_stream().to(f"last-{place}", key=serdes.string, value=self._value)

    # -- tables --------------------------------------------------------------------------------

    def table_transform_values(self, table: Any, step: Step, place: int) -> None:
        options = {"store": f"s{place}"} if step.other % 2 else {}
        self._tables.append(
            table.transform_values(
                lambda: Transformer(step.n, failing=self._failing),
                value=self._value,
                name=f"v{place}",
                **options,
            )
        )

    def table_filter(self, table: Any, step: Step, place: int) -> None:
        self._tables.append(
            table.filter(
                self._user(lambda k, v: kept(k, v, step.n), step), **self._maybe(step, place)
            )
        )

    def table_map_values(self, table: Any, step: Step, place: int) -> None:
        self._tables.append(
            table.map_values(
                self._user(lambda v: mapped(v, step.n), step), **self._maybe(step, place)
            )
        )

    def table_to_stream(self, table: Any, step: Step, place: int) -> None:
        if not self._cached:
            self._streams.append(table.to_stream())

    def _maybe(self, step: Step, place: int) -> dict[str, Any]:
        if step.other % 2 == 0:
            return {}
        return {"store": f"s{place}", "value": self._value, **self._key(step)}


_APART = (
    "deduplicate", "sample", "late_windows", "late_sessions", "late_join", "windowed_keys",
    "final_windows",
)  # fmt: skip
OPS = tuple(
    name
    for name in vars(Written)
    if not name.startswith("_") and name not in ("step", "end", *_APART)
)
"""All calls that a program can consist of, but for those that have programs of their own."""
FEWER_OPS, LATE_OPS, NESTED_OPS, FINAL_OPS = _APART[:2], _APART[2:5], _APART[5:6], _APART[6:]
_TABLE_FACTORIES = ("join_global", "join_versioned", "table_join_foreign", "table_transform_values")
PLAIN_OPS = tuple(
    op for op in OPS if op not in ("split", "versioned_table", "join_twice", *_TABLE_FACTORIES)
)
"""Those without which a plain program does."""
BEHIND_CACHES = tuple(op for op in PLAIN_OPS if op not in ("table_group", "aggregate_merged"))
"""Those that come to the same whatever caches leave out; `aggregated` is not taken back, and in
which order partial results of several tasks come is open."""
