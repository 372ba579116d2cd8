"""Random programs in the DSL's words; each writes a topology, or the interpreter's mirror."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology import Stores, serdes
from topology.suppressed import Suppressed
from topology.windows import JoinWindows, SessionWindows, TimeWindows

MS = timedelta(milliseconds=1)
KEYS = ("a", "b", "c", "dd")
SOURCES = ("in-0", "in-1")


@dataclass(frozen=True)
class Step:
    """One call: which of the streams or tables so far it goes on from, and its numbers."""

    op: str
    index: int
    other: int
    n: int


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


def random_program(seed: int, *, interrupted: bool, cached: bool, ops: tuple[str, ...]) -> Program:
    """Draw a program.

    Args:
        seed: decides everything.
        cached: whether the topology will hold back updates.
        interrupted: whether commits, aborts and crashes come between records.
        ops: the calls to choose from.
    """
    rng = random.Random(seed)
    steps = tuple(
        Step(rng.choice(ops), rng.randrange(30), rng.randrange(30), rng.randrange(12))
        for _ in range(rng.randint(1, 8))
    )
    events = []
    time = 100
    for _ in range(rng.randint(1, 25)):
        if interrupted and rng.random() < 0.3:
            events.append(Event(rng.choice(("commit", "commit", "abort", "crash", "crash at"))))
        time = max(0, time + rng.choice((0, 1, 1, 2, 3, 5, 11, 60, -1, -2, -4, -9)))
        key = rng.choice(KEYS) if rng.random() < 0.95 else None
        value = rng.randrange(20) if rng.random() < 0.9 else None
        events.append(Event("send", rng.choice(SOURCES), key, value, time))
    return Program(steps, tuple(events), rng.random() < 0.5, cached)


def write(program: Program, builder: Any) -> None:
    """Call the DSL, or its mirror."""
    value = serdes.json if program.mutable else serdes.long
    written = Written(builder, value, cached=program.cached)
    for place, step in enumerate(program.steps):
        written.step(step, place)
    written.end()


class Written:
    """The streams and tables that a program has made so far."""

    def __init__(self, builder: Any, value: Any, *, cached: bool) -> None:
        self._cached = cached
        self._builder = builder
        self._value = value
        self._streams = [builder.stream(t, key=serdes.string, value=value) for t in SOURCES]
        self._tables: list[Any] = []
        self._derived: set[int] = set()

    def step(self, step: Step, place: int) -> None:
        """Make one call; one that needs a table where there is none makes nothing."""
        call: Callable[[Any, Step, int], None] = getattr(self, f"_{step.op}")
        if step.op.startswith("table_"):
            if self._tables:
                call(self._tables[step.index % len(self._tables)], step, place)
                self._derived.add(id(self._tables[-1]))
            return
        call(self._streams[step.index % len(self._streams)], step, place)

    def end(self) -> None:
        """Write everything to topics of its own."""
        for place, stream in enumerate(self._streams):
            stream.to(f"stream-{place}", key=serdes.string, value=self._value)
        for place, table in enumerate(self._tables):
            table.to_stream().to(f"table-{place}", key=serdes.string, value=self._value)

    def _other_table(self, step: Step) -> Any:
        return self._tables[step.other % len(self._tables)]

    # -- streams -------------------------------------------------------------------------------

    def _filter(self, stream: Any, step: Step, place: int) -> None:
        self._streams.append(stream.filter(lambda k, v: kept(k, v, step.n)))

    def _filter_not(self, stream: Any, step: Step, place: int) -> None:
        self._streams.append(stream.filter_not(lambda k, v: kept(k, v, step.n)))

    def _map_values(self, stream: Any, step: Step, place: int) -> None:
        self._streams.append(stream.map_values(lambda v: mapped(v, step.n)))

    def _flat_map_values(self, stream: Any, step: Step, place: int) -> None:
        self._streams.append(stream.flat_map_values(lambda v: [v, mapped(v, step.n)][: step.n % 3]))

    def _map(self, stream: Any, step: Step, place: int) -> None:
        self._streams.append(stream.map(lambda k, v: (key_of(k, v, step.n), mapped(v, step.n))))

    def _select_key(self, stream: Any, step: Step, place: int) -> None:
        self._streams.append(stream.select_key(lambda k, v: key_of(k, v, step.n)))

    def _merge(self, stream: Any, step: Step, place: int) -> None:
        self._streams.append(stream.merge(self._streams[step.other % len(self._streams)]))

    def _repartition(self, stream: Any, step: Step, place: int) -> None:
        self._streams.append(
            stream.repartition(name=f"p{place}", key=serdes.string, value=self._value)
        )

    def _to_table(self, stream: Any, step: Step, place: int) -> None:
        store = f"s{place}" if step.n % 3 else None
        options = {"key": serdes.string, "value": self._value}
        self._tables.append(stream.to_table(store=store, name=f"t{place}", **options))

    # -- folds ---------------------------------------------------------------------------------

    def _grouped(self, stream: Any, step: Step, place: int) -> Any:
        options = {"key": serdes.string, "value": self._value, "name": f"g{place}"}
        if step.other % 2:
            return stream.group_by_key(**options)
        return stream.group_by(lambda k, v: key_of(k, v, step.n), **options)

    def _count(self, stream: Any, step: Step, place: int) -> None:
        options = {"store": f"s{place}", "value": self._value}
        self._tables.append(self._grouped(stream, step, place).count(**options))

    def _reduce(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        self._tables.append(grouped.reduce(reduced, store=f"s{place}"))

    def _aggregate(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        options = {"store": f"s{place}", "value": self._value}
        self._tables.append(grouped.aggregate(lambda: step.n, aggregated, **options))

    def _cogroup(self, stream: Any, step: Step, place: int) -> None:
        other = self._streams[step.other % len(self._streams)]
        if other is stream:
            return
        options = {"key": serdes.string, "value": self._value}
        one = stream.group_by_key(name=f"g{place}a", **options)
        two = other.group_by_key(name=f"g{place}b", **options)
        both = one.cogroup(aggregated).cogroup(two, subtracted)
        self._tables.append(both.aggregate(lambda: step.n, store=f"s{place}", **options))

    def _process(self, stream: Any, step: Step, place: int) -> None:
        counts = Stores.key_value(f"s{place}", key=serdes.string, value=serdes.long)

        def count(record: Any, context: Any) -> None:
            if record.key is not None:
                number = (context.store(f"s{place}").get(record.key) or 0) + 1
                context.store(f"s{place}").put(record.key, number)
                context.forward(record.with_value(number))

        self._streams.append(stream.process_values(count, stores=[counts], name=f"n{place}"))

    # -- windows -------------------------------------------------------------------------------

    def _windows(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        windowed = grouped.windowed_by(windows_of(step.n), **self._emission(step, place))
        options = {"store": f"s{place}", "value": self._value}
        if step.other % 3 == 0:
            table = windowed.count(**options)
        else:
            table = windowed.aggregate(lambda: step.n, aggregated_null, **options)
        self._windowed(table, place)

    def _sessions(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        sessions = SessionWindows(inactivity_gap=(step.n + 1) * MS, grace=step.n % 4 * 5 * MS)
        windowed = grouped.windowed_by(sessions, **self._emission(step, place))
        options = {"store": f"s{place}", "value": self._value}
        if step.other % 3 == 0:
            table = windowed.count(**options)
        else:
            table = windowed.aggregate(lambda: step.n, aggregated_null, merged, **options)
        self._windowed(table, place)

    def _windowed(self, table: Any, place: int) -> None:
        stream = unwindowed(table.to_stream())
        if self._cached:
            stream.to(f"table-w{place}", key=serdes.string, value=self._value)
        else:
            self._streams.append(stream)

    def _emission(self, step: Step, place: int) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if step.index % 2:
            options["emit"] = "on_window_close"
        if step.index % 3 == 0:
            end = {"key": serdes.string, "value": self._value}
            options["late"] = lambda stream: stream.to(f"late-{place}", **end)
        return options

    # -- joins ---------------------------------------------------------------------------------

    def _join_table(self, stream: Any, step: Step, place: int) -> None:
        table = self._other_table(step) if self._tables else None
        # Behind a cache a derived table with a store of its own lags behind until the commit.
        if table is None or (self._cached and id(table) in self._derived):
            return
        join = stream.left_join if step.n % 2 else stream.join
        options = {"key": serdes.string, "value": self._value, "name": f"j{place}"}
        self._streams.append(join(table, joined, **options))

    def _join_stream(self, stream: Any, step: Step, place: int) -> None:
        other = self._streams[step.other % len(self._streams)]
        join = (stream.join, stream.left_join, stream.outer_join)[step.n % 3]
        options = {
            "key": serdes.string,
            "value": self._value,
            "other_value": self._value,
            "name": f"j{place}",
        }
        if step.n % 3 and step.index % 2:
            options["late_match"] = "drop"
        self._streams.append(join(other, joined, join_windows_of(step.n), **options))

    def _table_group(self, table: Any, step: Step, place: int) -> None:
        options = {"key": serdes.string, "value": self._value, "name": f"g{place}"}
        grouped = table.group_by(lambda k, v: (key_of(k, v, step.n), mapped(v, step.n)), **options)
        kept = {"store": f"s{place}", "value": self._value}
        if step.other % 3 == 0:
            self._tables.append(grouped.count(**kept))
        else:
            self._tables.append(grouped.aggregate(lambda: step.n, aggregated, subtracted, **kept))

    def _table_suppress(self, table: Any, step: Step, place: int) -> None:
        # When a cache passes updates on, stream time has gone on already.
        if not self._cached:
            limit = Suppressed.until_time_limit(step.n * MS)
            self._tables.append(table.suppress(limit, name=f"w{place}"))

    def _table_join(self, table: Any, step: Step, place: int) -> None:
        join = (table.join, table.left_join, table.outer_join)[step.n % 3]
        other = self._other_table(step)
        if other is not table:
            self._tables.append(join(other, joined, **self._maybe(step, place)))

    # -- tables --------------------------------------------------------------------------------

    def _table_filter(self, table: Any, step: Step, place: int) -> None:
        self._tables.append(
            table.filter(lambda k, v: kept(k, v, step.n), **self._maybe(step, place))
        )

    def _table_map_values(self, table: Any, step: Step, place: int) -> None:
        self._tables.append(
            table.map_values(lambda v: mapped(v, step.n), **self._maybe(step, place))
        )

    def _table_to_stream(self, table: Any, step: Step, place: int) -> None:
        if not self._cached:
            self._streams.append(table.to_stream())

    def _maybe(self, step: Step, place: int) -> dict[str, Any]:
        if step.other % 2 == 0:
            return {}
        return {"store": f"s{place}", "key": serdes.string, "value": self._value}


def kept(key: str | None, value: int | None, n: int) -> bool:
    """Whether a filter keeps a record."""
    return (len(key or "") + (value or 0) + n) % 3 != 0


def mapped(value: int | None, n: int) -> int | None:
    """Another value; None now and then."""
    number = (0 if value is None else value) + n
    return None if number % 5 == 4 else number % 50


def key_of(key: str | None, value: int | None, n: int) -> str | None:
    """Another key; None now and then."""
    number = len(key or "") + (value or 0) * 7 + n
    return None if number % 13 == 5 else KEYS[number % len(KEYS)]


def joined(one: int | None, other: int | None) -> int:
    """Of two values, either of which may be missing, another one."""
    return ((one or 0) * 7 + (other or 0) * 3 + (one is None) + 2 * (other is None)) % 97


def merged(key: str, one: int, other: int) -> int:
    """Not commutative either."""
    return (one * 5 + other + len(key)) % 89


def windows_of(n: int) -> TimeWindows:
    """Tumbling and hopping windows of some sizes."""
    size = (3, 5, 10, 30)[n % 4]
    advance = None if n % 3 == 0 else max(1, size // 2)
    grace = (0, 0, 4, 20)[n // 3 % 4]
    return TimeWindows(
        size=size * MS, advance=advance if advance is None else advance * MS, grace=grace * MS
    )


def join_windows_of(n: int) -> JoinWindows:
    """Windows that are not the same on both sides, some of them."""
    difference = (0, 3, 10, 40)[n % 4] * MS
    after = None if n % 3 else 0 * MS
    return JoinWindows(time_difference=difference, after=after, grace=(0, 2, 15)[n // 4 % 3] * MS)


def subtracted(key: str, value: int, old: int) -> int | None:
    """What takes away; not the opposite of adding, so that order shows."""
    return reduced(old - len(key), value + 5)


def unwindowed(stream: Any) -> Any:
    """The stream with plain keys, which say the window."""
    return stream.select_key(lambda w, v: f"{w.key}-{w.window.start_ms}-{w.window.end_ms}")


def aggregated_null(key: str, value: int | None, old: int) -> int | None:
    """Like `aggregated`; takes null values too."""
    return aggregated(key, -1 if value is None else value, old)


def reduced(old: int, new: int) -> int | None:
    """Not commutative, so that order shows; None now and then."""
    number = (old * 3 + new) % 101
    return None if number % 11 == 10 else number


def aggregated(key: str, value: int, old: int) -> int | None:
    """The same, of the key as well."""
    return reduced(old + len(key), value)


_HELPERS = ("__", "_grouped", "_maybe", "_other", "_emission", "_windowed")
OPS = tuple(
    name.removeprefix("_")
    for name in vars(Written)
    if name.startswith("_") and not name.startswith(_HELPERS)
)
"""All calls that a program can consist of."""

BEHIND_CACHES = tuple(op for op in OPS if op != "table_group")
"""Those that come to the same whatever caches leave out; `aggregated` is not taken back."""
