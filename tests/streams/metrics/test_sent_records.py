"""What is sent is counted over one producer after another, and the user hears statistics too."""

from __future__ import annotations

import json
from typing import Any

from headrace.streams.metrics.measures import SENT_EVERY_MS, SentRecords


def statistics(**topics: list[int]) -> str:
    return json.dumps(
        {
            "name": "rdkafka#producer-1",
            "topics": {
                name: {"age": 5, "partitions": {str(n): {"txmsgs": sent, "leader": 1} for n, sent in
                                                enumerate(counts)}}
                for name, counts in topics.items()
            },
        }
    )  # fmt: skip


def test_a_producer_that_is_replaced_begins_with_nothing_and_takes_nothing_away() -> None:
    sent = SentRecords()
    first: Any = sent.attach({"acks": "all"})
    assert (first["acks"], first["statistics.interval.ms"]) == ("all", SENT_EVERY_MS)
    first["stats_cb"](statistics(out=[3, 4]))
    first["stats_cb"](statistics(out=[5, 5], other=[1]))
    assert sent.totals() == {"out": 10, "other": 1}
    second: Any = sent.attach({})
    assert sent.totals() == {"out": 10, "other": 1}
    second["stats_cb"](statistics(out=[2, 0]))
    assert sent.totals() == {"out": 12, "other": 1}


def test_statistics_that_the_user_asks_for_are_his_as_well() -> None:
    heard: list[str] = []
    sent = SentRecords()
    made: Any = sent.attach({"statistics.interval.ms": 500, "stats_cb": heard.append})
    made["stats_cb"](statistics(out=[1]))
    assert (made["statistics.interval.ms"], len(heard), sent.totals()) == (500, 1, {"out": 1})
