"""What needs no broker needs no Kafka client and no RocksDB either."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    "code",
    [
        "import headrace.topology.compile.compiler, headrace.topology.show.describe",
        "from headrace.state import buffer, codec, spec, store, memory",
        "import headrace.streams",
        "import headrace.streams.worker.worker, headrace.streams.commit.commit",
        "from headrace.streams import TopologyTestDriver",
        RUN_A_TOPOLOGY,
    ],
    ids=["topology", "state", "streams", "runtime", "driver", "a whole run"],
)
def test_nothing_of_a_cluster_is_loaded(code: str) -> None:
    script = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_driver_runs_where_the_clients_are_not_installed() -> None:
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({HEAVY!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + RUN_A_TOPOLOGY], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
