"""Stores that are asked as those of another kind say what to ask with instead."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from headrace import KafkaStreams, SessionWindows, StreamsBuilder, TimeWindows, serdes
from headrace.streams.queries.errors import WrongKindError
from headrace.streams.queries.queries import Queries

SETTINGS = {"application.id": "asked", "bootstrap.servers": "nowhere:1"}
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queries]:
    builder = StreamsBuilder()
    grouped = builder.stream("words", key=serdes.string, value=serdes.string).group_by_key()
    grouped.count(store="counts").to_stream().to("out")
    grouped.windowed_by(TimeWindows(size=MINUTE)).count(store="windows").to_stream().to("w")
    sessions = SessionWindows(inactivity_gap=MINUTE)
    grouped.windowed_by(sessions).count(store="sessions").to_stream().to("s")
    settings = {**SETTINGS, "state.dir": str(tmp_path_factory.mktemp("state"))}
    with KafkaStreams(builder.build(), settings).queries() as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "ask", "said"),
    [
        (
            "sessions",
            lambda store: store.get("a"),
            "has sessions. Use fetch(key, start, end) or",
        ),
        ("sessions", lambda store: store.find("a"), "Use fetch(key, start, end) or find_se"),
        ("windows", lambda store: store.get("a"), "has windows. Use fetch(key, start, end)"),
        ("windows", lambda store: store.get("a", as_of=1), "Use fetch(key, start, end)"),
        ("windows", lambda store: store["a"], "has windows. Use fetch(key, start, end)"),
        ("windows", lambda store: "a" in store, "has windows. Use fetch(key, start, end)"),
        ("windows", lambda store: store.range("a", "b"), "Use fetch_all(start, end) or all()"),
        ("windows", lambda store: store.prefix_scan("a"), "Use fetch_all(start, end) or all"),
        ("windows", lambda store: store.find_sessions("a", 0, 9), "windows, not sessions. Use"),
        ("counts", lambda store: store.get("a", as_of=4), "has no versions. Use get(key)"),
        ("counts", lambda store: store.fetch("a"), "has no windows. Use get(key)"),
        ("counts", lambda store: store.fetch_all(), "Use range(start, end) or all()"),
    ],
)
def test_another_kind_of_store_says_what_to_ask_with(
    queries: Queries, kind: str, ask: Any, said: str
) -> None:
    store = queries.store(kind)
    with pytest.raises(WrongKindError) as refused:
        ask(store)
    assert str(refused.value).startswith(f"store {kind!r} ")
    assert said in str(refused.value)


@pytest.mark.parametrize("kind", ["counts", "windows", "sessions"])
def test_what_a_kind_has_not_is_no_attribute(queries: Queries, kind: str) -> None:
    store = queries.store(kind)
    assert hasattr(store, "range") == (kind == "counts")
    assert hasattr(store, "fetch") == (kind != "counts")
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        _ = store.unheard_of
    assert copy.copy(store).name == kind
