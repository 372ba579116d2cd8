"""Source of rows from files that may grow: JSON lines, CSV and Parquet, by file suffix.

A file is identified by its name, relative to the part of the pattern without wildcards. Its
position is a byte offset after a whole line, or a number of rows in Parquet, with a digest of the
content before it. A line without a line feed at the end may be incomplete, so it is not read yet.
"""

from __future__ import annotations

import csv
import glob
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from headrace.state.log import get_logger
from headrace.streams.connectors.source import (
    Batch,
    Fields,
    Position,
    Positions,
    Row,
    SourceError,
    plain,
    size_of,
)

BATCH_ROWS = 100
BATCH_BYTES = 64 << 10
"""Approximate bytes that also end a batch: a transaction contains whole batches."""
_READ_ROWS = 1000
ROW_BYTES = 16 << 20
"""Maximum size of a row. A longer row is rejected: a quote or a line feed is missing."""
_BLOCK_BYTES = 1 << 20
_CHECKED_BYTES = 1024
"""Bytes at the beginning of the file, and before the position, that a digest covers."""


@dataclass(frozen=True, slots=True)
class Files:
    """Source of the rows of all files that match a pattern, including files that are added later.

    Args:
        pattern: such as ``clicks/*.jsonl`` or ``**/*.csv``; ``~`` is the home directory.
        key: the field used as key, as text; None for no key.
        timestamp: the field used as timestamp: milliseconds since 1970, or a date and time.
        grows: whether files may grow, so that an unterminated last line is not read yet.
        skip_bad: whether to skip rows that cannot be read or that lack the key or the timestamp;
            each batch contains the number of skipped rows. False raises on the first of them.
        rewritten: whether to read a file from its beginning if its content before the position has
            changed. False raises.

    Examples:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = Path(folder.name, "a.jsonl").write_text('{"user": "ann", "page": "/tea"}')
        >>> clicks = Files(f"{folder.name}/*.jsonl", key="user", grows=False)
        >>> [path.name for path in clicks.paths()]
        ['a.jsonl']
        >>> [row.value for batch in clicks.read({}) for row in batch.rows]
        [{'user': 'ann', 'page': '/tea'}]
    """

    pattern: str
    key: str | None = None
    timestamp: str | None = None
    grows: bool = True
    skip_bad: bool = False
    rewritten: bool = False
    waiting: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By part: why the rest of a file was not read yet."""
    _done: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By part: the state of a file that was read to its end, and the position."""
    _fields: Fields = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fields", Fields(self.key, self.timestamp))

    def paths(self) -> list[Path]:
        """Return the files that match the pattern now, sorted by name."""
        found = glob.glob(str(Path(self.pattern).expanduser()), recursive=True)
        return [path for path in sorted(map(Path, found)) if path.is_file()]

    def read(self, positions: Positions, /) -> Iterator[Batch]:
        """Yield the rows after the positions, file by file in order of their names.

        Raises:
            SourceError: a file was truncated or rewritten, or a row cannot be read.
        """
        pattern = Path(self.pattern).expanduser()
        fixed = Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts[:-1]))
        for path in self.paths():
            part = path.relative_to(fixed).as_posix()
            yield from self._new_rows(path, part, positions.get(part))

    def _new_rows(self, path: Path, part: str, position: Position) -> Iterator[Batch]:
        kind = _KINDS.get(path.suffix)
        if kind is None:
            known = ", ".join(_KINDS)
            raise SourceError(f"{path} must end with {known}. Exclude it from the pattern")
        state = _state_of(path)
        if state is None or self._done.get(part) == (state, position):
            return
        try:
            self.waiting.pop(part, None)
            file = kind(path, self.grows)
        except _IncompleteError as error:
            self.waiting[part] = str(error)
            return
        except OSError as error:
            self._require_missing(path, error)
            return
        try:
            with closing(file):
                for batch in self._batches(file, part, position):
                    position = batch.position
                    yield batch
                if file.waiting:
                    self.waiting[part] = file.waiting
        except OSError as error:
            self._require_missing(path, error)
            return
        self._done[part] = state, position

    @staticmethod
    def _require_missing(path: Path, error: OSError) -> None:
        """Raise unless the file was deleted or renamed since it was found."""
        if path.exists():
            raise SourceError(
                f"{path} cannot be read ({error.strerror or type(error).__name__}). Correct that, "
                "or exclude it from the pattern"
            ) from error

    def _batches(self, file: _OpenFile, part: str, position: Position) -> Iterator[Batch]:
        rows: list[Row] = []
        begin = self._begin(file, position)
        skipped, reason, size = 0, "", 0
        at = begin
        for value, at, where in file.rows(begin):
            try:
                if isinstance(value, SourceError):
                    raise value
                rows.append(self._row(value, where))
                size += size_of(value)
            except SourceError as error:
                if not self.skip_bad:
                    raise
                skipped, reason = skipped + 1, reason or str(error)
            if len(rows) + skipped == BATCH_ROWS or size >= BATCH_BYTES:
                yield Batch(part, _position(file, at), rows, skipped, reason)
                rows, skipped, reason, size = [], 0, "", 0
        if rows or skipped:
            yield Batch(part, _position(file, at), rows, skipped, reason)

    def _row(self, value: Any, where: object) -> Row:
        try:
            return self._fields.row(value, where)
        except RecursionError:
            raise SourceError(f"{where}: the row is nested too deeply. Make it flat") from None

    def _begin(self, file: _OpenFile, position: Position) -> int:
        """Return the position to continue from; check that the content before it is unchanged."""
        if position is None:
            return 0
        # In earlier versions a position was only a number.
        at: int = position if isinstance(position, int) else position["at"]
        digest = None if isinstance(position, int) else position["digest"]
        if at <= file.size and digest in (None, file.digest(at)):
            return at
        if not self.rewritten:
            raise SourceError(
                f"{file.path} was truncated or rewritten after {at} {file.unit} were read"
                f"{f' (it has {file.size})' if at > file.size else ''}. Write new rows to a new "
                "file, or read such files from their beginning with --rewritten (rewritten=True)"
            )
        get_logger().warning("file_read_again", file=str(file.path), was_at=at)
        return 0


def _position(file: _OpenFile, at: int) -> Position:
    return {"at": at, "digest": file.digest(at)}


def _state_of(path: Path) -> Any:
    """Return a value that differs after any change of the file; None if the file does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    # Programs can set the modification time, but not the change time (ctime).
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class _RowResult(NamedTuple):
    """Value of a row, or the error of a row that cannot be read.

    Args:
        at: the position after it.
        where: its location, as text.
    """

    value: Any
    at: int
    where: object


class _IncompleteError(Exception):
    """File whose end is not written yet."""


class _OpenFile(ABC):
    """Open file."""

    unit = "bytes"

    def __init__(self, path: Path, grows: bool) -> None:
        self.path = path
        self.grows = grows
        self.size = 0
        self.waiting = ""
        """Reason why the rest is not read yet."""

    @abstractmethod
    def digest(self, at: int) -> str: ...

    @abstractmethod
    def rows(self, begin: int) -> Iterator[_RowResult]: ...

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _RowLocation:
    """Location of a row; the line number is counted only if a message is formatted."""

    path: Path
    begin: int
    """Offset of its first byte."""
    end: int
    """Offset after its last line."""

    def __str__(self) -> str:
        try:
            with self.path.open("rb") as file:
                left, line = self.begin, 1
                while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
                    line += block.count(b"\n")
                    left -= len(block)
        except OSError:
            return f"{self.path}, before byte {self.end}"
        return f"line {line} of {self.path}, before byte {self.end}"


class _LineIterator:
    """Iterator over the lines of a file as text, with the position of the current row."""

    def __init__(self, file: BinaryIO, path: Path, begin: int, *, grows: bool) -> None:
        file.seek(begin)
        self._file = file
        self._path = path
        self._grows = grows
        self.begin = begin
        """Start of the row."""
        self.first_end = begin
        """End of its first line."""
        self.position = begin
        """End of its last line."""
        self.is_utf8 = True
        self.tail = b""
        """Last bytes that were read."""
        self.rest = b""
        """Bytes after the last line feed, if they may be an incomplete line."""
        self.has_ended = False

    def begin_row(self) -> None:
        self.begin = self.first_end = self.position
        self.is_utf8 = True

    def __iter__(self) -> _LineIterator:
        return self

    def __next__(self) -> str:
        line = self._file.readline(ROW_BYTES)
        is_whole = line.endswith(b"\n")
        if len(line) == ROW_BYTES and not is_whole:
            self._skip_line(line)
            raise SourceError(f"{self.location()}: the line has more than {ROW_BYTES} bytes")
        if not line or (self._grows and not is_whole):
            self.has_ended, self.rest = True, line
            raise StopIteration
        is_first = self.position == 0
        self._move(line)
        if self.position - self.begin > ROW_BYTES:
            raise SourceError(f"{self.location()}: {OPEN_QUOTE}")
        try:
            return line.decode("utf-8-sig" if is_first else "utf-8")
        except UnicodeDecodeError:
            # The CSV reader must still find the quotes of the row.
            self.is_utf8 = False
            return line.decode(errors="surrogateescape")

    def _move(self, line: bytes) -> None:
        if self.first_end == self.begin:
            self.first_end += len(line)
        self.position += len(line)
        self.tail = (self.tail + line[-_CHECKED_BYTES:])[-_CHECKED_BYTES:]

    def _skip_line(self, line: bytes) -> None:
        """Skip to the end of a line that is too long."""
        is_first = self.first_end == self.begin
        while line:
            self._move(line)
            line = b"" if line.endswith(b"\n") else self._file.readline(_BLOCK_BYTES)
        if is_first:
            self.first_end = self.position

    def location(self) -> _RowLocation:
        return _RowLocation(self._path, self.begin, self.position)

    def wrong(self, reason: str) -> SourceError:
        return SourceError(f"{self.location()}: {reason}")


class _TextFile(_OpenFile):
    """File of text lines."""

    def __init__(self, path: Path, grows: bool) -> None:
        super().__init__(path, grows)
        self._file: BinaryIO = path.open("rb")
        self.size = os.fstat(self._file.fileno()).st_size
        self._head = self._bytes(0, _CHECKED_BYTES)
        self._lines = self.lines(0)

    def digest(self, at: int) -> str:
        """Return a digest of the bytes before a position; raise if previously read bytes differ."""
        count = min(at, _CHECKED_BYTES)
        head, tail = self._bytes(0, count), self._bytes(at - count, count)
        is_read = self._lines.position == at
        if not head.startswith(self._head[:count]) or (
            is_read and not tail.endswith(self._lines.tail[-count:])
        ):
            raise SourceError(f"{self.path} was rewritten while it was read. Start again")
        return blake2b(head + tail, digest_size=8).hexdigest()

    def _bytes(self, begin: int, count: int) -> bytes:
        return os.pread(self._file.fileno(), count, begin)

    def lines(self, begin: int) -> _LineIterator:
        self._lines = _LineIterator(self._file, self.path, begin, grows=self.grows)
        return self._lines

    def _wait(self, lines: _LineIterator) -> None:
        """Record why an unterminated last line is not read yet."""
        if lines.rest:
            self.waiting = (
                f"{lines.location()}: the last {len(lines.rest)} bytes do not end with a line feed"
            )

    def _only_cr(self) -> SourceError:
        return SourceError(
            f"{self.path} ends lines with carriage returns only. Convert them to line feeds, and "
            "give the file a new name"
        )

    def close(self) -> None:
        self._file.close()


class _JsonLines(_TextFile):
    def rows(self, begin: int) -> Iterator[_RowResult]:
        lines = self.lines(begin)
        while True:
            lines.begin_row()
            try:
                line = next(lines)
            except StopIteration:
                break
            except SourceError as error:
                yield _RowResult(error, lines.position, "")
                continue
            if line.strip():
                yield _RowResult(_json(line, lines), lines.position, lines.location())
        if b"\r" in lines.rest.strip():
            raise self._only_cr()
        self._wait(lines)


def _json(line: str, lines: _LineIterator) -> Any:
    if not lines.is_utf8:
        return lines.wrong("the line is not UTF-8")
    try:
        return json.loads(line)
    except RecursionError:
        return lines.wrong("the line is nested too deeply; make it flat")
    except ValueError as error:
        if "integer string conversion" in str(error):
            return lines.wrong("a number has too many digits")
        more = "; it has a carriage return without a line feed" if "\r" in line.strip() else ""
        return lines.wrong(f"the line is not JSON{more}")


class _Csv(_TextFile):
    def rows(self, begin: int) -> Iterator[_RowResult]:
        # The limit of the csv module is global; it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), ROW_BYTES))
        names = self._names(self._lines)
        at = None if names is None else max(begin, self._lines.position)
        while names is not None and at is not None:
            at = yield from self._rows(names, self.lines(at))

    def _names(self, lines: _LineIterator) -> list[str] | None:
        """Read the column names; return None if the header is not complete yet."""
        reader, names = csv.reader(lines, strict=True), list[str]()
        try:
            while not names:
                lines.begin_row()
                names = next(reader)
        except StopIteration:
            self._end(lines)
            return None
        except csv.Error as error:
            if "new-line" in str(error):
                raise self._only_cr() from error
            if not lines.has_ended:
                reason = _reason_of(error)
                raise lines.wrong(f"{reason}; correct the first line") from error
        if lines.has_ended:
            if not self.grows:
                raise lines.wrong(f"{OPEN_QUOTE} in the first line; correct it")
            self.waiting = f"{lines.location()}: {OPEN_QUOTE}"
            return None
        if not lines.is_utf8:
            raise lines.wrong("the names of the columns are not UTF-8; convert the file")
        twice = sorted({repr(name) for name in names if names.count(name) > 1})
        if twice:
            raise lines.wrong(
                f"two columns have the name {', '.join(twice)}. Give each a different name"
            )
        return names

    def _rows(
        self, names: list[str], lines: _LineIterator
    ) -> Generator[_RowResult, None, int | None]:
        """Yield rows; return the position to restart from, or None at the end."""
        reader = csv.reader(lines, strict=True)
        while True:
            lines.begin_row()
            cells = list[str]()
            try:
                cells = next(reader)
            except StopIteration:
                self._end(lines)
                return None
            except SourceError as error:
                yield _RowResult(error, lines.first_end, "")
                return lines.first_end
            except csv.Error as error:
                reason = _reason_of(error)
                if reason == _TEXT_AFTER_QUOTE:
                    # The closing quote may be superfluous: only the first line is bad.
                    yield _RowResult(lines.wrong(reason), lines.first_end, "")
                    return lines.first_end
                if not lines.has_ended:
                    yield _RowResult(lines.wrong(reason), lines.position, "")
                    continue
            if lines.has_ended:
                if self.grows:
                    self.waiting = f"{lines.location()}: {OPEN_QUOTE}"
                    return None
                # Only its first line is bad: the open quote has swallowed the following lines.
                yield _RowResult(lines.wrong(OPEN_QUOTE), lines.first_end, "")
                return lines.first_end
            if not cells:
                continue
            value: Any = self._value(names, cells, lines)
            yield _RowResult(value, lines.position, lines.location())

    @staticmethod
    def _value(names: list[str], cells: list[str], lines: _LineIterator) -> Any:
        if not lines.is_utf8:
            return lines.wrong("the line is not UTF-8")
        if len(cells) == len(names):
            return dict(zip(names, cells, strict=True))
        more = ""
        if lines.first_end != lines.position:
            more = "; it goes over several lines: a quote may be too many, or missing"
        return lines.wrong(f"the row has {len(cells)} cells, and the first line {len(names)}{more}")

    def _end(self, lines: _LineIterator) -> None:
        try:
            list(csv.reader([lines.rest.decode(errors="replace")]))
        except csv.Error as error:
            raise self._only_cr() from error
        self._wait(lines)


class _Parquet(_OpenFile):
    unit = "rows"

    def __init__(self, path: Path, grows: bool) -> None:
        super().__init__(path, grows)
        try:
            parquet = import_module("pyarrow.parquet")
        except ImportError:
            raise SourceError(f"{path} requires pyarrow. Run: pip install pyarrow") from None
        try:
            self._file = parquet.ParquetFile(path)
        except ValueError as error:  # base class of pyarrow's errors
            if grows:
                raise _IncompleteError(f"{path} is not a complete Parquet file yet") from error
            raise SourceError(f"{path} cannot be read: {type(error).__name__}") from error
        self.size = self._file.metadata.num_rows
        names = self._file.schema_arrow.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SourceError(f"{path} has two columns named {twice[0]!r}. Rename a column")
        self._known: dict[int, Any] = {}
        """Rows by number: the first row, and the last row that was read."""

    def digest(self, at: int) -> str:
        first = self._known.setdefault(0, self._row(0))
        rows = plain([first, self._row(at - 1)])
        return blake2b(repr(rows).encode(errors="replace"), digest_size=8).hexdigest()

    def _row(self, number: int) -> Any:
        if number in self._known:
            return self._known[number]
        for group in range(self._file.metadata.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            if number < count:
                with self._checked():
                    return self._file.read_row_group(group).slice(number, 1).to_pylist()[0]
            number -= count
        return None

    def rows(self, begin: int) -> Iterator[_RowResult]:
        position = 0
        batches = self._file.iter_batches(_READ_ROWS)
        while True:
            with self._checked():
                batch = next(batches, None)
            if batch is None:
                return
            skipped = min(max(begin - position, 0), batch.num_rows)
            position += skipped
            for value in batch.slice(skipped).to_pylist():
                self._known = {0: self._row(0) if position else value, position: value}
                position += 1
                yield _RowResult(value, position, f"{self.path}, row {position}")

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:  # base classes of pyarrow's errors
            raise SourceError(
                f"{self.path} cannot be read ({type(error).__name__}). Write it again under a new "
                "name"
            ) from error

    def close(self) -> None:
        self._file.close()


def _reason_of(error: csv.Error) -> str:
    text = str(error)
    if "new-line" in text:
        return "a carriage return is not in quotes"
    return _TEXT_AFTER_QUOTE if "expected after" in text else f"not CSV: {error}"


OPEN_QUOTE = "a quote is not closed"
_TEXT_AFTER_QUOTE = "text follows a closing quote (a quote may be too many, or missing)"

_KINDS: dict[str, Callable[[Path, bool], _OpenFile]] = {
    ".jsonl": _JsonLines,
    ".ndjson": _JsonLines,
    ".csv": _Csv,
    ".parquet": _Parquet,
}
