"""What count, reduce and aggregate do to a row, and that every face of them asks there."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace import (
    KGroupedStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
)
from headrace.topology.functions import functions_in
from headrace.topology.graph.fold import Aggregating, Counting, Fold, Reducing
from headrace.topology.graph.graph import by_name

GAP = timedelta(milliseconds=5)


def empty() -> str:
    return ""


def both(one: str, other: str) -> str:
    return one + other


def without(one: str, other: str) -> str:
    return one.replace(other, "", 1)


def append(_key: str, value: str, text: str) -> str:
    return text + value


def cut(_key: str, value: str, text: str) -> str:
    return text.replace(value, "", 1)


def join(_key: str, one: str, other: str) -> str:
    return one + other


FOLDS = [Counting(), Reducing(both, without), Aggregating(empty, append, cut, join)]


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.word)
def test_a_step_without_a_row_is_one_from_the_initial_aggregate(fold: Fold) -> None:
    one = fold.step("k", "a", None)
    assert one == fold.add("k", "a", fold.initial())
    assert fold.step("k", "b", one) == fold.add("k", "b", one) != one


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.word)
def test_what_is_removed_and_what_is_merged_is_as_if_it_had_come_or_not(fold: Fold) -> None:
    one, other = fold.step("k", "a", None), fold.step("k", "b", None)
    two = fold.step("k", "b", one)
    assert fold.remove("k", "b", two) == one
    assert fold.merge("k", fold.merge("k", fold.initial(), one), other) == two


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.word)
def test_the_source_does_what_a_step_does(fold: Fold) -> None:
    names = {name: name for name in fold.functions}
    code = fold.source.format(key="key", value="value", old="old", **names)
    for old in (None, fold.step("k", "a", None)):
        known = {"key": "k", "value": "b", "old": old, **fold.functions}
        assert eval(code, known) == fold.step("k", "b", old)


def test_folds_of_the_same_functions_are_equal() -> None:
    assert Reducing(max) == Reducing(max) != Reducing(min)
    assert len({Counting(), Counting(), Aggregating(empty, append)}) == 2


def _functions(builder: StreamsBuilder, node: str) -> set[str]:
    return {f.__name__ for f in functions_in(by_name(builder.build().nodes)[node])}


def _tables(group: KGroupedStream[str, str]) -> dict[str, Any]:
    tumbling, sliding = TimeWindows(size=GAP), SlidingWindows(time_difference=GAP)
    sessions = SessionWindows(inactivity_gap=GAP)
    return {
        "stream": group,
        "windows": group.windowed_by(tumbling),
        "sliding windows": group.windowed_by(sliding),
        "sessions": group.windowed_by(sessions),
    }


CALLS: dict[str, tuple[Callable[[Any, bool], Any], set[str]]] = {
    "count": (lambda on, _: on.count(name="fold"), set()),
    "reduce": (lambda on, _: on.reduce(both, name="fold"), {"both"}),
    "aggregate": (
        lambda on, merges: on.aggregate(empty, append, *([join] if merges else []), name="fold"),
        {"empty", "append"},
    ),
}


@pytest.mark.parametrize("word", CALLS)
@pytest.mark.parametrize("face", ["stream", "windows", "sliding windows", "sessions"])
def test_a_fold_that_fails_is_told_with_the_functions_of_the_user_alone(
    face: str, word: str
) -> None:
    builder = StreamsBuilder()
    group = builder.stream("in", key=serdes.string, value=serdes.string).group_by_key()
    call, functions = CALLS[word]
    call(_tables(group)[face], face == "sessions")
    expected = functions | ({"join"} if word == "aggregate" and face == "sessions" else set())
    assert _functions(builder, "fold") == expected


def test_a_grouped_table_is_told_with_what_takes_away_too() -> None:
    builder = StreamsBuilder()
    group = builder.table("in", key=serdes.string).group_by(lambda key, value: (key, value))
    group.aggregate(empty, append, cut, name="fold")
    assert _functions(builder, "fold") == {"empty", "append", "cut"}


@pytest.mark.parametrize(
    "windows", [None, TimeWindows(size=GAP), SessionWindows(inactivity_gap=GAP)]
)
def test_a_stream_of_a_cogroup_is_told_with_its_own_aggregator(windows: Any) -> None:
    builder = StreamsBuilder()
    group = builder.stream("in", key=serdes.string, value=serdes.string).group_by_key()
    table = group.cogroup(append)
    if windows is None:
        table.aggregate(empty, name="both")
    elif isinstance(windows, TimeWindows):
        table.windowed_by(windows).aggregate(empty, name="both")
    else:
        table.windowed_by(windows).aggregate(empty, join, name="both")
    merges = {"join"} if isinstance(windows, SessionWindows) else set()
    assert _functions(builder, "both-cogroup-agg-0") == {"empty", "append"} | merges


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: fold.word)
def test_a_fold_travels_to_executors(fold: Fold) -> None:
    there = pickle.loads(pickle.dumps(fold))
    assert there == fold
    assert there.step("k", "b", there.step("k", "a", None)) == fold.step(
        "k", "b", fold.step("k", "a", None)
    )
