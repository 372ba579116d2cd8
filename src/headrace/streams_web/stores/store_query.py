"""HTTP request for rows of a store, with its parameters and limits."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, cast
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request

from headrace.streams.client.query_client import EARLIER, TIME_LIMIT
from headrace.streams.config.settings import span_of
from headrace.streams.queries.answers import PartitionPosition
from headrace.streams.queries.committed_rows import AGE_MAX_S, too_old
from headrace.streams.queries.errors import WrongQueryError
from headrace.streams.queries.parsing import (
    MinPosition,
    ReadKey,
    key_of_json,
    key_of_text,
    time_of,
)
from headrace.topology.serdes.documents import TOO_DEEP

LIMIT = 100
"""Default number of rows of a page."""
PAGE_MAX = 10_000
BODY_MAX_BYTES = 4 << 20
WAIT_S = 2.0
"""Default time limit of a wait for positions."""
WAIT_MAX_S = 30.0
WITHIN_MIN_S = 0.05
FORWARDED_BY = "headrace-asked-by"
"""Header of a forwarded query, with the endpoint of the host that forwards it. The receiving host
answers from its own files, so that no query goes in circles."""
_TIME_LIMIT_MS = re.compile(r"[0-9]{1,9}")
_OUTER = ("route", "partial", "partitions", "of", "left", "min_position", "key")
"""Parameters that are set again when a query is forwarded."""
_OF_ROWS = frozenset({"from", "to", "limit", "after"})

Route = Literal["proxy", "redirect", "none"]
_ROUTES = ("proxy", "redirect", "none")


@dataclass(frozen=True)
class StoreQuery:
    """Parsed request for rows of a store, with its limits.

    Args:
        path_key: the key, if it is part of the path.
        sender: the endpoint of the host that forwards the request.
        authorization: the header with the client's token.
        is_earlier: whether `min_position` comes from earlier answers, not from the client.
        until_s: time of the monotonic clock at which the client stops waiting; None if unknown.
    """

    name: str
    given: tuple[tuple[str, str], ...] = ()
    path_key: str | None = None
    body: bytes = b""
    sender: str | None = None
    authorization: str | None = None
    is_earlier: bool = False
    until_s: float | None = None

    @classmethod
    def of(cls, request: Request, body: bytes = b"") -> Self:
        limit_ms = request.headers.get(TIME_LIMIT, "")
        is_given = _TIME_LIMIT_MS.fullmatch(limit_ms) is not None
        return cls(
            name=request.path_params.get("name", ""),
            given=tuple(request.query_params.multi_items()),
            path_key=request.path_params.get("key"),
            body=body,
            sender=request.headers.get(FORWARDED_BY),
            authorization=request.headers.get("authorization"),
            is_earlier=request.headers.get(EARLIER) == "true",
            until_s=time.monotonic() + int(limit_ms) / 1000 if is_given else None,
        )

    @cached_property
    def _values(self) -> dict[str, str]:
        return dict(self.given)

    # -- the query -------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        found = self.path_key if self.path_key is not None else self.text("key")
        if found is None:
            raise WrongQueryError("the key is missing. Give it as ?key=")
        return found

    @property
    def read_key(self) -> ReadKey:
        return key_of_json if self.flag("json_keys") else key_of_text

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def flag(self, name: str) -> bool:
        text = self._values.get(name, "false")
        if text not in ("true", "false"):
            raise WrongQueryError(f"{name} must be true or false, not {text[:40]!r}")
        return text == "true"

    def time(self, name: str, otherwise: int) -> int:
        text = self._values.get(name)
        return otherwise if text is None else time_of(text, name)

    def limit(self) -> int:
        return self._number("limit", LIMIT, PAGE_MAX)

    def keys(self) -> list[Any]:
        try:
            body = msgspec.json.decode(self.body)
            found = body["keys"]
        except RecursionError as error:
            raise WrongQueryError(f"the body {TOO_DEEP}. Send keys that the store has") from error
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise WrongQueryError('the body must be JSON: {"keys": [...]}') from error
        if unknown := sorted(body.keys() - {"keys"}):
            raise WrongQueryError(
                f"the body must not have a field {unknown[0][:40]!r}. Send "
                '{"keys": [...]}, and everything else as parameters'
            )
        if not isinstance(found, list) or len(found) > PAGE_MAX:
            raise WrongQueryError(f"keys must be a list of at most {PAGE_MAX} keys")
        return found

    def min_positions(self) -> list[MinPosition]:
        """Return the positions that the requested partitions must reach."""
        only = self.only
        found = self.all_positions()
        return [one for one in found if only is None or one.partition in only]

    def all_positions(self) -> list[MinPosition]:
        given = (text for name, text in self.given if name == "min_position")
        return [MinPosition.parse(text) for one in given for text in one.split(",")]

    def wait_s(self) -> float:
        wait_s = self._span("wait", WAIT_S)
        if wait_s > WAIT_MAX_S:
            raise WrongQueryError(
                f"wait= must be at most {WAIT_MAX_S:g}s. Repeat the query to wait longer"
            )
        return wait_s

    def within_s(self, most_s: float) -> float:
        """Return the time limit for another host, which ends before the client gives up."""
        if self.until_s is None:
            return most_s
        return min(most_s, max(self.until_s - time.monotonic(), WITHIN_MIN_S))

    def require_valid(self) -> None:
        """Raise WrongQueryError if a general parameter is invalid, even if unused here."""
        for name in ("partial", "json_keys"):
            self.flag(name)
        self.wait_s()
        self._span("max_age", AGE_MAX_S)
        _ = self.route

    def require_single_row(self) -> None:
        """Raise WrongQueryError if a query for a single row has parameters for many rows."""
        if others := sorted(_OF_ROWS & self._values.keys()):
            raise WrongQueryError(
                f"store {self.name!r} has a single row per key. Leave out {', '.join(others)}"
            )

    def require_age(self, positions: tuple[PartitionPosition, ...]) -> None:
        most_s = self._span("max_age", AGE_MAX_S)
        old = [position for position in positions if position.age_ms / 1000 > most_s]
        if old:
            advice = f"Use max_age= to accept rows older than {most_s:g} s"
            raise too_old(self.name, old[0], 1000 * most_s, advice=advice)

    # -- over hosts ------------------------------------------------------------------------------

    @property
    def route(self) -> Route:
        text = self._values.get("route", "proxy")
        if text not in _ROUTES:
            raise WrongQueryError(f"route must be proxy, redirect or none, not {text[:40]!r}")
        return cast(Route, text)

    @cached_property
    def only(self) -> frozenset[int] | None:
        text = self._values.get("partitions")
        if text is None:
            return None
        parts = text.split(",")
        if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
            raise WrongQueryError(
                f"partitions must be numbers separated by commas, not {text[:40]!r}"
            )
        return frozenset(map(int, parts))

    @property
    def partitions(self) -> int | None:
        """Partition count of the store, given by the host that forwards the query."""
        return self._number("of", 0, 1_000_000) or None

    def forwarded(
        self,
        only: Iterable[int],
        of: int,
        *,
        left: bool = False,
        body: bytes | None = None,
        **changed: str | None,
    ) -> StoreQuery:
        """Return the query for the partitions `only`, of `of` in all, on another host.

        `left` accepts the rows that a task has left there after it moved. None removes a parameter.
        """
        wanted = frozenset(only)
        parameters = [one for one in self.given if one[0] not in _OUTER and one[0] not in changed]
        parameters += [(name, text) for name, text in changed.items() if text is not None]
        if self.path_key is not None or "key" in self._values:
            parameters.append(("key", self.key))
        parameters += [("partitions", ",".join(map(str, sorted(wanted)))), ("of", str(of))]
        parameters += [("left", "true")] * left
        positions = [str(one) for one in self.min_positions() if one.partition in wanted]
        parameters += [("min_position", ",".join(positions))] if positions else []
        return replace(
            self, given=tuple(parameters), path_key=None, body=self.body if body is None else body
        )

    def not_before(self, positions: Iterable[Mapping[str, Any]]) -> Self:
        """Return the query for a second attempt: no row may be older than in the first answers."""
        found = ",".join(f"{one['partition']}:{one['max_offset']}" for one in positions)
        if not found:
            return self
        is_earlier = self.is_earlier or self.text("min_position") is None
        return replace(self, given=(*self.given, ("min_position", found)), is_earlier=is_earlier)

    def target(self, word: str) -> str:
        path = f"/api/stores/{quote(self.name, safe='')}" + (f"/{word}" if word else "")
        return f"{path}?{urlencode(self.given)}"

    def headers(self, sender: str) -> dict[str, str]:
        found = {FORWARDED_BY: sender, EARLIER: str(self.is_earlier).lower()}
        if self.authorization is not None:
            found["Authorization"] = self.authorization
        if self.body:
            found["Content-Type"] = "application/json"
        return found

    def _number(self, name: str, otherwise: int, most: int) -> int:
        text = self._values.get(name)
        if text is None:
            return otherwise
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
            raise WrongQueryError(f"{name} must be a number from 1 to {most}, not {text[:40]!r}")
        return int(text[:9])

    def _span(self, name: str, otherwise: float) -> float:
        text = self._values.get(name)
        if text is None:
            return otherwise
        try:
            return span_of(text, name).total_seconds()
        except ValueError as error:
            raise WrongQueryError(str(error)) from error
