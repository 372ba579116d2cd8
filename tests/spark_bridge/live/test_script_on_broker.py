"""A script of a user, with classes of its own, in a process with a Spark of its own."""

from __future__ import annotations

import json

from tests.spark_bridge.plan.test_classes_of_a_script import run_script
from tests.support import kafka
from tests.support.topics import Topics


def test_a_script_backfills_with_its_own_classes_and_reads_them_back(topics: Topics) -> None:
    orders = topics.create("orders", partitions=2)
    values = [
        {"cents": n, "kind": ("book", "tea")[n % 2], "to": {"city": f"city {n % 3}"}}
        for n in range(40)
    ]
    records = [(b"k%d" % n, json.dumps(value).encode()) for n, value in enumerate(values)]
    kafka.write(topics.bootstrap, orders, records)
    said = run_script(topics.bootstrap, topics.name("app"), orders, timeout=300)
    assert json.loads(said.splitlines()[-1]) == {
        "records": 80,  # in both stages
        "totals": {
            kind: sum(v["cents"] for v in values if v["kind"] == kind) for kind in ("book", "tea")
        },
        "cities": ["city 0", "city 1", "city 2"],
    }
