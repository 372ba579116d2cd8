"""What rocksdict raises, as what it means here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from headrace.state.disk.open_files import open_files_advice
from headrace.state.errors import (
    DiskFullError,
    StateError,
    StateLockedError,
    StoreCorruptedError,
)

# RocksDB's status comes first in its messages; what follows may quote a path that says anything.
_CORRUPT = re.compile(r"Corruption: |IO error: No such file or directory")
# It may come behind what could not be done for want of room, such as to write the options.
_FULL = re.compile(
    r"IO error: .*(No space left on device|File too large|Disk quota exceeded)", re.DOTALL
)
_NO_FILES = re.compile(r"IO error: .*Too many open files", re.DOTALL)
_LOCKED = re.compile(r"IO error: (While lock file|lock hold by current process)")


@contextmanager
def failures() -> Iterator[None]:
    """Raise what rocksdict raises as what it means here."""
    try:
        yield
    except Exception as error:
        raise_meant(error)


def raise_meant(error: Exception) -> NoReturn:
    """Tell broken files and a lock from other failures; rocksdict raises all as Exception."""
    if isinstance(error, OSError):  # of rocksdict itself, which keeps a file beside RocksDB's
        raise StateError(f"RocksDB failed: {error}") from error
    if type(error) is not Exception:
        raise error
    text = str(error)
    if _CORRUPT.match(text):
        raise StoreCorruptedError(f"local state cannot be read: {text}") from error
    if _LOCKED.match(text):
        raise StateLockedError(
            f"another process, or this one, has the state open: {text}; stop it, or close it first"
        ) from error
    if _FULL.match(text):
        raise DiskFullError(
            f"RocksDB failed: {text}; nothing is lost: make room on the disk of state.dir"
        ) from error
    if _NO_FILES.match(text):
        raise StateError(f"RocksDB failed: {text}; {open_files_advice()}") from error
    raise StateError(f"RocksDB failed: {text}") from error
