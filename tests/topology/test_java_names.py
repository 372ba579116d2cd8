"""Who writes the names of Kafka Streams as they are in Java is told those that they have here."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.topology import (
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from headrace.topology.processors.stores import Stores

SIZE = timedelta(seconds=5)


def stream() -> Any:
    return StreamsBuilder().stream("in")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: stream().mapValues, "'KStream' object has no .*'mapValues'; .* is map_values$"),
        (lambda: stream().groupByKey, "is group_by_key$"),
        (lambda: stream().foreach, "is for_each$"),
        (lambda: stream().flatTransform, "is process$"),
        (lambda: stream().group_by_key().windowedBy, "is windowed_by$"),
        (lambda: StreamsBuilder().table("t").toStream, "is to_stream$"),
        (lambda: StreamsBuilder().globalTable, "is global_table$"),
        (lambda: StreamsBuilder().build().addSource, "is add_source$"),
        (lambda: StreamsBuilder().stream("in").split().defaultBranch, "is default_branch$"),
        (lambda: TimeWindows.ofSizeWithNoGrace, r"write TimeWindows\(size=\.\.\., advance=.*, g"),
        (lambda: TimeWindows.of, r"write TimeWindows\(size="),
        (lambda: SlidingWindows.ofTimeDifferenceAndGrace, r"write SlidingWindows\(time_differ"),
        (
            lambda: SessionWindows.ofInactivityGapWithNoGrace,
            r"write SessionWindows\(inactivity_gap=",
        ),
        (lambda: JoinWindows.ofTimeDifferenceWithNoGrace, r"write JoinWindows\("),
        (lambda: Materialized.with_, r"write Materialized\("),
        (lambda: Suppressed.untilWindowCloses, "is until_window_closes$"),
        (lambda: Stores.persistentKeyValueStore, "is key_value$"),
        (lambda: Stores.sessionStoreBuilder, "is session$"),
    ],
)
def test_a_name_of_java_s_is_answered_with_the_name_here(ask: Callable[[], Any], said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        ask()


def test_other_names_are_unknown_as_ever() -> None:
    with pytest.raises(AttributeError, match=r"'KStream' object has no attribute 'wibble'$"):
        stream().wibble  # noqa: B018
    with pytest.raises(AttributeError, match=r"'TimeWindows' has no attribute 'wibble'$"):
        TimeWindows.wibble  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(stream(), "__array__")
    assert not hasattr(TimeWindows, "__array__")


def test_type_checkers_know_of_no_unknown_names() -> None:
    with pytest.raises(AttributeError):
        StreamsBuilder().stream("in").groupByKey()  # type: ignore[attr-defined]


def test_windows_are_copied_and_travel_as_before() -> None:
    windows = TimeWindows(size=SIZE)
    assert copy.deepcopy(windows) == pickle.loads(pickle.dumps(windows)) == windows


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimeWindows(timedelta(minutes=1)),  # type: ignore[misc]
        lambda: JoinWindows(timedelta(minutes=1)),  # type: ignore[misc]
        lambda: SessionWindows(timedelta(minutes=1), grace=timedelta(0)),  # type: ignore[misc]
    ],
)
def test_an_argument_without_its_name_is_told_the_names(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=r"takes its arguments by name; write \w+\(\w+=\.\.\."):
        make()
