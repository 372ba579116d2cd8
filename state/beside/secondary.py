"""A task's state as another process reads it: a RocksDB secondary, which follows the writer.

It shows what was written when `follow` was called last, whole commits only, and changes nothing of
the files. What RocksDB deletes meanwhile it keeps open, so it goes on where the writer is gone, and
disk space comes free once it follows or is closed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path

from rocksdict import AccessType, DbClosedError, Rdict

from headrace.state.errors import StateError, UnknownStoreError
from headrace.state.layout import noted_layout
from headrace.state.rocks import (
    RocksMemory,
    RocksStore,
    failures,
    family_of,
    is_restoring,
    read_position,
    renewals,
    row_options,
)
from headrace.state.store import Position

_PREFIX = "headrace-secondary-"
_TRIES = 8
_LOG = ".log"


class RocksSecondary:
    """See the module.

    Args:
        path: the RocksDB's directory; another process may have it open.
        names: the stores that are wanted; those that are not there yet have no position.
        memory: what the secondaries of a process share.

    Raises:
        StateError: it cannot be read, or its files were replaced meanwhile; try it again.
    """

    def __init__(self, path: Path, names: Iterable[str], *, memory: RocksMemory) -> None:
        self._path = path
        self._was = _version(path)
        self._written: frozenset[tuple[str, int]] = frozenset()
        self._own = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._remove_own = weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)
        self._stores: dict[str, RocksStore] = {}
        try:
            with failures():
                self._db = self._open(names, memory)
                self._renewals = renewals(self._db)
        except BaseException:
            self._remove_own()
            raise

    def _open(self, names: Iterable[str], memory: RocksMemory) -> Rdict:
        options = row_options(memory)
        # All files are opened at once, so that one can be read that the writer has deleted.
        options.set_max_open_files(-1)
        # RocksDB would start threads for that at each look, as many for each family: 16 by default.
        options.set_max_file_opening_threads(1)
        there = set(Rdict.list_cf(str(self._path), options))
        families = {family_of(name): name for name in names if family_of(name) in there}
        db = Rdict(
            str(self._path),
            options,
            column_families={family: row_options(memory) for family in families},
            access_type=AccessType.secondary(str(self._own)),
        )
        for family, name in families.items():
            self._stores[name] = RocksStore(db.get_column_family(family))
        return db

    def follow(self) -> bool:
        """Show what is written by now.

        Returns:
            Whether it can: not where the writer has begun anew, or restored a store. Restored rows
            are in no log, and once compacted they have no number, so that what was read in the log
            before would stand above them. Make another secondary then.

        Raises:
            StateError: the files cannot be read.
        """
        if _version(self._path) != self._was:
            return False
        for _ in range(_TRIES):
            written = _written(self._path)
            if written == self._written:
                return True
            with failures():
                self._db.try_catch_up_with_primary()
                is_same = renewals(self._db) == self._renewals
            # What came while it caught up is for the next time. But where rows went to a file and
            # their log was deleted meanwhile, they may have been in neither when it looked.
            if _lists(_written(self._path)) == _lists(written):
                self._written = written
                return is_same
        raise StateError(f"{self._path} changes faster than it can be followed; try it again")

    @property
    def is_restoring(self) -> bool:
        """Whether rows may be ahead of their positions, as they come from changelogs."""
        with failures():
            return is_restoring(self._db)

    def layout(self, name: str) -> str | None:
        """How the rows of a store lie; None where older files do not say."""
        with failures():
            return noted_layout(self._db, name)

    def store(self, name: str) -> RocksStore:
        """Return a store's rows.

        Raises:
            UnknownStoreError: it is not there.
        """
        if name not in self._stores:
            raise UnknownStoreError(f"{self._path} has no store {name!r}")
        return self._stores[name]

    def position(self, name: str) -> Position | None:
        """Return the position of a store, or None where its rows say nothing yet."""
        if name not in self._stores:
            return None
        with failures():
            return read_position(self._db, name, self._path)

    def close(self) -> None:
        """Let go of the files, and remove what is its own."""
        for store in self._stores.values():
            store.close()
        self._stores.clear()
        try:
            self._db.close()
        except DbClosedError:
            pass
        finally:
            self._remove_own()


def _version(path: Path) -> tuple[int, int]:
    """Changes when the files are opened by a writer, or are others: it begins another list then."""
    try:
        found = (path / "CURRENT").stat()
    except OSError as error:
        raise StateError(f"{path} has no RocksDB: {error.strerror}") from error
    return found.st_ino, found.st_mtime_ns


def _written(path: Path) -> frozenset[tuple[str, int]]:
    """How much there is in RocksDB's log and its list of files: all that is written goes there."""
    try:
        with os.scandir(path) as found:
            return frozenset(
                (one.name, one.stat().st_size)
                for one in found
                if one.name.endswith(_LOG) or one.name.startswith("MANIFEST-")
            )
    except OSError as error:
        raise StateError(f"the files of {path} cannot be seen: {error.strerror}") from error


def _lists(written: frozenset[tuple[str, int]]) -> set[tuple[str, int]]:
    """What changes when rows go from the log to files: which logs there are, and the list."""
    return {(name, 0 if name.endswith(_LOG) else size) for name, size in written}
