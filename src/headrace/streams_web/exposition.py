"""Snapshots in Prometheus' text format (0.0.4).

Written here and not by prometheus-client: of 8 workers with 64 tasks that took 160 ms and more, and
this takes a small part of it, as the labels of a task, an input or a store are written once for all
metrics of it. The tests read it with that library's parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Any

from headrace.streams.facts.histogram import Distribution
from headrace.streams.facts.snapshots import ApplicationSnapshot
from headrace.streams_web.metrics import METRICS, Labels, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TYPES = {"info": "gauge"}
_SPECIAL = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}

LABELS_KEPT = 16_384
"""Of so many tasks, inputs and stores labels are kept as text from scrape to scrape; they stay the
same, and to write them takes as long as to write the numbers of several metrics."""

Rows = list[tuple[str, Any]]
"""Things, with their labels as text."""


def scrape(facts: ApplicationSnapshot, now_s: float) -> bytes:
    """Write all metrics.

    Args:
        now_s: the present second of the clock of the snapshots' `at_s`.
    """
    lines: list[str] = []
    known: dict[object, Rows] = {}
    for metric in METRICS:
        name = metric.name if metric.kind == "histogram" else metric.sample
        lines.append(f"# HELP {name} {metric.help}")
        lines.append(f"# TYPE {name} {_TYPES.get(metric.kind, metric.kind)}")
        key = (metric.read.things, metric.labels)
        rows = known.get(key)
        if rows is None:
            rows = known[key] = [
                (_text(metric.labels, labels), thing)
                for labels, thing in metric.read.things(facts, now_s)
            ]
        if metric.kind == "histogram":
            lines += _buckets(metric, rows)
        else:
            lines += _plain(metric, rows)
    lines.append("")
    return "\n".join(lines).encode()


@lru_cache(LABELS_KEPT)
def _text(names: Labels, labels: Labels) -> str:
    pairs = zip(names, labels, strict=True)
    return ",".join([f'{name}="{_escaped(label)}"' for name, label in pairs])


def _plain(metric: Metric, rows: Rows) -> list[str]:
    sample, value = metric.sample, metric.read.value
    found: Rows = [(labels, value(thing)) for labels, thing in rows]
    return [
        # A truth is a number, too.
        f"{sample}{{{labels}}} {number + 0!r}" if labels else f"{sample} {number + 0!r}"
        for labels, number in found
        if number is not None
    ]


def _buckets(metric: Metric, rows: Rows) -> Iterable[str]:
    for labels, thing in rows:
        value = metric.read.value(thing)
        assert isinstance(value, Distribution)
        bounds = [*(f"{bound:g}" for bound in value.bounds_s), "+Inf"]
        for bound, count in zip(bounds, accumulate(value.counts), strict=True):
            yield f'{metric.name}_bucket{{{labels},le="{bound}"}} {count}'
        yield f"{metric.name}_count{{{labels}}} {value.count}"
        yield f"{metric.name}_sum{{{labels}}} {value.sum_s!r}"


def _escaped(text: str) -> str:
    # Nearly none has anything to escape.
    if '"' in text or "\\" in text or "\n" in text:
        return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)
    return text
