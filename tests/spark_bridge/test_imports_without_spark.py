"""Who does not use the bridge never loads Spark, and need not have it installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.loading import loaded_after

SPARK = ("pyspark", "pyarrow", "pandas", "numpy")
HELP = """
from click.testing import CliRunner
from headrace.streams.cli.main import main
shown = CliRunner().invoke(main, ["--help"])
assert "Run an application over history on Spark" in shown.output, shown.output
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


CODES = {
    "state": "import headrace.state, headrace.state.buffer, headrace.state.rocks",
    "topology": """
from headrace.topology.compile import compiler; from headrace.topology.serdes import avro""",
    "streams": "import headrace.streams.app, headrace.streams.supervisor.supervisor",
    "command line": "import headrace.streams.cli.main, headrace.streams.cli.run",
    "the bridge": "import headrace.spark_bridge.backfill, headrace.spark_bridge.cli.backfill",
    "headrace --help": HELP,
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """What was loaded after each."""
    return loaded_after(CODES, SPARK)


@pytest.mark.parametrize("name", CODES)
def test_nothing_of_spark_is_loaded(name: str, loaded: dict[str, list[str]]) -> None:
    assert loaded[name] == []


def test_the_help_is_there_where_spark_is_not_installed() -> None:
    done = run(f"import sys\nsys.modules.update(dict.fromkeys({SPARK!r}))\n{HELP}")
    assert done.returncode == 0, done.stderr


def test_help_loads_no_client_and_no_store() -> None:
    heavy = ("confluent_kafka", "rocksdict", "fastavro")
    done = run(f"{HELP}\nimport sys\nprint(*[name for name in {heavy!r} if name in sys.modules])")
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
