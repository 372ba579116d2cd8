"""docs/api/spark.md on a real Kafka and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import kafka
from tests.support.processes import ROOT
from tests.support.recipes import blocks, renamed
from tests.support.topics import Topics

PAGE = ROOT / "docs" / "api" / "spark.md"
LINES = ["a rose is a rose", "a daisy is not"]


@pytest.mark.usefixtures("spark")
def test_the_page_runs(topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, sink = topics.create("sentences"), topics.create("word-counts")
    kafka.write(topics.bootstrap, source, [(None, line.encode()) for line in LINES])
    rows = [f",{line},{1_700_000_000_000 + n},0,{n}" for n, line in enumerate(LINES)]
    archive = tmp_path / "sentences.csv"
    archive.write_text("\n".join(["key,value,timestamp,partition,offset", *rows]) + "\n")
    names = {
        "sentences.csv": str(archive),
        '"sentences"': f'"{source}"',
        "localhost:9092": topics.bootstrap,
        '"word-count"': f'"{topics.name("word-count")}"',
        "word_count()": f'word_count("{source}", "{sink}")',
    }
    scope: dict[str, Any] = {}
    exec(renamed(blocks(PAGE, "python")[0], names), scope)
    assert capsys.readouterr().out == blocks(PAGE, "text")[0]
