"""RocksDB's list of its files, the MANIFEST, and whether it is as long as it has been.

RocksDB takes a list that ends too early for one that was not written to its end, and does without
the files that it does not name any more. Where rows were flushed, and what says up to where they go
was not, they would be gone in silence. So its length is kept beside the rows: it only grows.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import orjson


class FileList(NamedTuple):
    """The list that is in use, by its name and its length in bytes."""

    name: str
    size: int

    def encode(self) -> bytes:
        """As it is kept.

        >>> FileList.decode(FileList("MANIFEST-000005", 180).encode())
        FileList(name='MANIFEST-000005', size=180)
        """
        return orjson.dumps([*self])

    @classmethod
    def decode(cls, data: bytes) -> FileList:
        """Read what was kept."""
        name, size = orjson.loads(data)
        return cls(name, size)

    def is_cut(self, found: FileList | None) -> bool:
        """Whether the list that was found is this one, and has lost its end."""
        return found is not None and found.name == self.name and found.size < self.size


def list_of_files(path: Path, name: str | None = None) -> FileList | None:
    """The list that a RocksDB uses, or None where there is none that can be read.

    Args:
        name: of the list, where it is known: each opening begins another one.
    """
    try:
        name = name or (path / "CURRENT").read_text(encoding="ascii").strip()
        return FileList(name, (path / name).stat().st_size)
    except (OSError, ValueError):
        return None
