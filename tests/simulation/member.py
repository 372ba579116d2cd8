"""A member of a group that does nothing else: ``python -m tests.simulation.member CONFIG``."""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import Consumer


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    consumer = Consumer(plan["config"])
    consumer.subscribe([plan["topic"]])
    while True:
        consumer.poll(0.05)


if __name__ == "__main__":
    main()
