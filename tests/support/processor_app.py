"""An application of one processor in a process of its own, which can kill itself in a commit.

python -m tests.support.processor_app '{"settings": {...}, "input": "in", "output": "out", ...}'
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

from headrace.streams import KafkaStreams, logs
from headrace.topology import Processor, ProcessorContext, Record, Stores, Topology, serdes
from tests.support import count_app

COUNTS = Stores.key_value("counts", key=serdes.string, value=serdes.long)
WINDOWS = Stores.window(
    "windows",
    key=serdes.string,
    value=serdes.long,
    size=timedelta(milliseconds=50),
    retention=timedelta(milliseconds=500),
)
TICK_MS = 100
"""How often the punctuator is due, in stream time."""


class Count(Processor[str, str, str, int]):
    """Counts by key, all in all and in windows of 50 ms; ticks with the number of the tick."""

    stores = (COUNTS, WINDOWS)

    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self.counts = context.store(COUNTS)
        self.windows = context.store(WINDOWS)
        interval = timedelta(milliseconds=TICK_MS)
        context.schedule(interval, self.tick, kind="stream_time")

    def process(self, record: Record[str, str]) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        start = record.timestamp - record.timestamp % 50
        within = (self.windows.get(record.key, start) or 0) + 1
        self.windows.put(record.key, within, start)
        self.context.forward(record.with_value(count))
        self.context.forward(record.with_key(f"{record.key}@{start}").with_value(within))

    def tick(self, now: int) -> None:
        number = (self.counts.get("ticks") or 0) + 1
        self.counts.put("ticks", number)
        self.context.forward(Record(f"tick@{now}", number, now))


def topology(source: str, sink: str) -> Topology:
    return (
        Topology()
        .add_source("read", source, key=serdes.string, value=serdes.string)
        .add_processor("count", Count, "read")
        .add_sink("write", sink, "count", key=serdes.string, value=serdes.long)
    )


def main() -> None:
    logs.configure(colors=False)
    told: dict[str, Any] = json.loads(sys.argv[1])
    plan = count_app.Plan(**told)
    KafkaStreams(topology(plan.input, plan.output), plan.settings, probe=plan.probe).run()


if __name__ == "__main__":
    main()
