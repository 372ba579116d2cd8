"""Row sources of `headrace store`: files of this host, or a running application over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from headrace.streams.cli.options import cli_errors, load
from headrace.streams.config.secrets import over
from headrace.streams.config.settings import given_by, span_of
from headrace.streams.metrics.snapshots import ApplicationSnapshot
from headrace.streams.queries.query_queue import Workers

if TYPE_CHECKING:
    from headrace.streams.client.query_client import QueryClient
    from headrace.streams.queries.queries import Queries
    from headrace.streams.queries.readers import StoreReader


class LoadedQueries:
    """Interactive queries of an application that is loaded here on the first query.

    Args:
        target: names the application.
        settings: settings that override its own.
        snapshot: returns the workers' snapshot; None if no workers can be queried.
        workers: returns the query queues for rows in the workers' memory.
    """

    def __init__(
        self,
        target: str,
        settings: Mapping[str, Any],
        snapshot: Callable[[], ApplicationSnapshot] | None = None,
        workers: Workers = lambda: None,
    ) -> None:
        self._target = target
        self._settings = settings
        self._snapshot = snapshot
        self._workers = workers
        self._lock = threading.Lock()
        self._queries: Queries | None = None
        self.endpoint: str | None = None
        """Endpoint of this host's stores, if the setting application.server is not given."""

    def __call__(self) -> Queries:
        from headrace.streams.queries.queries import Queries

        with self._lock:
            if self._queries is None:
                app = load(self._target, self._settings)
                config = app.config
                if config.application_server is None:
                    config = replace(config, application_server=self.endpoint)
                self._queries = Queries(
                    config,
                    app.plans,
                    app.global_plans,
                    snapshot=self._snapshot,
                    workers=self._workers,
                )
            return self._queries


Document = dict[str, Any]
_TIMEOUT_S = 10.0
_PAGE_ROWS = 1_000
_OPTIONS = {
    "send the token: Authorization: Bearer TOKEN": "a token is required",
    "Give it as token=": "Name the file that contains it: --http-token-file FILE",
    "Use get(key) or get_many(keys), which take longer keys": "Query on its host, with --app",
    "max_age=": "--max-age",
    "snapshot=true": "--snapshot",
    "from=beginning": "--from beginning",
}
"""Command-line option for each phrase that an error message uses for programs or HTTP requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """Range of a scan, as texts; see `headrace.streams.queries.parsing.scan_of`."""

    begin: str | None = None
    end: str | None = None
    prefix: str | None = None
    reverse: bool = False


def _code_of(error: BaseException) -> int:
    """Return the exit code of an error; 1 is reserved for the answer "no", as for a missing row."""
    from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of

    code = exit_code_of(error)
    return ExitCode.USAGE if code == ExitCode.CRASHED else code


@contextmanager
def _store_errors() -> Iterator[None]:
    """Handle errors as `cli_errors` does, with advice in terms of the command line."""
    from headrace.streams.queries.errors import QueryError

    with cli_errors(_code_of):
        try:
            yield
        except QueryError as error:
            message = str(error)
            for word, option in _OPTIONS.items():
                message = message.replace(word, option)
            error.args = (message,)
            raise


class JsonRowSource(Protocol):
    """Source of rows as JSON documents."""

    def stores(self) -> list[Document]:
        """Return the stores with their partitions, and with row counts if they are known.

        `refused` contains the reason if rows are too old to be counted.
        """

    def of_key(self, name: str, key: str, as_of: str | None) -> list[Document]:
        """Return the row of a key, or all windows of a key."""

    def scan(self, name: str, wanted: ScanRange, limit: int | None) -> Iterator[Document]:
        """Return the rows of a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Options of `headrace store` that select the source of rows.

    Args:
        target: the application, whose files on this host are read.
        url: the URL of a running application, used in place of `target`.
        max_age: maximum age of rows, as text.
    """

    target: str | None
    url: str | None
    token_file: Path | None
    state_dir: Path | None
    max_age: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def opened(self) -> Iterator[JsonRowSource]:
        from headrace.streams.client.query_client import QueryClient

        age = self._age()
        with self.followed() as source:
            if isinstance(source, QueryClient):
                yield _Served(source, self.max_age)
            else:
                yield _LocalRows(source, age)

    @contextmanager
    def followed(self) -> Iterator[Queries | QueryClient]:
        if (self.target is None) == (self.url is None):
            raise click.UsageError("--app or --url is required, and not both.")
        if self.token_file is not None and self.url is None:
            raise click.UsageError("--http-token-file requires --url.")
        if self.state_dir is not None and self.url is not None:
            raise click.UsageError("--state-dir requires --app.")
        with _store_errors():
            if self.target is not None:
                settings = self.settings
                if self.state_dir is not None:
                    given = given_by({"state.dir": str(self.state_dir)}, "--state-dir")
                    settings = over(settings, given)
                with LoadedQueries(self.target, settings)() as queries:
                    yield queries
                return
            with closing(self._client(str(self.url))) as client:
                yield client

    def _age(self) -> timedelta | None:
        try:
            return None if self.max_age is None else span_of(self.max_age, "--max-age")
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    def _client(self, url: str) -> QueryClient:
        from headrace.streams.client.query_client import QueryClient
        from headrace.streams.config.secrets import Secret
        from headrace.streams.errors import ConfigError

        token = None
        if self.token_file is not None:
            try:
                token = Secret(self.token_file.read_text())
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"the token in {self.token_file} cannot be read: {error}"
                ) from error
        return QueryClient([url], token=token, timeout_s=_TIMEOUT_S)


class _LocalRows:
    """Row source that reads the files of this host."""

    def __init__(self, queries: Queries, max_age: timedelta | None) -> None:
        self._queries = queries
        self._max_age = max_age
        self._has_warned = False

    def _reader(self, name: str, *, only: frozenset[int] | None = None) -> StoreReader[Any, Any]:
        """Return a store's reader; warn once if no worker of the application runs here."""
        from headrace.streams.queries.committed_rows import AgeLimit
        from headrace.streams.queries.errors import QueryError

        most_ms = None if self._max_age is None else round(1000 * self._max_age.total_seconds())
        age = AgeLimit(most_ms, advice="accept them with --max-age, such as 24h")
        reader = self._queries.reader(name, only=only, age=age)
        if self._has_warned or self._queries.are_at_work():
            return reader
        try:
            oldest = max(reader.positions(), key=lambda position: position.age_ms)
        except (QueryError, ValueError):
            return reader  # the query itself reports that the store is missing
        self._has_warned = True
        click.echo(
            f"No worker of {self._queries.application} runs on this host. Rows of {name} may lack "
            f"changes of {oldest.age_ms / 1000:g} s.",
            err=True,
        )
        return reader

    def stores(self) -> list[Document]:
        from headrace.streams.queries.errors import QueryError, TooOldError

        found = []
        for name in sorted(self._queries.stores):
            reader = self._reader(name)
            descriptor = reader.store
            one: Document = {
                "name": descriptor.name,
                "kind": descriptor.kind,
                "key": descriptor.key_name,
                "value": descriptor.value.name,
                "in_memory": descriptor.in_memory,
                "positions": [],
                "rows": None,
                "refused": None,
            }
            try:
                positions = reader.positions()
                one["positions"] = [asdict(position) for position in positions]
                readable = frozenset(p.partition for p in positions if p.partition is not None)
                if positions:
                    counting = self._reader(name, only=readable or None)
                    one["rows"] = counting.approximate_num_entries()
            except TooOldError as error:
                one["refused"] = str(error)
            except QueryError:
                pass  # no worker has created it here, or it is in memory
            found.append(one)
        return found

    def of_key(self, name: str, key: str, as_of: str | None) -> list[Document]:
        from headrace.streams.queries.errors import WrongQueryError
        from headrace.streams.queries.parsing import key_of_text, row_document, time_of
        from headrace.streams.queries.readers import (
            LAST_MS,
            KeyValueReader,
            SessionReader,
            VersionedReader,
            WindowReader,
        )

        reader = self._reader(name)
        data = key_of_text(key, reader.key_serde, reader.name)
        if as_of is not None:
            if not isinstance(reader, VersionedReader):
                raise WrongQueryError(f"store {name!r} is not versioned. Remove --as-of.")
            rows = [reader.find_as_of(data, time_of(as_of, "--as-of"), is_encoded=True).row]
        elif isinstance(reader, WindowReader | SessionReader):
            rows = [*reader.rows(reader.of_key(data, 0, LAST_MS))]
        else:
            assert isinstance(reader, KeyValueReader)
            rows = [reader.find(data, is_encoded=True).row]
        return [row_document(row) for row in rows if row is not None]

    def scan(self, name: str, wanted: ScanRange, limit: int | None) -> Iterator[Document]:
        from headrace.streams.queries.parsing import row_document, scan_of

        reader = self._reader(name)
        scan = scan_of(
            reader,
            begin=wanted.begin,
            end=wanted.end,
            prefix=wanted.prefix,
            reverse=wanted.reverse,
        )
        return (row_document(row) for row in reader.rows(scan, limit))


class _Served:
    """Row source that queries a running application over HTTP."""

    def __init__(self, client: QueryClient, max_age: str | None) -> None:
        self._client = client
        self._age = {"max_age": max_age}

    def stores(self) -> list[Document]:
        found = (self._client.ask(None, "", {}) or {})["stores"]
        return [self._with_positions(one) for one in found]

    def _with_positions(self, one: Document) -> Document:
        from headrace.streams.queries.errors import StoreInMemoryError

        more = self._client.ask(one["name"], "", {}) or {}
        try:
            count = self._client.ask(one["name"], "count", self._age) or {}
        except StoreInMemoryError:  # no worker with this store runs there
            count = {}
        return {**one, "positions": more.get("positions", []), "rows": count.get("count")}

    def of_key(self, name: str, key: str, as_of: str | None) -> list[Document]:
        found = self._client.ask(name, "get", {"key": key, "as_of": as_of, **self._age})
        if found is None:
            return []
        if "rows" not in found:
            return [_bare(found)]
        return [*self._rows(name, "get", {"key": key}, None)]

    def scan(self, name: str, wanted: ScanRange, limit: int | None) -> Iterator[Document]:
        given = {"from": wanted.begin, "to": wanted.end, "prefix": wanted.prefix}
        reverse = "true" if wanted.reverse else None
        if wanted.prefix is None:
            return self._rows(name, "range", {**given, "reverse": reverse}, limit)
        return self._rows(name, "prefix", {**given, "reverse": reverse}, limit)

    def _rows(
        self, name: str, path: str, given: dict[str, str | None], limit: int | None
    ) -> Iterator[Document]:
        after: str | None = None
        left = limit
        while left is None or left > 0:
            size = str(_PAGE_ROWS if left is None else min(left, _PAGE_ROWS))
            parameters = {**given, **self._age, "limit": size, "after": after}
            page = self._client.ask(name, path, parameters) or {}
            yield from page["rows"]
            after = page["after"]
            if after is None:
                return
            left = None if left is None else left - len(page["rows"])


def _bare(document: Document) -> Document:
    return {name: document[name] for name in ("key", "value", "timestamp", "partition")}
