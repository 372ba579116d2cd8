"""Who does not use the bridge never loads Spark, and need not have it installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

SPARK = ("pyspark", "pyarrow", "pandas", "numpy")
HELP = """
from click.testing import CliRunner
from headrace.streams.cli.main import main
shown = CliRunner().invoke(main, ["--help"])
assert "Run an application over history on Spark" in shown.output, shown.output
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "code",
    [
        "import headrace.state, headrace.state.buffer, headrace.state.rocks",
        "from headrace.topology.compile import compiler; from headrace.topology.serdes import avro",
        "import headrace.streams.app, headrace.streams.supervise.supervisor",
        "import headrace.streams.cli.main, headrace.streams.cli.run",
        "import headrace.spark_bridge.backfill, headrace.spark_bridge.cli.backfill",
        HELP,
    ],
    ids=["state", "topology", "streams", "command line", "the bridge", "headrace --help"],
)
def test_nothing_of_spark_is_loaded(code: str) -> None:
    done = run(f"{code}\nimport sys\nprint(*[name for name in {SPARK!r} if name in sys.modules])")
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_the_help_is_there_where_spark_is_not_installed() -> None:
    done = run(f"import sys\nsys.modules.update(dict.fromkeys({SPARK!r}))\n{HELP}")
    assert done.returncode == 0, done.stderr


def test_help_loads_no_client_and_no_store() -> None:
    heavy = ("confluent_kafka", "rocksdict", "fastavro")
    done = run(f"{HELP}\nimport sys\nprint(*[name for name in {heavy!r} if name in sys.modules])")
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
