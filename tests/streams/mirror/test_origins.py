"""Where topics have come from, as the tables of other mirrors say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.streams.errors import MissingTopicError
from headrace.streams.kafka.protocols import NewTopic, TopicDescription
from headrace.streams.mirror import topics
from headrace.streams.mirror.names import Naming, Selection, table_of
from headrace.streams.mirror.table import Mirrored, Row, Table, coming_row
from headrace.streams.mirror.topics import MirrorTopics, Side

GONE, KEPT = table_of("gone"), table_of("kept")


def test_a_table_that_is_deleted_while_one_looks_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another mirror's table is of no concern to who only asks whether records would go round."""
    cluster: Any = SimpleNamespace(topic_names=lambda: frozenset({GONE, KEPT, "orders"}))
    west = Side("west", "id-of-west", cluster, {})
    table = Table()
    table.topics["orders"] = Mirrored("id-of-north", "s", "orders", "t", ())

    def read(_: Side, topic: str) -> Table:
        if topic == GONE:
            raise MissingTopicError("it was deleted", topics=[topic])
        return table

    monkeypatch.setattr(topics, "read_table", read)
    looked = MirrorTopics(
        "m",
        west,
        west,
        Selection.of(["orders"]),
        Naming("{topic}", "west"),
        replication_factor=1,
    )
    assert looked.origins() == {"orders": frozenset({"id-of-north"})}


class OneSide:
    """A cluster that notes what is asked of it, into the one order of all that happens."""

    def __init__(self, happened: list[str], *there: str) -> None:
        self._happened = happened
        self._there = dict.fromkeys(there, "t")

    def topic_names(self) -> frozenset[str]:
        return frozenset(self._there)

    def describe(self, names: Any) -> dict[str, TopicDescription]:
        return {name: TopicDescription(name, 2, "t", {}) for name in names if name in self._there}

    def own_configs(self, topic: str) -> dict[str, str]:
        return {"max.message.bytes": "1234"}

    def create_fitting(self, topic: NewTopic) -> dict[str, str]:
        self._happened.append(f"made {topic.name}")
        self._there[topic.name] = "t"
        return {}


def looking(happened: list[str], *there: str) -> MirrorTopics:
    west: Any = OneSide(happened, "orders")
    east: Any = OneSide(happened, *there)
    return MirrorTopics(
        "m",
        Side("west", "id-of-west", west, {}),
        Side("east", "id-of-east", east, {}),
        Selection.of(["*"]),
        Naming("{cluster}.{topic}", "west"),
        replication_factor=1,
    )


def test_where_a_topic_comes_from_is_said_before_it_is_there() -> None:
    """Another mirror may look in between, and would take it for one that is written there."""
    happened: list[str] = []

    def write(rows: list[Row]) -> None:
        coming = Table.of(rows).coming
        happened.extend(f"said {topic}: {sorted(via)}" for topic, via in coming.items())

    (pair,) = looking(happened).update(Table(), write)
    assert happened == ["said west.orders: ['id-of-west']", "made west.orders"]
    assert pair.mirrored.target == "west.orders"


def test_what_is_there_needs_no_word_and_nothing_is_made_before_there_is_a_producer() -> None:
    happened: list[str] = []
    topics_found = looking(happened)
    assert topics_found.limits(Table()) == {"west.orders": 1234}
    assert happened == []


def test_a_topic_that_is_only_about_to_be_made_has_its_origin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [coming_row("east.orders", frozenset({"id-of-east", "id-of-north"}))]
    monkeypatch.setattr(topics, "read_table", lambda *_: Table.of(rows))
    cluster: Any = SimpleNamespace(topic_names=lambda: frozenset({KEPT, "east.orders"}))
    west = Side("west", "id-of-west", cluster, {})
    looked = MirrorTopics(
        "m", west, west, Selection.of(["*"]), Naming("{topic}", "west"), replication_factor=1
    )
    assert looked.origins() == {"east.orders": frozenset({"id-of-east", "id-of-north"})}
    rows.append(coming_row("east.orders", None))
    assert looked.origins() == {}
