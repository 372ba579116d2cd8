"""Whether the brokers can tell which transactions were aborted, from their own files.

A reader of committed records is told by its broker what to leave out. The broker looks that up in
an index, and stops at the first entry whose stable offset is beyond what it hands out. A follower
of Kafka 4.3.1 that catches up writes some stable offsets too large; once it leads, its readers get
records of the aborted transactions behind such an entry. No application can do anything about
that, so a run says where it can have happened.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

_ENTRY = struct.Struct(">hqqqq")


class Aborted(NamedTuple):
    """An entry of a partition's transaction index."""

    producer_id: int
    first: int
    last: int
    stable: int
    """Up to where everything was decided once this transaction was."""


def read_index(path: Path) -> list[Aborted]:
    """Read the aborted transactions of one segment, in the order in which they ended."""
    data = path.read_bytes()
    whole = len(data) - len(data) % _ENTRY.size
    return [Aborted(*fields) for _, *fields in _ENTRY.iter_unpack(data[:whole])]


def hidden(entries: list[Aborted]) -> list[Aborted]:
    """The aborted transactions of which the broker may not tell.

    What ends later than an entry cannot begin before that entry's stable offset: it would have
    been open then. Where it does, that offset is too large.
    """
    highest = -1
    found = []
    for entry in entries:
        if entry.first < highest:
            found.append(entry)
        highest = max(highest, entry.stable)
    return found


def suspects(brokers: Path, prefix: str) -> list[str]:
    """Say which node hides aborted transactions of which partitions.

    Args:
        brokers: the directory of the cluster.
        prefix: of the topics to look at.
    """
    lines = []
    for path in sorted(brokers.glob(f"node-*/data/{prefix}*/*.txnindex")):
        entries = hidden(read_index(path))
        if entries:
            where = ", ".join(f"{entry.first} to {entry.last}" for entry in entries[:3])
            lines.append(f"{path.parent.name} on {path.parents[2].name}: {where}")
    return lines
