"""Client that repeats a query of an application's stores until it is answered or times out.

Rows that cannot be read now are queried again, because a moving task becomes available soon. Each
given host gets a part of the time-out, and an unresponsive host is asked last for a while. Answers
never go back in time: each answer contains its changelog positions, and the next answer for the
same partition must not be older than the newest row of the previous answer.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from headrace.streams.client.http import (
    EVENTS,
    EventStream,
    HttpHost,
    Interruption,
    Reply,
    sent_token,
)
from headrace.streams.config.secrets import Secret
from headrace.streams.queries.errors import (
    NoSuchStoreError,
    NotHereError,
    NotReadableError,
    PositionGoneError,
    QueryError,
    StoreInMemoryError,
    UnknownTokenError,
    UnreachedHostError,
    WrongQueryError,
)

R = TypeVar("R")

TARGET_MAX = 60_000
"""Maximum length of a request target: servers close connections with a longer first line."""
AGAIN_MIN_S = 0.05
AGAIN_MAX_S = 0.5
SILENT_S = 30.0
"""Time-out of an event stream; a server sends a heartbeat every ten seconds."""
WAIT_MAX_S = 2.0
"""Maximum time for which a server waits for a position, before the query is repeated."""
SILENT_KEPT_S = 60.0
"""Time for which an unresponsive host is asked last."""
PATIENCE = "headrace-patience-ms"
"""Header with the time for which the client waits for an answer."""
EARLIER = "headrace-earlier"
"""Header that is "true" if the positions to wait for come from earlier answers."""
Parameters = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class _Turn:
    """Attempt at a host; `has_heard` if a host has already returned an error."""

    host: HttpHost
    part_s: float
    is_last: bool
    has_heard: bool

    @property
    def silent_s(self) -> float:
        """Time without data after which the attempt fails; the last host gets extra time."""
        is_late = self.is_last and not self.has_heard
        return max(self.part_s, WAIT_MAX_S) if is_late else self.part_s

    @property
    def wait_s(self) -> float:
        """Time for which the host waits for a position."""
        return min(self.patience_s if self.is_last else self.part_s / 2, WAIT_MAX_S)

    @property
    def patience_s(self) -> float:
        """Time within which the host must answer, so that its report about other hosts arrives."""
        return min(self.part_s, 0.75 * self.silent_s)


@dataclass(frozen=True, slots=True)
class _BestError:
    """Most informative error so far, and the duration of its attempt."""

    error: NotReadableError
    after_s: float

    def is_more_than(self, error: NotReadableError, turn: _Turn, after_s: float) -> bool:
        """Compare with a later error: a time-out as late may have hidden the same error."""
        if isinstance(error, UnreachedHostError):
            is_silence = error.is_silent
        else:
            is_silence = error.unreached is not None and after_s >= turn.patience_s
        return is_silence and after_s < 2 * self.after_s


class Asker:
    """Client that repeats a query until it is answered or its time is over. Thread-safe.

    Args:
        urls: URLs of any hosts of the application.
        context: TLS context; None uses the system's trusted certificates.
        never_back: whether answers must not be older than previous answers.

    Raises:
        ConfigError: the token is not a valid header value.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: Secret | None,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
        never_back: bool = True,
    ) -> None:
        self._hosts = [HttpHost(url, context=context) for url in urls]
        self._silent_s: dict[HttpHost, float] = {}
        """When hosts have last been silent."""
        self._headers = {"Accept": "application/json"}
        self._token = None if token is None else sent_token(token)
        self.timeout_s = timeout_s
        self._never_back = never_back
        self._lock = threading.Lock()
        self._reached: dict[str, dict[int, int]] = {}
        self._kinds: dict[str, str] = {}
        self._ending = Interruption()

    def __repr__(self) -> str:
        return ", ".join(host.url for host in self._hosts)

    def ask(
        self, store: str | None, path: str, given: Parameters, body: bytes | None = None
    ) -> dict[str, Any] | None:
        """Send a query, for all stores if `store` is None; return None if a key has no row."""

        def asks(turn: _Turn) -> dict[str, Any]:
            reply = turn.host.ask(
                self._target(store, path, given, turn.wait_s),
                body,
                headers={**self._sent(body), PATIENCE: str(round(1000 * turn.patience_s))},
                timeout_s=turn.silent_s,
            )
            return _read(reply)

        found = self._insist(asks, self._ending)
        if store is not None:
            self._note(store, found.get("places", ()))
        return None if "error" in found else found

    def kind_of(self, store: str) -> str | None:
        """Return the cached kind; None if the store does not exist."""
        with self._lock:
            kind = self._kinds.get(store)
        if kind is None:
            known = (self.ask(None, "", {}) or {})["stores"]
            with self._lock:
                self._kinds.update((one["name"], one["kind"]) for one in known)
                kind = self._kinds.get(store)
        return kind

    def part(self) -> Interruption:
        return self._ending.part()

    def listen(self, store: str, path: str, given: Parameters, ending: Interruption) -> EventStream:
        """Open an event stream; `ending` ends it, and the attempts to open it."""
        said = urlencode({name: text for name, text in given.items() if text is not None})
        headers = {**self._sent(None), "Accept": EVENTS}

        def asks(turn: _Turn) -> EventStream:
            found = turn.host.listen(
                _short(f"/api/stores/{quote(store, safe='')}/{path}?{said}"),
                headers=headers,
                begin_s=SILENT_S if turn.is_last else turn.silent_s,
                silent_s=SILENT_S,
                ending=ending,
            )
            if isinstance(found, EventStream):
                return found
            raise QueryError(f"store {store!r} has no changes, but {_read(found)}")

        return self._insist(asks, ending)

    def _insist(self, asks: Callable[[_Turn], R], ending: Interruption) -> R:
        """Repeat attempts until success, or until the time is over and all hosts were asked."""
        give_up_s = time.monotonic() + self.timeout_s
        pause_s = AGAIN_MIN_S
        silent: set[HttpHost] = set()
        others: set[HttpHost] = set()
        said: _BestError | None = None
        while True:
            since_s = time.monotonic()
            turn = self._turn(silent, give_up_s - since_s, has_heard=said is not None)
            try:
                return asks(turn)
            except NotReadableError as error:
                after_s = time.monotonic() - since_s
                is_news = said is None or not said.is_more_than(error, turn, after_s)
                if isinstance(error, UnreachedHostError):
                    silent = {turn.host} if turn.is_last else {turn.host, *silent}
                    if is_news:
                        self._leave(turn.host)
                    others = {*others, turn.host} if error.is_other else others - {turn.host}
                    if len(others) == len(self._hosts):
                        raise
                    if not turn.is_last:
                        continue
                elif is_news:
                    said = _BestError(error, after_s)
                if time.monotonic() + pause_s >= give_up_s:
                    if said is None or is_news:
                        raise
                    raise said.error from error
                ending.pause(pause_s)
                pause_s = min(2 * pause_s, AGAIN_MAX_S)

    def _turn(self, silent: Set[HttpHost], left_s: float, *, has_heard: bool) -> _Turn:
        """Choose the next host among the hosts that were responsive during this query."""
        known_s = time.monotonic() - SILENT_KEPT_S
        with self._lock:
            others = [host for host in self._hosts if host not in silent] or self._hosts
            others = sorted(others, key=lambda host: self._silent_s.get(host, known_s) > known_s)
        part_s = max(left_s / len(others), AGAIN_MIN_S)
        return _Turn(others[0], part_s, is_last=len(others) == 1, has_heard=has_heard)

    def leave(self, url: str) -> None:
        """Move an unresponsive host to the end of the order."""
        for host in self._hosts:
            if host.url == url:
                self._leave(host)

    def next_host(self) -> None:
        with self._lock:
            self._hosts = [*self._hosts[1:], self._hosts[0]]

    def forget(self) -> None:
        """Accept older answers again, for example after a reset of the application."""
        with self._lock:
            self._reached.clear()
            self._kinds.clear()

    def _target(self, store: str | None, path: str, given: Parameters, wait_s: float) -> str:
        if store is None:
            return "/api/stores"
        parameters = {name: text for name, text in given.items() if text is not None}
        with self._lock:
            reached = self._reached.get(store) if self._never_back else None
            if reached:
                parameters["min_position"] = ",".join(f"{p}:{at}" for p, at in reached.items())
                parameters["wait"] = f"{round(1000 * wait_s)}ms"
        base = f"/api/stores/{quote(store, safe='')}"
        return _short(f"{base}/{path}?{urlencode(parameters)}" if path else base)

    def _sent(self, body: bytes | None) -> dict[str, str]:
        found = {**self._headers, EARLIER: str(self._never_back).lower()}
        if body is not None:
            found["Content-Type"] = "application/json"
        if self._token is not None:
            found["Authorization"] = f"Bearer {self._token.reveal()}"
        return found

    def _note(self, store: str, places: Iterable[Mapping[str, Any]]) -> None:
        with self._lock:
            reached = self._reached.setdefault(store, {})
            for place in places:
                partition = place["partition"]
                if partition is not None:
                    reached[partition] = max(reached.get(partition, 0), place["max_offset"])

    def _leave(self, silent: HttpHost) -> None:
        with self._lock:
            self._silent_s[silent] = time.monotonic()
            self._hosts = [*(host for host in self._hosts if host is not silent), silent]

    def close(self) -> None:
        """Close all connections, including connections of waiting threads."""
        self._ending.end()
        with self._lock:
            hosts = self._hosts
        for host in hosts:
            host.close()


def _short(target: str) -> str:
    if len(target) > TARGET_MAX:
        raise WrongQueryError(
            f"what is asked is {len(target):,} characters of an address, and {TARGET_MAX:,} are "
            "the most; get(key) and get_many(keys) take longer keys"
        )
    return target


def _read(reply: Reply) -> dict[str, Any]:
    found = reply.document if isinstance(reply.document, dict) else {}
    if reply.code == 200 or (reply.code == 404 and "places" in found):
        return found
    said = str(found.get("error", f"status {reply.code}"))
    if reply.code == 400:
        raise WrongQueryError(said)
    if reply.code == 401:
        raise UnknownTokenError(f"{said}; give it as token=")
    if reply.code == 404:
        raise NoSuchStoreError(
            f"{said}; stores are served where headrace run has --queries"
            if "error" not in found
            else said
        )
    if reply.code == 410:
        raise PositionGoneError(said)
    if reply.code == 421 and "partition" in found:
        raise NotHereError(said, partition=found["partition"], host=found.get("host"))
    if reply.code == 501:
        raise StoreInMemoryError(said)
    if reply.code == 503:
        raise NotReadableError(
            said, remaining=found.get("restore_remaining"), unreached=found.get("host")
        )
    raise QueryError(said)
