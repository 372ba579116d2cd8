"""docs/recipes/reprocess-with-spark.md on a real Kafka and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.topology import serdes
from tests.support import kafka
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
