"""Requests that workers repeat for months release the memory of their answers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.protocols import TopicPartition
from tests.support.patience import PATIENCE_S
from tests.support.topics import Topics

REPEATED = 100
SPANS = 5
TOPICS = 4
KEPT_MAX = 0.5
"""Memory blocks of Python that a request may leave on average; a leak leaves one for each topic."""


def _request(name: str, admin: LiveAdmin, topics: list[str], group: str) -> Callable[[], object]:
    tps = [TopicPartition(topic, 0) for topic in topics]
    requests: dict[str, Callable[[], object]] = {
        "topic IDs": lambda: admin.ask_ids(topics)(PATIENCE_S),
        "topics": lambda: admin.describe(topics),
        "start offsets": lambda: admin.start_offsets(tps),
        "end offsets": lambda: admin.end_offsets(tps),
        "stable offsets": lambda: admin.stable_offsets(tps),
        "committed offsets": lambda: admin.committed_offsets(group, tps),
        "group state": lambda: admin.group_state(group),
    }
    return requests[name]


# The others never left anything; they run with the slow tests.
_OTHERS = ("start offsets", "end offsets", "stable offsets", "committed offsets", "group state")


@pytest.mark.parametrize(
    "name",
    ["topic IDs", "topics", *(pytest.param(name, marks=pytest.mark.long) for name in _OTHERS)],
)
def test_a_repeated_request_leaves_no_memory(name: str, topics: Topics) -> None:
    names = [topics.create(f"in-{n}") for n in range(TOPICS)]
    admin = LiveAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=PATIENCE_S)
    request = _request(name, admin, names, topics.name("group"))
    kept = []
    for _ in range(SPANS):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(REPEATED):
            request()
        gc.collect()
        kept.append((sys.getallocatedblocks() - before) / REPEATED)
    # The first requests fill caches; a leak is in every span.
    assert min(kept) < KEPT_MAX, kept
