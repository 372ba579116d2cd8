"""Under at-least-once no row is in a changelog before what followed from it is in its topic.

Otherwise a worker that dies between the two finds the row, reads the record again, sees that it
changes nothing, and what was lost behind it stays lost.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_clients import MemoryPlainProducer
from headrace.topology import StreamsBuilder, serdes
from tests.support.topologies import key_count


@pytest.mark.parametrize("cache", [0, 10_000_000])
def test_a_commit_writes_outputs_before_changelogs(cache: int) -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key=serdes.string, value=serdes.long, store="rows")
    table.filter(lambda k, v: v > 0, store="positive").to_stream().to("out")
    settings = {"statestore.cache.max.bytes": cache}
    driver = TopologyTestDriver(builder.build(), settings, commit="manual")
    for value in (1, 2, None):
        driver.input("in").send("a", value)
        driver.commit()
    logs = {name: topic.logs[0].entries for name, topic in driver.cluster.topics.items()}
    written = {
        name: [message.number for message in entries if message is not None]
        for name, entries in logs.items()
    }
    for changelog in ("test-rows-changelog", "test-positive-changelog"):
        pairs = zip(written["out"], written[changelog], strict=True)
        assert all(output < row for output, row in pairs)


def test_a_commit_waits_for_its_outputs_before_it_writes_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records of different topics reach the brokers in any order."""
    calls: list[str] = []
    for name in ("flush", "send_changelog"):
        right = getattr(MemoryPlainProducer, name)

        def call(*args: object, name: str = name, right: Any = right) -> None:
            calls.append(name)
            right(*args)

        monkeypatch.setattr(MemoryPlainProducer, name, call)
    driver = TopologyTestDriver(key_count(), commit="manual")
    driver.input("in").send("a", "x")
    driver.commit()
    assert calls[-2:] == ["flush", "send_changelog"]
    assert calls.count("send_changelog") == 1
