"""Counts that are made in bulk are those of a loop, whatever the keys are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark_bridge.program import partial_counts
from headrace.spark_bridge.program.partial_counts import _Counting

TEXTS = st.sampled_from(["a", "b", "\ud800"])
NUMBERS = st.sampled_from([1, 2, 1 << 70])
KEYS = st.one_of(TEXTS, st.sampled_from([b"a", b"b"]), NUMBERS, st.booleans(), st.just(1.0))
HEADERS = st.sampled_from([None, [], [("h", b"1")]])
Records = list[tuple[Any, Any, int, Any]]


def records(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Records]:
    """Key, value, timestamp and headers of each."""
    return st.lists(st.tuples(keys, st.sampled_from([None, "v"]), st.integers(0, 9), HEADERS))


def by_key(told: Sequence[tuple[Any, int, int]]) -> dict[tuple[type, Any], tuple[int, int]]:
    """How many of each key, and the largest time; 1, True and 1.0 are different keys."""
    found: dict[tuple[type, Any], tuple[int, int]] = {}
    for key, count, timestamp in told:
        before, largest = found.get((type(key), key), (0, -1))
        found[type(key), key] = before + count, max(largest, timestamp)
    return found


def told_of(given_: Records) -> list[tuple[Any, int, int]]:
    told: list[tuple[Any, int, int]] = []

    def forward(key: Any, count: Any, old: Any, timestamp: int, headers: Any, /) -> None:
        assert old is None
        assert count == 1 or not headers
        told.append((key, count, timestamp))

    counting = _Counting(forward)
    for key, value, timestamp, headers in given_:
        counting.process(key, value, None, timestamp, headers)
    counting.flush()
    before = len(told)
    counting.flush()
    assert len(told) == before, "what was told is not told again"
    return told


@settings(deadline=None)
@given(st.one_of(records(KEYS), records(TEXTS), records(NUMBERS)), st.integers(1, 6))
def test_counts_are_those_of_a_loop(given_: Records, bound: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_counts, "COUNTED_AT_ONCE", bound)
        patch.setattr(partial_counts, "PARTIALS_MAX", bound)
        patch.setattr(partial_counts, "KEYS_MAX", 2)
        told = told_of(given_)
    assert by_key(told) == by_key([(key, 1, t) for key, value, t, _ in given_ if value])


def test_a_key_is_told_once_and_the_first_one_first() -> None:
    told = told_of([(key, "v", time, None) for time, key in enumerate("cabcab" * 5)])
    assert told == [("c", 10, 27), ("a", 10, 28), ("b", 10, 29)]
