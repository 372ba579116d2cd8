"""What the output of a counting application must be, given its input and nothing else."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tests.support.kafka import Record


def sequences(records: Iterable[Record]) -> dict[bytes, list[int]]:
    """The counts of each key, in the order in which they were written."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for record in records:
        assert record.key is not None
        assert record.value is not None
        found[record.key].append(struct.unpack(">q", record.value)[0])
    return dict(found)


def check_exact(records: Iterable[Record], expected: Mapping[bytes, int]) -> None:
    """Caches off: each key's counts are 1, 2, 3 … up to its number of records."""
    found = sequences(records)
    wrong = {
        key: found.get(key, [])
        for key, count in expected.items()
        if found.get(key, []) != list(range(1, count + 1))
    }
    assert not wrong, f"{len(wrong)} keys are wrong, such as {next(iter(wrong.items()))}"
    assert found.keys() == expected.keys()


def check_increasing(records: Iterable[Record], expected: Mapping[bytes, int]) -> None:
    """Caches on: each key's counts rise strictly and end with its number of records."""
    found = sequences(records)
    for key, counts in found.items():
        assert counts == sorted(set(counts)), f"{key!r} does not rise: {counts}"
    assert {key: counts[-1] for key, counts in found.items()} == dict(expected)


def last_counts(records: Iterable[Record]) -> Counter[bytes]:
    """The last count of each key."""
    return Counter({key: counts[-1] for key, counts in sequences(records).items()})
