"""A driver that ends without a word at some step of its hand-over."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from headrace.spark_bridge.plan.job import CompiledApplication
from tests.spark_bridge.support.handed import word_count
from tests.spark_bridge.support.local_rows import computed, plan_of
from tests.spark_bridge.support.ways import hand_over_by_driver, hand_over_partitioned
from tests.support import kafka
from tests.support.processes import wait_until

DIED = 77


def main(told: dict[str, Any]) -> None:
    """Hand over until the step."""
    topology = word_count(told["source"], told["sink"])
    application = CompiledApplication.of(topology, told["settings"])
    local = computed(topology, told["settings"], plan_of(topology, told["settings"], told["id"]))
    units = 0

    def probe(step: str) -> None:
        if step == told["step"]:
            if told.get("how") == "driver" and step != "handover_opened":
                wait_until(lambda: bool(sent()), what="rows that are sent come")
            os._exit(DIED)

    def sent() -> list[kafka.Record]:
        return kafka.read(told["settings"]["bootstrap.servers"], told["sink"], "read_uncommitted")

    def unit_probe(step: str, unit: str) -> None:
        nonlocal units
        if step == "committed":
            if told["step"] == f"unit_{units}":
                os._exit(DIED)
            units += 1

    summary = local.local.summary()
    results: Any = local
    if told.get("how") == "driver":
        hand_over_by_driver(results, application, summary=summary, probe=probe)
    else:
        hand_over_partitioned(
            results, application, summary=summary, probe=probe, unit_probe=unit_probe
        )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
