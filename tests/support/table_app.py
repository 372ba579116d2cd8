"""Counts the rows of a table by their value, in a process that can kill itself (see `count_app`).

python -m tests.support.table_app '{"settings": {...}, "input": "in", "output": "out", ...}'
"""

from __future__ import annotations

import json
import sys

from headrace.streams import KafkaStreams, logs
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support.count_app import Plan, Reporter


class TablePlan(Plan):
    """What to run, and where to die."""

    def topology(self) -> Topology:
        builder = StreamsBuilder()
        rows = builder.table(self.input, key=serdes.string, value=serdes.string, store="rows")
        by_value = rows.group_by(
            lambda key, value: (value, key), key=serdes.string, value=serdes.string, name="by-value"
        )
        by_value.count(store="counts").to_stream().to(self.output)
        return builder.build()


def main() -> None:
    logs.configure(colors=False)
    plan = TablePlan(**json.loads(sys.argv[1]))
    KafkaStreams(
        plan.topology(), plan.settings, probe=plan.probe, restore_listener=Reporter()
    ).run()


if __name__ == "__main__":
    main()
