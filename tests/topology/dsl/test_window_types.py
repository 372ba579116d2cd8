"""What a type checker knows of windowed tables: test_dsl_types lets one read this file."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from headrace.topology import (
    KStream,
    KTable,
    SessionWindowedKStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindowedKStream,
    TimeWindows,
    UnlimitedWindows,
    Windowed,
    serdes,
)

SECOND = timedelta(seconds=1)


def keep(late: KStream[str, int]) -> None:
    late.to("late")


def append(key: str, value: int, total: list[int]) -> list[int]:
    return [*total, value]


def test_keys_of_windowed_tables_are_windowed() -> None:
    stream = StreamsBuilder().stream("in", key=serdes.string, value=serdes.long)
    group = stream.group_by_key()
    tumbling = group.windowed_by(TimeWindows(size=SECOND), emit="on_window_close", late=keep)
    assert_type(tumbling, TimeWindowedKStream[str, int])
    sliding = group.windowed_by(SlidingWindows(time_difference=SECOND))
    assert_type(sliding, TimeWindowedKStream[str, int])
    assert_type(group.windowed_by(UnlimitedWindows()), TimeWindowedKStream[str, int])
    sessions = group.windowed_by(SessionWindows(inactivity_gap=SECOND))
    assert_type(sessions, SessionWindowedKStream[str, int])
    assert_type(tumbling.count(name="c"), KTable[Windowed[str], int])
    assert_type(tumbling.reduce(max, name="r"), KTable[Windowed[str], int])
    table = sliding.aggregate(lambda: list[int](), append)
    assert_type(table, KTable[Windowed[str], list[int]])
    assert_type(table.to_stream(lambda key, _: key.window.start_ms), KStream[int, list[int]])
