"""The page docs/metrics.md, generated from the table of metrics.

python -m headrace.streams_web.metrics_page > docs/metrics.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace.streams_web.metrics import METRICS

HEAD = """# Metrics

What `/metrics` has, for Prometheus; see [Watch it](watch.md) for how it is served, and which of
them matter. This page is made of the table in the code.

Counts begin with the worker's process, and those of tasks and stores with the task in that process;
Prometheus' `rate` and `increase` know that. `worker` is the worker's number on its host. Records
processed hold those of aborted transactions again, records committed count none twice. What is
"about" is estimated, or looked at now and then.

| metric | kind | labels | what it is | Kafka Streams' |
|---|---|---|---|---|
"""


def lines() -> Iterator[str]:
    for metric in METRICS:
        name = metric.name if metric.kind == "histogram" else metric.sample
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        kafka = ", ".join(f"`{one}`" for one in metric.kafka.split(", ") if one)
        yield f"| `{name}` | {metric.kind} | {labels} | {metric.help} | {kafka} |"


def page() -> str:
    return HEAD + "\n".join(lines()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
