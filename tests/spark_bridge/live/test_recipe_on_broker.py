"""The recipes that backfill, on a real Kafka and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.topology import serdes
from tests.spark_bridge.support.handed import START_MS
from tests.support import kafka
from tests.support.live import live
from tests.support.recipes import blocks, renamed, scope_of
from tests.support.topics import Topics


def test_the_recipe_reprocesses_files_into_the_state(
    spark: Any, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = topics.create("orders", partitions=2), topics.create("spending")
    names = {'"orders"': f'"{source}"', '"spending"': f'"{output}"'}
    scope = scope_of("reprocess-with-spark", names=names)
    orders = [("ann", 20), ("bob", 5), ("ann", 3)]
    kafka.write(
        topics.bootstrap, source, [(k.encode(), serdes.long.serialize(v)) for k, v in orders]
    )
    options = {"topic": source, "bootstrap.servers": topics.bootstrap, "compacted": "false"}
    spark.read.format("changelog").options(**options).load().write.parquet(f"{tmp_path}/orders")
    (code,) = blocks("reprocess-with-spark", "python")
    application = topics.name("spending")
    own = {"archive/orders": f"{tmp_path}/orders", "localhost:9092": topics.bootstrap,
           '"spending"': f'"{application}"', '"orders"': f'"{source}"'}  # fmt: skip
    exec(renamed(code, own), scope)
    assert blocks("reprocess-with-spark", "text")[0] in capsys.readouterr().out
    last = {record.key: record.value for record in kafka.read(topics.bootstrap, output)}
    assert last == {b"ann": serdes.long.serialize(23), b"bob": serdes.long.serialize(5)}


def test_a_corrected_version_is_backfilled_and_continues(
    spark: Any, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on the page; the files end before the cut-over, from which Kafka has the records."""
    page = "backfill-and-switch"
    source, output = topics.create("orders", partitions=2), topics.create("totals-2")
    own = {
        '"orders"': f'"{source}"',
        '"totals-2"': f'"{output}"',
        "localhost:9092": topics.bootstrap,
        '"shop-2"': f'"{topics.name("shop-2")}"',
    }
    scope = scope_of(page, names=own)
    encode = serdes.long.serialize
    orders = [(b"ann", encode(250)), (b"bob", encode(100)), (b"ann", encode(-50))]
    rows = [(key, value, START_MS + number) for number, (key, value) in enumerate(orders)]
    frame = spark.createDataFrame(rows, "key binary, value binary, timestamp long")
    frame.write.parquet(f"{tmp_path}/orders")
    (code,) = blocks(page, "python")
    exec(renamed(code, {"archive/orders": f"{tmp_path}/orders", '"orders"': f'"{source}"'}), scope)
    assert blocks(page, "text")[0] in capsys.readouterr().out
    second = scope["second"]
    kafka.write(topics.bootstrap, source, [(b"ann", encode(7))])
    with live(second.topology, second.settings | {"state.dir": str(tmp_path)}) as app:
        app.wait_processed(1)
    last = {record.key: record.value for record in kafka.read(topics.bootstrap, output)}
    assert last == {b"ann": encode(207), b"bob": encode(100)}
