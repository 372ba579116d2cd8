"""Snapshots as JSON: between processes, and for whoever asks over the web."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.streams.facts.snapshots import WorkerSnapshot


def to_json(facts: object) -> bytes:
    """Any of the snapshots as JSON, without line breaks."""
    return msgspec.json.encode(facts)


def to_plain(facts: object) -> Any:
    """Any of the snapshots as dictionaries, lists and numbers."""
    return msgspec.to_builtins(facts)


def worker_of(plain: object) -> WorkerSnapshot:
    """A worker's snapshot again, of what `to_json` made.

    Raises:
        ValueError: it is of another version.

    >>> from headrace.streams.facts.counters import Counters
    >>> worker_of({"id": "w"})
    Traceback (most recent call last):
        ...
    msgspec.ValidationError: Object missing required field `at_s`
    """
    return msgspec.convert(plain, WorkerSnapshot)
