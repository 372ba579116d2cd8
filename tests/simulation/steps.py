"""A topology with windows, sessions, joins, tables and a processor, for the simulation.

Everything comes of one topic whose records carry their own time, some of them late. So what a
partition's task does follows from its records alone, and the outputs in `IN_ORDER` are the same to
the last record whatever goes wrong. Behind a second repartition topic records of several partitions
meet in any order: of those outputs, `AT_LAST`, only the last value of each key is the same.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from headrace.topology import (
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    serdes,
)

IN_ORDER = ("windows", "closed", "sessions", "pairs", "rows", "tallies")
AT_LAST = ("groups", "named")
KEYS = 5
_START_MS = 1_700_000_000_000
_STEP_MS = 40


def steps_topology() -> Topology:
    """Build it."""
    builder = StreamsBuilder()
    events = builder.stream(
        "events",
        key=serdes.string,
        value=serdes.json,
        timestamps=lambda record, _: record.value["at"],
    )
    _add_windows(events)
    _add_joins(events)
    _add_tables(events)
    events.process(Tally, name="tally").to("tallies", key=serdes.string, value=serdes.json)
    return builder.build()


def _add_windows(events: KStream[str, Any]) -> None:
    by_key = events.group_by_key(key=serdes.string, value=serdes.json)
    hopping = TimeWindows(size=_ms(200), advance=_ms(100), grace=_ms(100))
    by_key.windowed_by(hopping).aggregate(
        lambda: 0, _fold, store="windows", value=serdes.integer
    ).to_stream().to("windows")
    tumbling = TimeWindows(size=_ms(300), grace=_ms(50))
    by_key.windowed_by(tumbling, emit="on_window_close").count(store="closed").to_stream().to(
        "closed"
    )
    sessions = SessionWindows(inactivity_gap=_ms(120), grace=_ms(80))
    visits = by_key.windowed_by(sessions).aggregate(
        lambda: 0,
        _fold,
        lambda _, one, other: (one * 37 + other) % 1_000_003,
        store="sessions",
        value=serdes.integer,
    )
    final = visits.suppress(Suppressed.until_window_closes(), name="final")
    final.to_stream().to("sessions")


def _add_joins(events: KStream[str, Any]) -> None:
    near = JoinWindows(time_difference=_ms(100), before=_ms(60), grace=_ms(70))
    left = events.filter(lambda _, event: event["n"] % 2 == 0)
    right = events.filter(lambda _, event: event["n"] % 3 == 0)
    pairs = left.left_join(right, _numbers, near, store="near", name="near")
    pairs.to("pairs", key=serdes.string, value=serdes.json)


def _add_tables(events: KStream[str, Any]) -> None:
    changes = events.filter(lambda _, event: event["n"] % 4 == 0).map_values(_row)
    table: KTable[str, Any] = changes.to_table(
        key=serdes.string, value=serdes.json, store="table", name="table"
    )
    events.left_join(table, _numbers, name="looked-up").to(
        "rows", key=serdes.string, value=serdes.json
    )
    table.group_by(
        lambda _, row: (row["group"], row["n"]),
        key=serdes.string,
        value=serdes.integer,
        name="by-group",
    ).aggregate(
        lambda: 0,
        lambda _, n, total: total + n,
        lambda _, n, total: total - n,
        store="groups",
        value=serdes.integer,
    ).to_stream().to("groups", key=serdes.string, value=serdes.integer)
    # One key's events name a group, so their order decides which name is its last.
    names: KTable[str, Any] = (
        events.filter(lambda key, event: key < "k3" and event["n"] % 4 != 0)
        .map_values(lambda event: None if event["n"] % 7 == 0 else event)
        .select_key(lambda key, _: f"g{key[1]}")
        .to_table(key=serdes.string, value=serdes.json, store="names", name="by-name")
    )
    # A table of its own: the answers move the stream time of the task that has it.
    apart: KTable[str, Any] = changes.select_key(lambda key, _: key).to_table(
        key=serdes.string, value=serdes.json, store="apart", name="apart"
    )
    named = apart.left_join(
        names,
        lambda row, name: [row["n"], None if name is None else name["n"]],
        foreign_key=lambda row: row["group"],
        store=Materialized("named", cached=True),
        name="named",
    )
    named.to_stream().to("named", key=serdes.string, value=serdes.json)


class Tally(Processor[str, Any, str, Any]):
    """Numbers the events of a key, and tells at times how many there were since it last did."""

    stores = (Stores.key_value("tally", key=serdes.string, value=serdes.json),)

    def init(self, context: ProcessorContext[str, Any]) -> None:
        """Keep the store and ask to be called."""
        self.context = context
        self._store = context.store("tally")
        context.schedule(_ms(150), self._tell, kind="stream_time")

    def process(self, record: Record[str, Any]) -> None:
        """Number an event."""
        number, since = self._store.get(record.key) or (0, 0)
        self._store.put(record.key, [number + 1, since + 1])

    def _tell(self, now_ms: int) -> None:
        for key, (number, since) in list(self._store.all()):
            if since:
                self.context.forward(Record(key, [number, since, now_ms], now_ms))
                self._store.put(key, [number, 0])


def _fold(_: str, event: Any, total: int) -> int:
    return int((total * 31 + event["n"] + 1) % 1_000_003)


def _numbers(one: Any, other: Any) -> Any:
    return [one["n"], None if other is None else other["n"]]


def _row(event: Any) -> Any:
    return None if event["n"] % 20 == 0 else {"n": event["n"], "group": event["group"]}


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def steps_inputs(seed: int, count: int = 60) -> dict[str, list[tuple[Any, Any]]]:
    """Make an input for it."""
    dice = random.Random(f"steps/{seed}")
    rows: list[tuple[Any, Any]] = []
    for number in range(count):
        late = dice.randrange(500) if dice.random() < 0.2 else dice.randrange(30)
        key = f"k{dice.randrange(KEYS)}"
        event = {
            "at": _START_MS + number * _STEP_MS - late,
            "group": f"g{dice.randrange(3)}",
            "n": number,
        }
        rows.append((key, event))
    return {"events": rows}
