"""A request as far as it is a question about a store, and how much it may ask for."""

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

from headrace.streams.client.asker import EARLIER, PATIENCE
from headrace.streams.config.settings import span_of
from headrace.streams.queries.answers import Place
from headrace.streams.queries.asked import (
    MinPosition,
    ReadKey,
    key_of_json,
    key_of_text,
    time_of,
)
from headrace.streams.queries.errors import WrongQueryError
from headrace.streams.queries.source import AGE_MAX_S, too_old
from headrace.topology.serdes.documents import TOO_DEEP

LIMIT = 100
"""Rows of a page, where nobody says how many."""
PAGE_MAX = 10_000
BODY_MAX_BYTES = 4 << 20
WAIT_S = 2.0
"""How long is waited for one's own writes, where nobody says for how long."""
WAIT_MAX_S = 30.0
WITHIN_MIN_S = 0.05
ASKED_BY = "headrace-asked-by"
"""The header of a question that a host sends on, with its endpoint: whoever gets it answers
himself, so that none goes round in circles."""
_PATIENCE_MS = re.compile(r"[0-9]{1,9}")
_OUTER = ("route", "partial", "partitions", "of", "left", "min_position", "key")
"""What is said anew of a question that is sent on."""
_OF_ROWS = frozenset({"from", "to", "limit", "after"})

Route = Literal["proxy", "redirect", "none"]
_ROUTES = ("proxy", "redirect", "none")


@dataclass(frozen=True)
class Asked:
    """Parsed request for rows of a store, with its limits.

    Args:
        name: the store's.
        given: the parameters.
        path_key: the key, where it is part of the path.
        asker: the endpoint of the host that sends it on.
        authorization: the header that says who asks.
        is_earlier: whether `min_position` is where earlier answers stood, and nobody's wish.
        until_s: when whoever asks waits no longer, of the monotonic clock; None where he does not
            say.
    """

    name: str
    given: tuple[tuple[str, str], ...] = ()
    path_key: str | None = None
    body: bytes = b""
    asker: str | None = None
    authorization: str | None = None
    is_earlier: bool = False
    until_s: float | None = None

    @classmethod
    def of(cls, request: Request, body: bytes = b"") -> Self:
        """Read a request."""
        patience = request.headers.get(PATIENCE, "")
        is_said = _PATIENCE_MS.fullmatch(patience) is not None
        return cls(
            name=request.path_params.get("name", ""),
            given=tuple(request.query_params.multi_items()),
            path_key=request.path_params.get("key"),
            body=body,
            asker=request.headers.get(ASKED_BY),
            authorization=request.headers.get("authorization"),
            is_earlier=request.headers.get(EARLIER) == "true",
            until_s=time.monotonic() + int(patience) / 1000 if is_said else None,
        )

    @cached_property
    def _values(self) -> dict[str, str]:
        return dict(self.given)

    # -- what is asked for -----------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The key that is asked for."""
        found = self.path_key if self.path_key is not None else self.text("key")
        if found is None:
            raise WrongQueryError("say which key: ?key=")
        return found

    @property
    def read_key(self) -> ReadKey:
        """Makes bytes of keys in parameters."""
        return key_of_json if self.flag("json_keys") else key_of_text

    def text(self, name: str) -> str | None:
        """A parameter."""
        return self._values.get(name)

    def flag(self, name: str) -> bool:
        """A parameter that is yes or no."""
        text = self._values.get(name, "false")
        if text not in ("true", "false"):
            raise WrongQueryError(f"{name} is true or false, and not {text[:40]!r}")
        return text == "true"

    def time(self, name: str, otherwise: int) -> int:
        """A parameter that is a time."""
        text = self._values.get(name)
        return otherwise if text is None else time_of(text, name)

    def limit(self) -> int:
        """How many rows."""
        return self._number("limit", LIMIT, PAGE_MAX)

    def keys(self) -> list[Any]:
        """The keys of a body."""
        try:
            body = msgspec.json.decode(self.body)
            found = body["keys"]
        except RecursionError as error:
            raise WrongQueryError(f"the body {TOO_DEEP}; send keys that the store has") from error
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise WrongQueryError('the body is to be JSON: {"keys": [...]}') from error
        if others := sorted(body.keys() - {"keys"}):
            raise WrongQueryError(
                f"there is no field {others[0][:40]!r} in the body; it is "
                '{"keys": [...]}, and all else is a parameter'
            )
        if not isinstance(found, list) or len(found) > PAGE_MAX:
            raise WrongQueryError(f"keys is to be a list of {PAGE_MAX} keys at most")
        return found

    def min_positions(self) -> list[MinPosition]:
        """How far the store is to be; of the partitions that are meant."""
        only = self.only
        found = self.all_positions()
        return [one for one in found if only is None or one.partition in only]

    def all_positions(self) -> list[MinPosition]:
        """The same, whatever is meant."""
        given = (text for name, text in self.given if name == "min_position")
        return [MinPosition.parse(text) for one in given for text in one.split(",")]

    def wait_s(self) -> float:
        """How long to wait for that."""
        wait_s = self._span("wait", WAIT_S)
        if wait_s > WAIT_MAX_S:
            raise WrongQueryError(f"wait= is {WAIT_MAX_S:g}s at most; ask again for longer")
        return wait_s

    def within_s(self, most_s: float) -> float:
        """For how long another host may be waited for, so that whoever asks hears which it was."""
        if self.until_s is None:
            return most_s
        return min(most_s, max(self.until_s - time.monotonic(), WITHIN_MIN_S))

    def require_right(self) -> None:
        """See that all is of its kind that any question may have, also what one does not look at.

        Raises:
            WrongQueryError: something is not.
        """
        for name in ("partial", "json_keys"):
            self.flag(name)
        self.wait_s()
        self._span("max_age", AGE_MAX_S)
        _ = self.route

    def require_of_row(self) -> None:
        """See that nothing is said about many rows where a key has one.

        Raises:
            WrongQueryError: something is.
        """
        if others := sorted(_OF_ROWS & self._values.keys()):
            raise WrongQueryError(
                f"store {self.name!r} has one row of a key; leave out {', '.join(others)}"
            )

    def require_young(self, places: tuple[Place, ...]) -> None:
        """Refuse what is older than `max_age`."""
        most_s = self._span("max_age", AGE_MAX_S)
        old = [place for place in places if place.age_ms / 1000 > most_s]
        if old:
            then = f"max_age= is {most_s:g} s here, and a longer one has them as they are"
            raise too_old(self.name, old[0], 1000 * most_s, then=then)

    # -- over hosts ------------------------------------------------------------------------------

    @property
    def route(self) -> Route:
        """What becomes of a question whose answer is elsewhere."""
        text = self._values.get("route", "proxy")
        if text not in _ROUTES:
            raise WrongQueryError(f"route is proxy, redirect or none, and not {text[:40]!r}")
        return cast(Route, text)

    @cached_property
    def only(self) -> frozenset[int] | None:
        """The partitions that are meant; None for all."""
        text = self._values.get("partitions")
        if text is None:
            return None
        parts = text.split(",")
        if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
            raise WrongQueryError(f"partitions are numbers with commas, and not {text[:40]!r}")
        return frozenset(map(int, parts))

    @property
    def partitions(self) -> int | None:
        """How many the store has, as a host knows that sends the question on."""
        return self._number("of", 0, 1_000_000) or None

    def sent_on(
        self,
        only: Iterable[int],
        of: int,
        *,
        left: bool = False,
        body: bytes | None = None,
        **changed: str | None,
    ) -> Asked:
        """The question as another host is asked it.

        Args:
            only: the partitions that are meant there.
            of: how many there are.
            left: whether what a task has left behind there will do.
            changed: other parameters; None for those that are left out.
        """
        meant = frozenset(only)
        kept = [one for one in self.given if one[0] not in _OUTER and one[0] not in changed]
        kept += [(name, text) for name, text in changed.items() if text is not None]
        if self.path_key is not None or "key" in self._values:
            kept.append(("key", self.key))
        kept += [("partitions", ",".join(map(str, sorted(meant)))), ("of", str(of))]
        kept += [("left", "true")] * left
        positions = [str(one) for one in self.min_positions() if one.partition in meant]
        kept += [("min_position", ",".join(positions))] if positions else []
        return replace(
            self, given=tuple(kept), path_key=None, body=self.body if body is None else body
        )

    def behind(self, places: Iterable[Mapping[str, Any]]) -> Self:
        """The question as it is asked a second time: no row may be earlier than those that were.

        Args:
            places: where the answers of the first time stood.
        """
        found = ",".join(f"{one['partition']}:{one['max_offset']}" for one in places)
        if not found:
            return self
        is_earlier = self.is_earlier or self.text("min_position") is None
        return replace(self, given=(*self.given, ("min_position", found)), is_earlier=is_earlier)

    def target(self, word: str) -> str:
        """Path and query of the question at another host.

        Args:
            word: what stands behind the store's name.
        """
        path = f"/api/stores/{quote(self.name, safe='')}" + (f"/{word}" if word else "")
        return f"{path}?{urlencode(self.given)}"

    def headers(self, asker: str) -> dict[str, str]:
        """The headers of the question at another host.

        Args:
            asker: the endpoint of this host.
        """
        found = {ASKED_BY: asker, EARLIER: str(self.is_earlier).lower()}
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
            raise WrongQueryError(f"{name} is a number from 1 to {most}, and not {text[:40]!r}")
        return int(text[:9])

    def _span(self, name: str, otherwise: float) -> float:
        text = self._values.get(name)
        if text is None:
            return otherwise
        try:
            return span_of(text, name).total_seconds()
        except ValueError as error:
            raise WrongQueryError(str(error)) from error
