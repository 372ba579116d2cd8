"""Source of the rows of a database query, ordered by an increasing column; any DB-API driver."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from headrace.streams.connectors.source import Batch, Fields, Positions, Row, SourceError, size_of

BATCH_ROWS = 100
BATCH_BYTES = 64 << 10
"""Approximate bytes that also end a batch: a transaction contains whole batches."""
_READ_ROWS = 1000
PART = "rows"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_SECRETS = re.compile(r"[^\s/:@\"']+:[^\s@]*(?=@)|(?<=password=)[^\s;&]+", re.I)
_MARKS = {"qmark": "?", "numeric": ":1", "named": ":after", "format": "%s", "pyformat": "%(after)s"}


@dataclass(frozen=True, slots=True)
class Query:
    """Source of the rows of a query, in the order of a column with unique, increasing values.

    A row that is committed with a smaller value than a row that was read before is never read: use
    a column that a single writer fills, or restrict the query to rows older than any open
    transaction.

    Args:
        connect: called without arguments; returns a new connection of a DB-API driver.
        sql: a SELECT without ORDER BY.
        column: the increasing column of the query.
        key: the column used as key, as text; None for no key.
        timestamp: the column used as timestamp: milliseconds since 1970, or a date and time.
        paramstyle: the driver's parameter style; None reads it from the driver's module.

    Examples:
        >>> import sqlite3
        >>> def connect():
        ...     shop = sqlite3.connect(":memory:")
        ...     _ = shop.execute("CREATE TABLE orders (id INTEGER, item TEXT)")
        ...     _ = shop.execute("INSERT INTO orders VALUES (1, 'tea'), (2, 'cup')")
        ...     return shop
        >>> orders = Query(connect, "SELECT * FROM orders", "id", key="id")
        >>> [(row.key, row.value["item"]) for batch in orders.read({}) for row in batch.rows]
        [('1', 'tea'), ('2', 'cup')]
    """

    connect: Callable[[], Any]
    sql: str
    column: str
    key: str | None = None
    timestamp: str | None = None
    paramstyle: str | None = None
    _fields: Fields = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.column):
            raise SourceError(f"column must be the name of a column, not {self.column!r}")
        object.__setattr__(self, "_fields", Fields(self.key, self.timestamp))

    def read(self, positions: Positions, /) -> Iterator[Batch]:
        """Yield the rows after the position.

        Raises:
            SourceError: the query fails, a value is repeated or null, the largest value has
                decreased, or a row cannot be read.
        """
        after = _read_back(positions.get(PART))
        with closing(self._connected()) as connection, closing(connection.cursor()) as cursor:
            text = f"SELECT * FROM ({self.sql}) AS headrace_rows"  # noqa: S608 - the user's own
            order = f" ORDER BY {self.column}"
            if after is None:
                with _refused():
                    cursor.execute(text + order)
            else:
                mark, given = self._parameter(connection, after)
                with _refused():
                    cursor.execute(f"{text} WHERE {self.column} > {mark}{order}", given)
            names = [str(one[0]) for one in cursor.description]
            begin = after
            while found := _fetched(cursor):
                rows: list[Row] = []
                size = 0
                for cells in found:
                    value = dict(zip(names, cells, strict=True))
                    after = self._next(value, after)
                    rows.append(self._fields.row(value, f"the row with {self.column} {after}"))
                    size += size_of(value)
                    if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
                        yield Batch(PART, _stored(after), rows)
                        rows, size = [], 0
                if rows:
                    yield Batch(PART, _stored(after), rows)
            if after is not None and after == begin:
                self._require_largest(cursor, after)

    def _require_largest(self, cursor: Any, after: Any) -> None:
        """Raise if the column's largest value is not the position, for example after a restore."""
        text = f"SELECT MAX({self.column}) FROM ({self.sql}) AS headrace_rows"  # noqa: S608 - as above
        with _refused():
            cursor.execute(text)
        ((largest,),) = _fetched(cursor)
        if largest is not None and largest != after:
            raise SourceError(
                f"the largest {self.column} is {largest}, although {after} was read: the table was "
                "refilled or restored, or its newest rows were deleted. Give the feed another name "
                f"to read all rows again, or start it when a larger {self.column} exists"
            )

    def _connected(self) -> Any:
        with _converted("no connection to the database", "Check the database and connect="):
            made = self.connect()
        if not callable(getattr(made, "cursor", None)):
            raise SourceError(
                f"connect= must return a connection of a DB-API driver, not a {type(made).__name__}"
            )
        return made

    def _next(self, value: dict[str, Any], after: Any) -> Any:
        if self.column not in value:
            raise SourceError(f"the query has no column {self.column!r}; columns: {list(value)}")
        found = value[self.column]
        if found is None:
            raise SourceError(f"{self.column} is null in a row. Exclude null from the query")
        if after is not None and found == after:
            raise SourceError(
                f"{self.column} has {found} twice, so the position is ambiguous. Use a column "
                "without repeated values"
            )
        return found

    def _parameter(self, connection: Any, after: Any) -> tuple[str, Any]:
        style = self.paramstyle
        if style is None:
            module = type(connection).__module__.partition(".")[0].lstrip("_")
            style = str(getattr(sys.modules.get(module), "paramstyle", "qmark"))
        if style not in _MARKS:
            raise SourceError(f"paramstyle must be one of {', '.join(_MARKS)}, not {style!r}")
        named = style in ("named", "pyformat")
        return _MARKS[style], {"after": after} if named else (after,)


@contextmanager
def _converted(what: str, fix: str) -> Iterator[None]:
    """Convert errors of a driver to `SourceError`; secrets in their messages are masked."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        text = ": ".join(
            filter(None, (type(error).__name__, _SECRETS.sub("***", str(error)).strip()))
        )
        raise SourceError(f"{what} ({text}). {fix}") from error


def _refused() -> AbstractContextManager[None]:
    return _converted(
        "the database rejects the query", "Correct it for use in SELECT * FROM (…) ORDER BY"
    )


def _fetched(cursor: Any) -> Sequence[Any]:
    with _converted("the query was interrupted", "Start again to continue after the last commit"):
        rows: Sequence[Any] = cursor.fetchmany(_READ_ROWS)
    return rows


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def _read_back(stored: Any) -> Any:
    """Return the value of the column from JSON.

    >>> [_read_back(_stored(value)) for value in (5, "a", date(2024, 5, 1), Decimal("1.0"))]
    [5, 'a', datetime.date(2024, 5, 1), Decimal('1.0')]
    """
    if not isinstance(stored, dict):
        return stored
    ((kind, text),) = stored.items()
    if kind == "decimal":
        return Decimal(text)
    return datetime.fromisoformat(text) if kind == "datetime" else date.fromisoformat(text)
