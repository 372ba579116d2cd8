"""Where files of sinks stand: a directory, or a store of objects; each is made once, as a whole.

`create` is what exactness rests on: it makes a file with all its bytes or none, and only where
there is none of that name, so of two who make the same one, one is told so.
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
"""What is read of a file's end at first."""
_PROBE = ".headrace"
"""An empty object by which a store shows that it keeps conditions; readers pass over its name."""
_ABANDONED_S = 3600.0
_CODE = re.compile(r"(?<=<Code>)\w+")
_REASON = re.compile(r"status code: \d+|Connection refused|dns error|timed out")
"""What of a store's text says why, and nothing of a key or a row."""
_DENIED = re.compile(r"status code: 40[13]\b")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def require_writable(address: str) -> None:
    """See that something can be made at an address, if that is a directory of this machine.

    Raises:
        SinkUnusableError: the right is missing, which no other attempt gives.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("", "file"):
        return
    path = Path(unquote(parts.path) if parts.scheme else address).absolute()
    there = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise SinkUnusableError(f"{path}: {there} may not be written to; give the right")


class Place(Protocol):
    """A directory or a part of a store; names have slashes between their parts."""

    def prepare(self) -> None:
        """See that files can be made."""

    def names(self, folder: str, /) -> list[str]:
        """The files in a folder, without those that are being written; none where it is not."""

    def create(self, folder: str, name: str, content: bytes, /) -> None:
        """Make a file.

        Raises:
            FileExistsError: there is one of that name, whoever has made it.
            SinkUnavailableError: another attempt may succeed, or the outcome is not known.
            SinkUnusableError: a person has to put something right.
        """

    def end(self, folder: str, name: str, size: int, /) -> bytes:
        """The last bytes of a file: so many, or all that there are."""


class Directory:
    """A directory of this machine, or one that is mounted.

    A file is written under a hidden name, made to last, and gets its name by a link, which fails
    where there is one. What a process that was killed leaves behind is deleted after an hour.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was_there = False

    def prepare(self) -> None:
        """Make the directory, in one that is there."""
        path = self._path
        if self._was_there:
            if not path.is_dir():  # of what was mounted, perhaps: nothing is written in its place
                raise SinkUnavailableError(f"{path} is gone")
            return
        above = path.absolute().parent
        if path.exists() and not path.is_dir():
            raise SinkUnusableError(f"{path} is a file; name a directory")
        if not above.is_dir():
            raise SinkUnusableError(f"{path}: there is no directory {above}; make it")
        writable = path if path.exists() else above
        if not os.access(writable, os.W_OK | os.X_OK):
            raise SinkUnusableError(f"{path}: {writable} may not be written to; give the right")
        with _told(path):
            path.mkdir(exist_ok=True)
            _make_last(above)
        self._was_there = True

    def names(self, folder: str, /) -> list[str]:
        """Those of one folder, after what was abandoned in it is deleted."""
        place = self._path / folder
        with _told(place):
            try:
                found = [entry.name for entry in os.scandir(place)]
            except FileNotFoundError:
                if self._path.is_dir():
                    return []
                raise
        for name in [name for name in found if name.startswith(".") and name.endswith(".tmp")]:
            with suppress(OSError):  # nothing depends on it
                if time.time() - (place / name).stat().st_mtime > _ABANDONED_S:
                    (place / name).unlink()
        return [name for name in found if not name.startswith(".")]

    def create(self, folder: str, name: str, content: bytes, /) -> None:
        """Make a file that is there after a loss of power, too."""
        place = self._path / folder
        target, hidden = place / name, place / f".{name}.{uuid.uuid4().hex}.tmp"
        with _told(place):
            if not place.is_dir():
                place.mkdir(exist_ok=True)
                _make_last(self._path)
            try:
                with hidden.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                _link(hidden, target)
            finally:
                hidden.unlink(missing_ok=True)
            _make_last(place)

    def end(self, folder: str, name: str, size: int, /) -> bytes:
        """Read what is at the end."""
        with _told(self._path), (self._path / folder / name).open("rb") as file:
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
            f"{target.parent} has no hard links ({os.strerror(error.errno)}), by which one of two "
            "writers is told of the other; name a directory of another file system, or a store of "
            "objects"
        ) from error


def _make_last(directory: Path) -> None:
    """Have a directory's names on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        # Where it was there before, somebody may be about to bring it back, or to make room.
        raise SinkUnavailableError(f"{path}: {error.strerror or type(error).__name__}") from error


class Objects:
    """A part of a store of objects: S3, Google Cloud Storage, Azure, or one in memory.

    An object is made by one put with a condition that the store itself holds.

    Args:
        store: a store of `obstore`.
        prefix: what the names of all objects begin with.
        address: what errors call it; None takes the prefix.
    """

    def __init__(self, store: Any, prefix: str, address: str | None = None) -> None:
        self._store = store
        self._address = prefix if address is None else address
        self._prefix = prefix.strip("/")
        self._keeps_conditions = False

    def prepare(self) -> None:
        """See that the store answers, and that it puts no object over another one if told so."""
        import obstore

        if self._keeps_conditions:
            return
        path = self._named(_PROBE)
        for _ in range(2):
            try:
                with _of_store(self._address):
                    obstore.put(self._store, path, b"", mode="create", use_multipart=False)
            except FileExistsError:
                self._keeps_conditions = True
                return
        raise SinkUnusableError(
            f"the store of objects has put {path} over another object, and was told to do so only "
            "where there is none: it could not tell one of two writers of the other; name a store "
            "that keeps conditions, or a directory"
        )

    def names(self, folder: str, /) -> list[str]:
        """Those of one folder."""
        import obstore

        prefix = self._named(folder)
        with _of_store(self._address):
            found = obstore.list_with_delimiter(self._store, prefix or None)
            return [meta["path"].rpartition("/")[2] for meta in found["objects"]]

    def create(self, folder: str, name: str, content: bytes, /) -> None:
        """Put an object where there is none."""
        import obstore

        path = self._named(f"{folder}/{name}")
        with _of_store(self._address):
            obstore.put(self._store, path, content, mode="create", use_multipart=False)

    def end(self, folder: str, name: str, size: int, /) -> bytes:
        """Read a part of an object."""
        import obstore

        path = self._named(f"{folder}/{name}")
        with _of_store(self._address, is_missing=SinkUnavailableError(f"{path} is gone")):
            total = obstore.head(self._store, path)["size"]
            begin = max(0, total - size)
            return bytes(obstore.get_range(self._store, path, start=begin, end=total))

    def _named(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)


@contextmanager
def _of_store(address: str, *, is_missing: Exception | None = None) -> Iterator[None]:
    """Say what an error of a store asks for; its texts may name keys, and are not quoted.

    Args:
        is_missing: what it means that there is none of that name; None where it is the bucket.
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
    where = f"the store of objects at {address or 'its root'}"

    def not_allowed(said: str) -> SinkUnusableError:
        return SinkUnusableError(
            f"{where} says {said}; see that the address, the user and its rights to list, read and "
            "put objects are right"
        )

    try:
        yield
    except exceptions.AlreadyExistsError as error:
        raise FileExistsError(address) from error
    except permanent as error:
        raise not_allowed(type(error).__name__) from error
    except (exceptions.NotFoundError, FileNotFoundError) as error:
        nothing = SinkUnusableError(f"{where}: there is none; make the bucket")
        raise is_missing or nothing from error
    except (exceptions.BaseError, OSError) as error:
        # A listing has no error of its own for it.
        if denied := _DENIED.search(str(error)):
            raise not_allowed(denied[0]) from error
        reason = _CODE.search(str(error)) or _REASON.search(str(error))
        said = reason[0] if reason else type(error).__name__
        if "NoSuchBucket" in said:
            raise SinkUnusableError(f"{where}: there is none; make the bucket") from error
        raise SinkUnavailableError(f"{where} does not answer as it should: {said}") from error
