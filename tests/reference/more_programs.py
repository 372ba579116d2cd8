"""Random programs with more steps than the interpreter knows, for all stores that restarts restore.

Left out are stores without a changelog, which are empty where the disk is lost, as their docs say,
and punctuators by the wall clock, which ask for a time that is not the records'.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from headrace.topology import Materialized, Stores, StreamsBuilder, serdes
from headrace.topology.dsl.suppressed import Suppressed
from headrace.topology.windows import SessionWindows, SlidingWindows, Window, Windowed
from tests.reference.functions import MS, aggregated, aggregated_null, joined, merged, windows_of
from tests.reference.programs import (
    FEWER_OPS,
    GLOBAL,
    OPS,
    SOURCES,
    Event,
    Program,
    Step,
    random_program,
)
from tests.reference.programs import Written as PlainlyWritten

HISTORY = timedelta(milliseconds=200)
Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Sent:
    """A record to send."""

    topic: str
    key: str | None
    value: int | None
    timestamp: int
    headers: Headers


@dataclass(frozen=True)
class Course:
    """A topology to write, and the records that go in before each of its commits."""

    program: Program
    batches: tuple[tuple[Sent, ...], ...]


def course_of(seed: int) -> Course:
    """Draw a program and its input."""
    program = random_program(seed, interrupted=False, cached=False, ops=ALL_OPS)
    program = replace(program, failing=seed % 3 == 2)
    rng = random.Random(f"batches {seed}")
    rows = tuple(_sent(event, rng) for event in program.events if event.topic == GLOBAL)
    rest = [_sent(event, rng) for event in program.events if event.topic != GLOBAL]
    rest += [_later(sent, rest[-1].timestamp, rng) for sent in rest]
    batches: list[tuple[Sent, ...]] = [rows]
    while rest:
        size = rng.randint(1, 6)
        batches.append(tuple(rest[:size]))
        del rest[:size]
    return Course(program, tuple(batches))


def _sent(event: Event, rng: random.Random) -> Sent:
    headers: Headers = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        headers.append((rng.choice("ab"), rng.choice((None, b"", b"\xff", b"x"))))
    return Sent(event.topic, event.key, event.value, event.timestamp, headers)


def _later(sent: Sent, since: int, rng: random.Random) -> Sent:
    """The same again, after what was sent first: most programs are short."""
    value = rng.choice((sent.value, rng.randrange(20)))
    time = since + rng.choice((0, 0, 7, 40)) + sent.timestamp - 100
    topic = rng.choice(SOURCES)
    return Sent(topic, sent.key, value, max(0, time), sent.headers)


def write(program: Program, builder: StreamsBuilder) -> None:
    """Call the DSL."""
    written = Written(builder, program.values, program.keys, cached=False, failing=program.failing)
    for place, step in enumerate(program.steps):
        written.step(step, place)
    written.end()


class Written(PlainlyWritten):
    """The streams and tables that a program has made so far."""

    def sliding_windows(self, stream: Any, step: Step, place: int) -> None:
        windows = SlidingWindows(time_difference=step.n * 2 * MS, grace=step.n % 4 * 5 * MS)
        grouped = self._grouped(stream, step, place)
        windowed = grouped.windowed_by(windows, **self._emission(step, place))
        options = {"store": f"s{place}", "value": self._value}
        self._windowed(
            windowed.aggregate(lambda: step.n, self._user(aggregated, step), **options), place
        )

    def final_results(self, stream: Any, step: Step, place: int) -> None:
        grouped = self._grouped(stream, step, place)
        options = {"store": f"s{place}", "value": self._value}
        if step.other % 3:
            table = grouped.windowed_by(windows_of(step.n)).count(**options)
        else:
            sessions = SessionWindows(inactivity_gap=(step.n + 1) * MS, grace=step.n % 4 * 5 * MS)
            windowed = grouped.windowed_by(sessions)
            functions = self._user(aggregated_null, step), self._user(merged, step)
            table = windowed.aggregate(lambda: step.n, *functions, **options)
        self._windowed(table.suppress(Suppressed.until_window_closes(), name=f"w{place}"), place)

    def join_late_rows(self, stream: Any, step: Step, place: int) -> None:
        """With versions, and records that wait for rows that come late."""
        if not self._versioned:
            return
        table = self._versioned[step.other % len(self._versioned)]
        join = stream.left_join if step.n % 2 else stream.join
        options = {"value": self._value, "grace": step.n * 5 * MS, **self._key(step)}
        self._streams.append(join(table, self._user(joined, step), name=f"j{place}", **options))

    def process_windows(self, stream: Any, step: Step, place: int) -> None:
        kept = (step.n + 3) * 9 * MS
        serdes_of: dict[str, Any] = {"key": serdes.string, "value": serdes.long}
        window = Stores.window(f"w{place}", size=10 * MS, retention=kept, **serdes_of)
        session = Stores.session(f"s{place}", retention=kept, **serdes_of)
        versions = Stores.versioned(f"v{place}", history=HISTORY, **serdes_of)

        def count(record: Any, context: Any) -> None:
            if record.key is None:
                return
            start = record.timestamp // 10 * 10
            rows = context.store(f"w{place}")
            number = (rows.get(record.key, start) or 0) + 1
            rows.put(record.key, number, start)
            sessions = context.store(f"s{place}")
            found = list(sessions.find_sessions(record.key, start, start + 30))
            for one, _ in found:
                sessions.remove(one)
            sessions.put(Windowed(record.key, Window(start, start + 5)), number + len(found))
            past = context.store(f"v{place}")
            before = past.get(record.key, as_of=record.timestamp - 20)
            past.put(record.key, number, record.timestamp)
            earlier = 0 if before is None else before.value
            context.forward(record.with_value(number * 100 + len(found) * 10 + earlier))

        stores: list[Any] = [window, session, versions]
        self._add(stream.process_values(count, stores=stores, name=f"n{place}"))

    def late_table(self, stream: Any, step: Step, place: int) -> None:
        """A table with versions whose changes are read as a stream, those out of order too."""
        kept = Materialized(f"s{place}", history=HISTORY)
        options = {"value": self._value, **self._key(step)}
        table = stream.to_table(store=kept, name=f"t{place}", **options)
        self._versioned.append(table)
        self._streams.append(table.to_stream())


MORE_OPS = tuple(name for name in vars(Written) if not name.startswith("_"))
ALL_OPS = (*OPS, *MORE_OPS, *FEWER_OPS)
