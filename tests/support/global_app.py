"""An application with a global table in a process of its own, which can kill itself at a step.

python -m tests.support.global_app '{"settings": {...}, "table": "t", "input": "in", "output": "o",
    "die_at": "global_rows_loaded", "die_on": 3, "bulk": 500, "keep": 700}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from headrace.streams import KafkaStreams, logs
from headrace.streams.tasks import global_tables
from headrace.topology import Materialized, StreamsBuilder, Topology, serdes


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
    logs.configure(colors=False)
    plan = json.loads(sys.argv[1])
    app = topology(plan["table"], plan["input"], plan["output"])
    global_tables.BULK_RECORDS, global_tables.FLUSH_RECORDS = plan["bulk"], plan["keep"]
    seen = 0

    def probe(step: str) -> None:
        nonlocal seen
        seen += step == plan["die_at"]
        if seen == plan["die_on"]:
            os.kill(os.getpid(), signal.SIGKILL)

    KafkaStreams(app, plan["settings"], probe=probe).run()


if __name__ == "__main__":
    main()
