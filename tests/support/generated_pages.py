"""Pages generated from tables in the code.

python -m tests.support.generated_pages metrics > docs/metrics.md
python -m tests.support.generated_pages acls  # the table of docs/operations.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace.streams.kafka.acls import TABLE, Needed
from headrace.streams_web.metrics import METRICS

_HEAD = """# Metrics

What `/metrics` has, for Prometheus; see [Watch it](watch.md) for how it is served, and which of
them matter. This page is made of the table in the code.

Counts begin with the worker's process, and those of tasks and stores with the task in that process;
Prometheus' `rate` and `increase` know that. `worker` is the worker's number on its host. Records
processed hold those of aborted transactions again, records committed count none twice. What is
"about" is estimated, or looked at now and then.

| metric | kind | labels | what it is | Kafka Streams' |
|---|---|---|---|---|
"""

_TOOLS = (
    Needed("groups", ("Delete",), "`headrace backfill --drop` forgets a plan"),
    Needed(
        "cluster", ("DescribeConfigs",), "`headrace backfill` knows how long transactions may take"
    ),
)
"""Additional ACLs for tools."""

_ON = {
    "source": "each source",
    "output": "each output, and the dead-letter topic",
    "internal topics": "topics that begin with the `application.id`",
    "groups": "groups that begin with the `application.id`",
    "transactional ids": "transactional ids that begin with the `application.id`",
    "cluster": "the cluster",
}


def metrics() -> str:
    return _HEAD + "".join(f"{line}\n" for line in _metric_rows())


def _metric_rows() -> Iterator[str]:
    for metric in METRICS:
        name = metric.name if metric.kind == "histogram" else metric.sample
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        kafka = ", ".join(f"`{one}`" for one in metric.kafka.split(", ") if one)
        yield f"| `{name}` | {metric.kind} | {labels} | {metric.help} | {kafka} |"


def acls() -> str:
    rows = ["| on | right | for | without it |", "|---|---|---|---|"]
    for needed in (*TABLE, *_TOOLS):
        operations = ", ".join(needed.operations)
        on = _ON[needed.subject]
        rows.append(f"| {on} | {operations} | {needed.why} | {needed.without} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write({"metrics": metrics, "acls": acls}[sys.argv[1]]())
