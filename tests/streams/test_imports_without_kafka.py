"""What needs no broker needs no Kafka client and no RocksDB either."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.loading import loaded_after

HEAVY = ("confluent_kafka", "rocksdict", "pyspark", "fastavro")

RUN_A_TOPOLOGY = """
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder
builder = StreamsBuilder()
builder.stream("in").group_by_key().count(store="counts").to_stream().to("out")
with TopologyTestDriver(builder.build(), {"processing.guarantee": "exactly_once_v2"}) as driver:
    driver.input("in").send("k", 1)
    driver.crash(keep=False)
    driver.run()
    assert driver.output("out").read().value == 1
"""


CODES = {
    "topology": "import headrace.topology.compile.compiler, headrace.topology.describe.describe",
    "state": "from headrace.state import buffer, codec, spec, store, memory",
    "streams": "import headrace.streams",
    "runtime": "import headrace.streams.worker.worker, headrace.streams.worker.commit",
    "driver": "from headrace.streams import TopologyTestDriver",
    "a whole run": RUN_A_TOPOLOGY,
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """What was loaded after each."""
    return loaded_after(CODES, HEAVY)


@pytest.mark.parametrize("name", CODES)
def test_nothing_of_a_cluster_is_loaded(name: str, loaded: dict[str, list[str]]) -> None:
    assert loaded[name] == []


@pytest.mark.slow
def test_the_driver_runs_where_the_clients_are_not_installed() -> None:
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({HEAVY!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + RUN_A_TOPOLOGY], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_an_application_does_not_load_what_it_does_not_log_with() -> None:
    """They take a fifth of a start."""
    codes = {"application": "from headrace import KafkaStreams, StreamsBuilder, serdes"}
    assert loaded_after(codes, ("structlog", "rich", "attr"))["application"] == []
