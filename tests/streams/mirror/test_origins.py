"""Where topics have come from, as the tables of other mirrors say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.streams.errors import MissingTopicError
from headrace.streams.mirror import topics
from headrace.streams.mirror.names import Naming, Selection, table_of
from headrace.streams.mirror.table import Mirrored, Table
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
