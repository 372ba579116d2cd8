"""docs/backfill.md, block by block, and `headrace backfill` as a person runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.word_count import word_count
from headrace.spark_bridge import read_store
from tests.spark_bridge.support.spark_cluster import spark_cluster
from tests.support import kafka
from tests.support.processes import IMPORT_PATH, ROOT
from tests.support.topics import Topics

Place = Callable[[Path], AbstractContextManager[str]]

BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/backfill.md").read_text(), re.M | re.S)
LINES = ["a rose is a rose", "a daisy is not"]
COUNTS = {"a": 3, "rose": 2, "is": 2, "daisy": 1, "not": 1}

APP = """
from headrace.streams import KafkaStreams
import words_of

app = KafkaStreams(words_of.words({source!r}, {sink!r}), {settings!r})
"""
WORDS = """
from headrace.streams import serdes
from headrace.topology import StreamsBuilder

def split(line):
    return line.split()

def words(source, sink):
    builder = StreamsBuilder()
    lines = builder.stream(source, value=serdes.string)
    by_word = lines.flat_map_values(split).group_by(
        lambda _, word: word, key=serdes.string, name="by-word"
    )
    by_word.count(store="counts").to_stream().to(sink)
    return builder.build()
"""


def test_the_page_runs_as_it_stands(
    spark: Any, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the names of the application and its topics, which others use too."""
    source = topics.create("sentences", partitions=2)
    sink = topics.create("word-counts", partitions=2)
    application = topics.name("word-count")
    kafka.write(topics.bootstrap, source, [(None, line.encode()) for line in LINES])
    options = {"topic": source, "bootstrap.servers": topics.bootstrap, "compacted": "false"}
    records = spark.read.format("changelog").options(**options).load()
    # Spark takes paths from where its JVM was started.
    archive = f'"{tmp_path}/archive/sentences"'
    records.write.parquet(archive.strip('"'))
    names = {
        '"archive/sentences"': archive,
        "localhost:9092": topics.bootstrap,
        '"word-count"': f'"{application}"',
        '"word-count-counts-changelog"': f'"{application}-counts-changelog"',
        '"sentences"': f'"{source}"',
        "word_count()": f'word_count("{source}", "{sink}")',
    }
    scope: dict[str, Any] = {}
    for code in BLOCKS:
        for name, own in names.items():
            code = code.replace(name, own)
        exec(code, scope)
    said = capsys.readouterr().out
    assert "5 keys, 5 outputs" in said
    assert {row["key"]: row["value"] for row in scope["counts"].collect()} == COUNTS
    assert scope["sentences"].count() == 2
    assert scope["latest"].count() == 5
    assert "5 ['key', 'value', 'timestamp', 'partition', 'offset']" in said
    assert len(BLOCKS) == 4


@contextmanager
def this_process(_: Path) -> Iterator[str]:
    """Where Spark runs everything in one JVM."""
    yield "local[2]"


@pytest.mark.slow
@pytest.mark.parametrize("place", [this_process, spark_cluster])
def test_the_command_reads_files_ships_the_project_and_says_what_it_did(
    spark: Any, topics: Topics, tmp_path: Path, place: Place
) -> None:
    """The functions are in modules of the directory that nobody has installed."""
    source = topics.create("sentences", partitions=1)
    sink = topics.create("word-counts", partitions=1)
    settings = {
        "application.id": topics.name("backfilled"),
        "bootstrap.servers": topics.bootstrap,
        "processing.guarantee": "exactly_once_v2",
    }
    (tmp_path / "words_of.py").write_text(WORDS)
    code = APP.format(source=source, sink=sink, settings=settings)
    (tmp_path / "app_of.py").write_text(code)
    rows = ["key,value,timestamp,partition,offset"]
    rows += [f",{line},{1_700_000_000_000 + n},0,{n}" for n, line in enumerate(LINES)]
    (tmp_path / "past.csv").write_text("\n".join(rows) + "\n")
    # The topic has what the archive has, and one more.
    lines = [*LINES, "rose"]
    kafka.write(topics.bootstrap, source, [(None, line.encode()) for line in lines])
    command = [
        sys.executable,
        "-c",
        "from headrace.streams.cli.main import main; main()",
        "backfill",
    ]
    command += ["app_of.py:app", "--source", f"{source}=past.csv", "--id", "from-files"]
    (tmp_path / "spark").mkdir()
    with place(tmp_path / "spark") as master:
        command += ["--master", master, "--conf", "spark.driver.host=127.0.0.1"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert "sub-topology 0: 3 records in 1 tasks" in done.stdout
    assert "5 keys, 5 outputs" in done.stdout
    frame = read_store(spark, word_count(source, sink), "counts", settings)
    assert {row["key"]: row["value"] for row in frame.collect()} == COUNTS | {"rose": 3}


def environment() -> dict[str, str]:
    """Headrace can be imported, and nothing of the directory; executors use this Python."""
    given = {"PYTHONPATH": IMPORT_PATH, "PYSPARK_PYTHON": sys.executable, "COLUMNS": "120"}
    return {**os.environ, **given}
