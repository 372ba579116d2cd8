"""Uncommitted buffer, compared with a plain dictionary: ``python -m benchmarks.micro.buffer``.

Prints nanoseconds per update of a number, per update of a document, and per row of a commit.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Literal

import orjson

from benchmarks.micro.stores import EmptyStore
from benchmarks.micro.timing import TimedPair, print_times
from headrace import serdes
from headrace.state.buffer import Buffer, Coding
from headrace.state.codec import timestamped_rows

KEYS = 2000
UPDATES = 10_000


def _keys() -> list[bytes]:
    rng = random.Random(1)
    return [b'"account-%06d"' % rng.randrange(KEYS) for _ in range(UPDATES)]


def _buffer(stored_form: Literal["objects", "bytes"] = "objects") -> Buffer:
    serde = serdes.long if stored_form == "objects" else serdes.json
    coding = Coding(encode=serde.serialize, decode=serde.deserialize, stored_form=stored_form)
    return Buffer("counts", EmptyStore(), coding)


def count_in_buffer() -> Callable[[], object]:
    """Update counts in the buffer's dictionaries, as generated code does."""
    buffer, keys = _buffer(), _keys()
    dirty, dirty_get, clean_get, load = (
        buffer.dirty,
        buffer.dirty.get,
        buffer.clean.get,
        buffer.load,
    )

    def run() -> None:
        for key in keys:
            value, timestamp = dirty_get(key) or clean_get(key) or load(key)
            dirty[key] = (1 if value is None else value + 1, timestamp)

    return run


def count_in_dict() -> Callable[[], object]:
    counts: dict[bytes, int] = {}
    dirty: set[bytes] = set()
    keys, get, touch = _keys(), counts.get, dirty.add

    def run() -> None:
        for key in keys:
            counts[key] = get(key, 0) + 1
            touch(key)

    return run


def documents_in_buffer() -> Callable[[], object]:
    """Update mutable values, which the buffer stores as bytes, so that each read decodes a copy."""
    buffer, keys = _buffer("bytes"), _keys()
    get, put = buffer.get, buffer.put

    def run() -> None:
        for key in keys:
            value, timestamp = get(key)
            document = {"n": 0} if value is None else value
            document["n"] += 1
            put(key, document, timestamp)

    return run


def documents_in_dict() -> Callable[[], object]:
    documents: dict[bytes, bytes] = {}
    keys, get, loads, dumps = _keys(), documents.get, orjson.loads, orjson.dumps

    def run() -> None:
        for key in keys:
            data = get(key)
            document = {"n": 0} if data is None else loads(data)
            document["n"] += 1
            documents[key] = dumps(document)

    return run


def commit_of_buffer() -> Callable[[], object]:
    """Encode the dirty rows for the changelog and for local state, and commit."""
    buffer = _buffer()
    rows = {key: (number, 1000) for number, key in enumerate(dict.fromkeys(_keys()))}

    def run() -> None:
        buffer.dirty.update(rows)
        timestamped_rows(buffer.delta())
        buffer.committed()

    return run


def commit_of_dict() -> Callable[[], object]:
    counts = {key: number for number, key in enumerate(dict.fromkeys(_keys()))}
    pack = struct.Struct(">q").pack

    def run() -> None:
        for key in counts:
            pack(counts[key])

    return run


def main() -> None:
    """Time the buffer."""
    distinct = len(set(_keys()))
    print_times(
        "uncommitted buffer, ns per update or row",
        [
            TimedPair("update a count", UPDATES, count_in_buffer(), count_in_dict()),
            TimedPair("update a document", UPDATES, documents_in_buffer(), documents_in_dict()),
            TimedPair("commit a row", distinct, commit_of_buffer(), commit_of_dict()),
        ],
    )


if __name__ == "__main__":
    main()
