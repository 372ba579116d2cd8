"""Snapshots as JSON: between processes, and for whoever asks over the web."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.streams.facts.snapshots import WorkerSnapshot

_WORKER = msgspec.json.Decoder(WorkerSnapshot)


def to_json(facts: object) -> bytes:
    """Any of the snapshots as JSON, without line breaks."""
    return msgspec.json.encode(facts)


def to_plain(facts: object) -> Any:
    """Any of the snapshots as dictionaries, lists and numbers."""
    return msgspec.to_builtins(facts)


def worker_of(text: bytes) -> WorkerSnapshot:
    """A worker's snapshot again, of what `to_json` made.

    Raises:
        ValueError: it is of another version.

    >>> worker_of(b'{"id": "w"}')
    Traceback (most recent call last):
        ...
    msgspec.ValidationError: Object missing required field `at_s`
    """
    return _WORKER.decode(text)
