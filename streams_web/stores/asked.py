"""A request as far as it is a question about a store, and how much it may ask for."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request

from headrace.streams.queries.answers import Place
from headrace.streams.queries.asked import MinPosition, time_of
from headrace.streams.queries.errors import TooOldError, WrongQueryError
from headrace.streams.settings import span_of

LIMIT = 100
"""Rows of a page, where nobody says how many."""
PAGE_MAX = 10_000
BODY_MAX_BYTES = 4 << 20
AGE_MAX_S = 60.0
"""Rows that may lack changes of a longer time are given to whoever asks for such: their task has
moved to another host, as a rule, and they are what it left."""
WAIT_S = 2.0
"""How long is waited for one's own writes, where nobody says for how long."""
WAIT_MAX_S = 30.0


class Asked:
    """See the module."""

    def __init__(self, request: Request, body: bytes = b"") -> None:
        self._given = request.query_params
        self._body = body
        self._path_key: str | None = request.path_params.get("key")
        self.name: str = request.path_params.get("name", "")

    @property
    def key(self) -> str:
        """The key that is asked for."""
        found = self._path_key if self._path_key is not None else self.text("key")
        if found is None:
            raise WrongQueryError("say which key: ?key=")
        return found

    def text(self, name: str) -> str | None:
        """A parameter."""
        return self._given.get(name)

    def flag(self, name: str) -> bool:
        """A parameter that is yes or no."""
        text = self._given.get(name, "false")
        if text not in ("true", "false"):
            raise WrongQueryError(f"{name} is true or false, and not {text[:40]!r}")
        return text == "true"

    def time(self, name: str, otherwise: int) -> int:
        """A parameter that is a time."""
        text = self._given.get(name)
        return otherwise if text is None else time_of(text, name)

    def limit(self) -> int:
        """How many rows."""
        text = self._given.get("limit", str(LIMIT))
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= PAGE_MAX:
            raise WrongQueryError(f"limit is a number from 1 to {PAGE_MAX}, and not {text[:40]!r}")
        return int(text)

    def keys(self) -> list[Any]:
        """The keys of a body."""
        try:
            found = msgspec.json.decode(self._body)["keys"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise WrongQueryError('the body is to be JSON: {"keys": [...]}') from error
        if not isinstance(found, list) or len(found) > PAGE_MAX:
            raise WrongQueryError(f"keys is to be a list of {PAGE_MAX} keys at most")
        return found

    def min_positions(self) -> list[MinPosition]:
        """How far the store is to be."""
        given = (text for one in self._given.getlist("min_position") for text in one.split(","))
        return [MinPosition.parse(text) for text in given]

    def wait_s(self) -> float:
        """How long to wait for that."""
        return min(WAIT_MAX_S, self._span("wait", WAIT_S))

    def require_young(self, places: tuple[Place, ...]) -> None:
        """Refuse what is older than `max_age`."""
        most_s = self._span("max_age", AGE_MAX_S)
        old = [place for place in places if place.age_ms / 1000 > most_s]
        if old:
            raise TooOldError(
                f"partition {old[0].partition} may lack changes of {old[0].age_ms / 1000:g} s: no "
                f"worker of this host has its task now, or it is silent; max_age= is {most_s:g} s "
                "here, and a longer one has the rows as they are"
            )

    def _span(self, name: str, otherwise: float) -> float:
        text = self._given.get(name)
        if text is None:
            return otherwise
        try:
            return span_of(text, name).total_seconds()
        except ValueError as error:
            raise WrongQueryError(str(error)) from error
