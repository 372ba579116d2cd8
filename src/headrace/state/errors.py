"""Errors of the state directory and the stores, with a class for each reaction."""

from __future__ import annotations


class StateError(Exception):
    """Base of all errors raised by the state package."""


class StoreCorruptedError(StateError):
    """Local files of a task cannot be read; wipe the task's state and restore it.

    Raised when RocksDB reports corruption while it opens, reads or writes, and when a stored
    position does not decode. Logged stores lose no rows, because their changelog has all of them.
    """


class StateFormatError(StateError):
    """Local files have a format version that this release does not support; refuse to start.

    Raised on open. The files are intact, so they are neither read nor wiped: run the release
    that wrote them, or remove the task's directory to restore it from its changelogs.
    """


class StateLockedError(StateError):
    """Another running process holds the lock; stop that process or wait for it.

    Args:
        message: What is locked, and what to do next.
        holder_pid: The process that holds the lock, or None when it could not be read.
    """

    def __init__(self, message: str, *, holder_pid: int | None = None) -> None:
        super().__init__(message)
        self.holder_pid = holder_pid


class StateDirectoryError(StateError):
    """The state directory cannot be created or written; correct the setting or the permissions."""


class DiskFullError(StateError):
    """The disk of the local state is full; free space and restart: no rows are lost."""


class UnknownStoreError(StateError):
    """The task has no store of the requested name; correct the name."""


class ValueEncodingError(StateError):
    """A value cannot be encoded at the commit; the task adds the records that wrote it."""

    def __init__(self, store: str, key: bytes, cause: Exception) -> None:
        super().__init__(store, key, cause)
        self.store = store
        self.key = key
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"store {self.store!r} cannot encode the value of key {self.key[:64]!r}: {self.cause}"
        )
