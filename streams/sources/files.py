"""Rows of files that grow: JSON lines, CSV and Parquet, by the ends of their names.

A file is known by its name, below the part of the pattern that has no wildcard. Its position is a
byte behind a whole line, or a number of rows in Parquet. What stands behind the last line feed may
be half a line, so it waits for the rest.
"""

from __future__ import annotations

import csv
import glob
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from headrace.streams.sources.source import (
    Batch,
    Fields,
    Positions,
    Row,
    SourceError,
    size_of,
)

BATCH_ROWS = 100
BATCH_BYTES = 64 << 10
"""About so many bytes end a batch, too: a transaction takes whole batches."""
_BLOCK_BYTES = 1 << 20
_READ_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Files:
    """The rows of all files that a pattern names, those that come later too.

    Args:
        pattern: such as ``clicks/*.jsonl`` or ``**/*.csv``; ``~`` is the home directory.
        key: the field that is the key, as text; None for no key.
        timestamp: the field that is the time: milliseconds since 1970, or a date and time.
        grows: whether files may grow, so that what has no line feed behind it is not read yet.
        skip_bad: leave out rows that cannot be read, or lack the key or the time; each batch says
            how many. False refuses the first one.
    """

    pattern: str
    key: str | None = None
    timestamp: str | None = None
    grows: bool = True
    skip_bad: bool = False
    _fields: Fields = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fields", Fields(self.key, self.timestamp))

    def paths(self) -> list[Path]:
        """The files that the pattern names now, in the order of their names."""
        found = glob.glob(str(Path(self.pattern).expanduser()), recursive=True)
        return [path for path in sorted(map(Path, found)) if path.is_file()]

    def read(self, positions: Positions, /) -> Iterator[Batch]:
        """The rows behind the positions, file by file in the order of their names.

        Raises:
            SourceError: a file is shorter than it was, or a row cannot be read.
        """
        pattern = Path(self.pattern).expanduser()
        fixed = Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts[:-1]))
        for path in self.paths():
            part = path.relative_to(fixed).as_posix()
            yield from self._rows(path, part, positions.get(part, 0))

    def _rows(self, path: Path, part: str, begin: int) -> Iterator[Batch]:
        read = _READERS.get(path.suffix)
        if read is None:
            known = ", ".join(_READERS)
            raise SourceError(f"{path} is none of {known}; write a pattern that leaves it out")
        rows: list[Row] = []
        position, skipped, reason, size = begin, 0, "", 0
        for value, position, where in read(path, begin, self.grows):
            try:
                if isinstance(value, SourceError):
                    raise value
                rows.append(self._fields.row(value, where))
            except SourceError as error:
                if not self.skip_bad:
                    raise
                skipped, reason = skipped + 1, reason or str(error)
            size += size_of(value)
            if len(rows) + skipped == BATCH_ROWS or size >= BATCH_BYTES:
                yield Batch(part, position, rows, skipped, reason)
                rows, skipped, reason, size = [], 0, "", 0
        if rows or skipped:
            yield Batch(part, position, rows, skipped, reason)


Found = Iterator[tuple[Any, int, object]]
"""Values, or what is wrong with them, each with the position behind it, and where it stands."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line stands; lines are counted when somebody asks."""

    path: Path
    begin: int
    """A byte of the line."""
    end: int
    """The byte behind it."""

    def __str__(self) -> str:
        with self.path.open("rb") as file:
            left, line = self.begin, 1
            while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
                line += block.count(b"\n")
                left -= len(block)
        return f"line {line} of {self.path}, before byte {self.end}"


class _Lines:
    """Whole lines, and how many bytes they were."""

    def __init__(self, file: BinaryIO, path: Path, begin: int, *, grows: bool) -> None:
        file.seek(begin)
        self._file = file
        self._path = path
        self._grows = grows
        self.begin = begin
        """Where the last line begins."""
        self.position = begin
        self.has_ended = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._file.readline()
        if not line or (self._grows and not line.endswith(b"\n")):
            self.has_ended = True
            raise StopIteration
        self.begin = self.position
        self.position += len(line)
        try:
            return line.decode("utf-8-sig" if self.position == len(line) else "utf-8")
        except UnicodeDecodeError:
            raise SourceError(f"{self.place()}: the line is no UTF-8") from None

    def place(self) -> _Place:
        """Where the last line stands."""
        return _Place(self._path, self.begin, self.position)


def _opened(path: Path, begin: int) -> BinaryIO:
    size = path.stat().st_size
    if size < begin:
        raise SourceError(
            f"{path} has {size} bytes, and {begin} were read already: it was cut or written anew; "
            "give new rows a file of a new name"
        )
    return path.open("rb")


def _json_lines(path: Path, begin: int, grows: bool) -> Found:
    with _opened(path, begin) as file:
        lines = _Lines(file, path, begin, grows=grows)
        while True:
            try:
                line = next(lines)
            except StopIteration:
                return
            except SourceError as error:
                yield error, lines.position, ""
                continue
            if line.strip():
                where = lines.place()
                try:
                    value = json.loads(line)
                except ValueError:
                    value = SourceError(f"{where}: the line is no JSON")
                yield value, lines.position, where


def _csv(path: Path, begin: int, grows: bool) -> Found:
    with _opened(path, begin) as file:
        head = _Lines(file, path, 0, grows=grows)
        names = next(csv.reader(head), None)
        if names is None or head.has_ended:
            return
        lines = _Lines(file, path, max(begin, head.position), grows=grows)
        for cells in csv.reader(lines):
            if lines.has_ended and grows:
                return  # in the midst of quotes
            if not cells:
                continue
            where = lines.place()
            if len(cells) == len(names):
                yield dict(zip(names, cells, strict=True)), lines.position, where
                continue
            has = f"the row has {len(cells)} cells, and the first line {len(names)}"
            yield SourceError(f"{where}: {has}"), lines.position, where


def _parquet(path: Path, begin: int, grows: bool) -> Found:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise SourceError(f"{path} needs pyarrow: pip install pyarrow") from None
    try:
        file = parquet.ParquetFile(path)
    except ValueError as error:  # pyarrow's own are such
        if grows:
            return  # its end is not written yet
        raise SourceError(f"{path} cannot be read: {type(error).__name__}") from error
    with file:
        total = file.metadata.num_rows
        if total < begin:
            raise SourceError(f"{path} has {total} rows, and {begin} were read already")
        position = 0
        for batch in file.iter_batches(_READ_ROWS):
            skipped = min(max(begin - position, 0), batch.num_rows)
            position += skipped
            for value in batch.slice(skipped).to_pylist():
                position += 1
                yield value, position, f"{path}, row {position}"


_READERS: dict[str, Callable[[Path, int, bool], Found]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
}
