"""Locations of sink files: a local directory or an object store, with atomic creation of files.

Exactly-once writes depend on `create`: it creates a file completely or not at all, and only if the
name is free, so that of two writers of the same file, the second gets an error.
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from headrace.topology.external_sink import SinkUnavailableError, SinkUnusableError

TAIL_BYTES = 64 << 10
"""Size of the first read at a file's end."""
_PROBE = ".headrace"
"""Empty object that tests whether a store supports conditional puts; readers ignore its name."""
_ABANDONED_S = 3600.0
_CODE = re.compile(r"(?<=<Code>)\w+")
_REASON = re.compile(r"status code: \d+|Connection refused|dns error|timed out")
"""Part of a store's message that contains the reason, but no object key and no row."""
_DENIED = re.compile(r"status code: 40[13]\b")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def require_writable(address: str) -> None:
    """Raise SinkUnusableError if an address is a local directory that is not writable."""
    parts = urlsplit(address)
    if parts.scheme not in ("", "file"):
        return
    path = Path(unquote(parts.path) if parts.scheme else address).absolute()
    _require_access(path, next(one for one in (path, *path.parents) if one.exists()))


def require_creatable(path: Path, *, is_directory: bool = False) -> None:
    """Raise SinkUnusableError if a file or directory can neither be created nor written to."""
    if path.exists() and path.is_dir() != is_directory:
        kinds = ("file", "directory") if is_directory else ("directory", "file")
        raise SinkUnusableError(f"{path} is a {kinds[0]}. Name a {kinds[1]}")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise SinkUnusableError(f"{path}: directory {parent} does not exist. Create it")
    _require_access(path, path if path.exists() else parent)


def _require_access(path: Path, existing: Path) -> None:
    mode = os.W_OK | os.X_OK if existing.is_dir() else os.W_OK
    if not os.access(existing, mode):
        raise SinkUnusableError(f"{path}: {existing} is not writable. Grant the permission")


class Location(Protocol):
    """Directory, or a prefix in an object store; names are separated by slashes."""

    def prepare(self) -> None:
        """Check that files can be created."""

    def names(self, folder: str, /) -> list[str]:
        """Return the complete files of a folder; an empty list if the folder does not exist."""

    def create(self, folder: str, name: str, content: bytes, /) -> None:
        """Create a file atomically.

        Raises:
            FileExistsError: a file of that name exists.
            SinkUnavailableError: a retry may succeed, or the outcome is unknown.
            SinkUnusableError: the location requires a manual fix.
        """

    def end(self, folder: str, name: str, size: int, /) -> bytes:
        """Return the last bytes of a file, at most `size`."""


class Directory:
    """Directory on this machine, or a mounted directory.

    A file is written under a hidden name, synced to disk, and then hard-linked to its final name,
    which fails if that exists. Hidden files of a killed process are deleted after an hour.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._existed = False

    def prepare(self) -> None:
        """Create the directory if its parent exists."""
        path = self._path
        if self._existed:
            if not path.is_dir():  # perhaps a lost mount: do not write to the mount point
                raise SinkUnavailableError(f"{path} was deleted")
            return
        require_creatable(path, is_directory=True)
        with _converted(path):
            path.mkdir(exist_ok=True)
            _sync(path.absolute().parent)
        self._existed = True

    def names(self, folder: str, /) -> list[str]:
        """Return the files of a folder, after deleting abandoned hidden files in it."""
        directory = self._path / folder
        with _converted(directory):
            try:
                found = [entry.name for entry in os.scandir(directory)]
            except FileNotFoundError:
                if self._path.is_dir():
                    return []
                raise
        for name in [name for name in found if name.startswith(".") and name.endswith(".tmp")]:
            with suppress(OSError):  # the cleanup is optional
                if time.time() - (directory / name).stat().st_mtime > _ABANDONED_S:
                    (directory / name).unlink()
        return [name for name in found if not name.startswith(".")]

    def create(self, folder: str, name: str, content: bytes, /) -> None:
        """Create a file that survives a power failure."""
        directory = self._path / folder
        target, hidden = directory / name, directory / f".{name}.{uuid.uuid4().hex}.tmp"
        with _converted(directory):
            if not directory.is_dir():
                directory.mkdir(exist_ok=True)
                _sync(self._path)
            try:
                with hidden.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                _link(hidden, target)
            finally:
                hidden.unlink(missing_ok=True)
            _sync(directory)

    def end(self, folder: str, name: str, size: int, /) -> bytes:
        with _converted(self._path), (self._path / folder / name).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read()


def _link(hidden: Path, target: Path) -> None:
    try:
        os.link(hidden, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise SinkUnusableError(
            f"the file system of {target.parent} has no hard links, which detect concurrent "
            f"writers ({os.strerror(error.errno)}). Name a directory of another file system, or an "
            "object store"
        ) from error


def _sync(directory: Path) -> None:
    """Sync a directory's entries to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _converted(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        # May be temporary: a lost mount or a full disk.
        raise SinkUnavailableError(f"{path}: {error.strerror or type(error).__name__}") from error


class Objects:
    """Prefix in an object store: S3, Google Cloud Storage, Azure, or in memory.

    An object is created by a conditional put, which the store enforces.

    Args:
        store: a store of `obstore`.
        prefix: prefix of the names of all objects.
        address: its name in errors; None uses the prefix.
    """

    def __init__(self, store: Any, prefix: str, address: str | None = None) -> None:
        self._store = store
        self._address = prefix if address is None else address
        self._prefix = prefix.strip("/")
        self._supports_conditions = False

    def prepare(self) -> None:
        """Check that the store answers, and that a conditional put does not overwrite an object."""
        import obstore

        if self._supports_conditions:
            return
        path = self._named(_PROBE)
        for _ in range(2):
            try:
                with _of_store(self._address):
                    obstore.put(self._store, path, b"", mode="create", use_multipart=False)
            except FileExistsError:
                self._supports_conditions = True
                return
        raise SinkUnusableError(
            f"the object store ignores conditions, which detect concurrent writers: it has "
            f"overwritten {path}. Name a store with conditional puts, or a directory"
        )

    def names(self, folder: str, /) -> list[str]:
        import obstore

        prefix = self._named(folder)
        with _of_store(self._address):
            found = obstore.list_with_delimiter(self._store, prefix or None)
            return [meta["path"].rpartition("/")[2] for meta in found["objects"]]

    def create(self, folder: str, name: str, content: bytes, /) -> None:
        import obstore

        path = self._named(f"{folder}/{name}")
        with _of_store(self._address):
            obstore.put(self._store, path, content, mode="create", use_multipart=False)

    def end(self, folder: str, name: str, size: int, /) -> bytes:
        import obstore

        path = self._named(f"{folder}/{name}")
        with _of_store(self._address, is_missing=SinkUnavailableError(f"{path} was deleted")):
            total = obstore.head(self._store, path)["size"]
            begin = max(0, total - size)
            return bytes(obstore.get_range(self._store, path, start=begin, end=total))

    def _named(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)


@contextmanager
def _of_store(address: str, *, is_missing: Exception | None = None) -> Iterator[None]:
    """Convert errors of a store without its messages, which may contain keys.

    `is_missing` is raised for a missing object; None means a missing bucket.
    """
    from obstore import exceptions

    permanent = (
        exceptions.InvalidPathError,
        exceptions.NotSupportedError,
        exceptions.PermissionDeniedError,
        exceptions.UnauthenticatedError,
        exceptions.UnknownConfigurationKeyError,
        NotImplementedError,
    )
    where = f"the object store at {address or 'its root'}"

    def not_allowed(reason: str) -> SinkUnusableError:
        return SinkUnusableError(
            f"{where} rejects the request ({reason}). Correct the address, the user, or its "
            "permissions to list, read and put objects"
        )

    no_bucket = SinkUnusableError(f"{where} does not exist. Create the bucket")
    try:
        yield
    except exceptions.AlreadyExistsError as error:
        raise FileExistsError(address) from error
    except permanent as error:
        raise not_allowed(type(error).__name__) from error
    except (exceptions.NotFoundError, FileNotFoundError) as error:
        raise is_missing or no_bucket from error
    except (exceptions.BaseError, OSError) as error:
        # A listing raises no specific error for denied access.
        if denied := _DENIED.search(str(error)):
            raise not_allowed(denied[0]) from error
        reason = _CODE.search(str(error)) or _REASON.search(str(error))
        text = reason[0] if reason else type(error).__name__
        if "NoSuchBucket" in text:
            raise no_bucket from error
        raise SinkUnavailableError(f"{where} has failed: {text}") from error
