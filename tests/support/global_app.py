"""An application with a global table in a process of its own, to be killed from outside.

python -m tests.support.global_app '{"settings": {...}, "table": "t", "input": "in", "output": "o"}'
"""

from __future__ import annotations

import json
import sys
from typing import Any

from streams import KafkaStreams
from topology import Materialized, StreamsBuilder, Topology, serdes


def topology(
    table: str, stream: str, output: str, *, store: str | Materialized = "rows"
) -> Topology:
    """Join records with the row that is named by their value."""
    builder = StreamsBuilder()
    rows = builder.global_table(table, key=serdes.string, value=serdes.string, store=store)
    records = builder.stream(stream, key=serdes.string, value=serdes.string)
    joined: Any = records.left_join(rows, "{}={}".format, key_mapper=lambda _, value: value)
    joined.to(output, key=serdes.string, value=serdes.string)
    return builder.build()


def main() -> None:
    plan = json.loads(sys.argv[1])
    app = topology(plan["table"], plan["input"], plan["output"])
    KafkaStreams(app, plan["settings"]).run()


if __name__ == "__main__":
    main()
