"""Brokers that cannot tell what was aborted are found by their files."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.chaos.aborted_index import Aborted, hidden, read_index, suspects

SOUND = [Aborted(5000, 11713, 11746, 11747), Aborted(5000, 11857, 11895, 11896)]
WRONG = [Aborted(5000, 11713, 11746, 13227), Aborted(5000, 11857, 11895, 13227)]
"""As one broker of three had them, so that it handed out 11857 to 11894 as committed."""


def write(brokers: Path, node: int, entries: list[Aborted]) -> Path:
    path = brokers / f"node-{node}" / "data" / "chaos-orders-1" / f"{0:020}.txnindex"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries))
    return path


def test_an_index_is_read_as_kafka_writes_it(tmp_path: Path) -> None:
    assert read_index(write(tmp_path, 1, SOUND)) == SOUND


def test_transactions_that_overlap_hide_nothing() -> None:
    """The stable offset of the first to end is where the other one begins."""
    assert hidden([Aborted(1, 10, 20, 15), Aborted(2, 15, 30, 31)]) == []
    assert hidden(SOUND) == []


def test_a_stable_offset_that_is_too_large_hides_what_comes_before_it(tmp_path: Path) -> None:
    for node, entries in enumerate((WRONG, SOUND, SOUND), start=1):
        write(tmp_path, node, entries)
    assert suspects(tmp_path, "chaos-") == ["chaos-orders-1 on node-1: 11857 to 11895"]
