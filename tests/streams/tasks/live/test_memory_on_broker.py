"""What a worker keeps in memory is bounded by its settings, as the operating system sees it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.patience import PATIENCE_S
from tests.support.processes import running, wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

MIB = 1 << 20
ROWS = 200_000


def written(topics: Topics, records: Iterable[tuple[bytes | None, bytes]]) -> str:
    """A new topic with these records."""
    topic = topics.create("documents")
    producer = Producer(
        {"bootstrap.servers": topics.bootstrap, "queue.buffering.max.messages": 500_000}
    )
    for key, value in records:
        while True:
            try:
                producer.produce(topic, value, key)
            except BufferError:
                producer.poll(0.1)
                continue
            break
    assert producer.flush(PATIENCE_S) == 0
    return topic


def run(kind: str, source: str, records: int, topics: Topics, path: Path) -> tuple[int, int, int]:
    """Resident bytes of an application: before records, after all of them, and the most of it."""
    settings = {
        "application.id": topics.name("app"),
        "bootstrap.servers": topics.bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": str(path / "state"),
    }
    output = topics.create("out")
    plan: dict[str, Any] = {"kind": kind, "settings": settings, "source": source, "output": output}
    with running(plan, path / "app.log", "tests.support.memory_app") as app:

        def is_done() -> bool:
            assert app.running, app.text()[-4000:]
            found = app.reports("committed")
            return bool(found) and found[-1]["committed"] >= records

        wait_until(is_done, what="everything is committed")
        (begin, *_), last = app.reports("running"), app.reports("committed")[-1]
        app.stop()
    return begin["running"], last["resident"], last["most"]


def test_rows_of_json_take_what_the_read_cache_may_take(topics: Topics, tmp_path: Path) -> None:
    """Each row is in the read cache, which holds so many: 64 MiB for 200,000 of 300 bytes.

    With the first buffer of orjson behind each of them it was 900 MB.
    """
    value = b'{"name":"customer","number":%d,"paid":true}'
    records = ((b'"key-%06d"' % n, value % n) for n in range(ROWS))
    source = written(topics, records)
    begin, resident, most = run("documents", source, ROWS, topics, tmp_path)
    print(f"{begin / MIB:.0f} MiB, then {resident / MIB:.0f} and up to {most / MIB:.0f}")
    assert most < begin + 200 * MIB
