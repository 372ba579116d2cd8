"""Client that repeats a query of an application's stores until it is answered or times out.

Rows that cannot be read now are queried again, because a moving task becomes available soon. Each
given host gets a part of the time-out, and an unresponsive host is tried last for a while. Answers
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
RETRY_MIN_S = 0.05
RETRY_MAX_S = 0.5
STREAM_TIMEOUT_S = 30.0
"""Time-out of an event stream; a server sends a heartbeat every ten seconds."""
WAIT_MAX_S = 2.0
"""Maximum time for which a server waits for a position, before the query is repeated."""
TRIED_LAST_S = 60.0
"""Time for which an unresponsive host is tried last."""
TIME_LIMIT = "headrace-patience-ms"
"""Header with the time for which the client waits for an answer."""
EARLIER = "headrace-earlier"
"""Header that is "true" if the positions to wait for come from earlier answers."""
Parameters = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Attempt at a host; `has_response` if a host has already returned an error."""

    host: HttpHost
    part_s: float
    is_last: bool
    has_response: bool

    @property
    def timeout_s(self) -> float:
        """Time without data after which the attempt fails; the last host gets extra time."""
        is_late = self.is_last and not self.has_response
        return max(self.part_s, WAIT_MAX_S) if is_late else self.part_s

    @property
    def wait_s(self) -> float:
        """Time for which the host waits for a position."""
        return min(self.answer_limit_s if self.is_last else self.part_s / 2, WAIT_MAX_S)

    @property
    def answer_limit_s(self) -> float:
        """Time within which the host must answer, so that its report about other hosts arrives."""
        return min(self.part_s, 0.75 * self.timeout_s)


@dataclass(frozen=True, slots=True)
class _BestError:
    """Most informative error so far, and the duration of its attempt."""

    error: NotReadableError
    after_s: float

    def is_more_than(self, error: NotReadableError, attempt: _Attempt, after_s: float) -> bool:
        """Compare with a later error: a time-out as late may have hidden the same error."""
        if isinstance(error, UnreachedHostError):
            is_timeout = error.is_silent
        else:
            is_timeout = error.unreached is not None and after_s >= attempt.answer_limit_s
        return is_timeout and after_s < 2 * self.after_s


class QueryClient:
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
        self._unresponsive_s: dict[str, float] = {}
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

        def send(attempt: _Attempt) -> dict[str, Any]:
            reply = attempt.host.ask(
                self._target(store, path, given, attempt.wait_s),
                body,
                headers={**self._sent(body), TIME_LIMIT: str(round(1000 * attempt.answer_limit_s))},
                timeout_s=attempt.timeout_s,
            )
            return _read(reply)

        found = self._retry(send, self._ending)
        if store is not None:
            self._remember(store, found.get("positions", ()))
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
        query = urlencode({name: text for name, text in given.items() if text is not None})
        headers = {**self._sent(None), "Accept": EVENTS}

        def send(attempt: _Attempt) -> EventStream:
            found = attempt.host.listen(
                _short(f"/api/stores/{quote(store, safe='')}/{path}?{query}"),
                headers=headers,
                begin_s=STREAM_TIMEOUT_S if attempt.is_last else attempt.timeout_s,
                timeout_s=STREAM_TIMEOUT_S,
                ending=ending,
            )
            if isinstance(found, EventStream):
                return found
            raise QueryError(f"store {store!r} has no changes, but {_read(found)}")

        return self._retry(send, ending)

    def _retry(self, send: Callable[[_Attempt], R], ending: Interruption) -> R:
        """Repeat attempts until success, or until the time is over and all hosts were tried."""
        give_up_s = time.monotonic() + self.timeout_s
        pause_s = RETRY_MIN_S
        silent: set[HttpHost] = set()
        others: set[HttpHost] = set()
        best: _BestError | None = None
        while True:
            since_s = time.monotonic()
            attempt = self._next_attempt(silent, give_up_s - since_s, has_response=best is not None)
            try:
                return send(attempt)
            except NotReadableError as error:
                after_s = time.monotonic() - since_s
                is_better = best is None or not best.is_more_than(error, attempt, after_s)
                if isinstance(error, UnreachedHostError):
                    silent = {attempt.host} if attempt.is_last else {attempt.host, *silent}
                    if is_better:
                        self.leave(attempt.host.url)
                    others = {*others, attempt.host} if error.is_other else others - {attempt.host}
                    if len(others) == len(self._hosts):
                        raise
                    if not attempt.is_last:
                        continue
                elif is_better:
                    best = _BestError(error, after_s)
                if time.monotonic() + pause_s >= give_up_s:
                    if best is None or is_better:
                        raise
                    raise best.error from error
                ending.pause(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _next_attempt(
        self, silent: Set[HttpHost], left_s: float, *, has_response: bool
    ) -> _Attempt:
        """Choose the next host among the hosts that were responsive during this query."""
        known_s = time.monotonic() - TRIED_LAST_S
        with self._lock:
            others = [host for host in self._hosts if host not in silent] or self._hosts
            others = sorted(
                others, key=lambda host: self._unresponsive_s.get(host.url, known_s) > known_s
            )
        part_s = max(left_s / len(others), RETRY_MIN_S)
        return _Attempt(others[0], part_s, is_last=len(others) == 1, has_response=has_response)

    def leave(self, url: str) -> None:
        """Move an unresponsive host to the end of the order."""
        with self._lock:
            self._unresponsive_s[url] = time.monotonic()
            self._hosts = sorted(self._hosts, key=lambda host: host.url == url)

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

    def _remember(self, store: str, positions: Iterable[Mapping[str, Any]]) -> None:
        with self._lock:
            reached = self._reached.setdefault(store, {})
            for position in positions:
                partition = position["partition"]
                if partition is not None:
                    reached[partition] = max(reached.get(partition, 0), position["max_offset"])

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
            f"the query has {len(target):,} characters in its URL, and at most {TARGET_MAX:,} are "
            "allowed. Use get(key) or get_many(keys), which take longer keys"
        )
    return target


def _read(reply: Reply) -> dict[str, Any]:
    found = reply.document if isinstance(reply.document, dict) else {}
    if reply.code == 200 or (reply.code == 404 and "positions" in found):
        return found
    message = str(found.get("error", f"status {reply.code}"))
    if reply.code == 400:
        raise WrongQueryError(message)
    if reply.code == 401:
        raise UnknownTokenError(f"{message}. Give it as token=")
    if reply.code == 404:
        raise NoSuchStoreError(
            f"{message}. Start headrace run with --queries to serve stores"
            if "error" not in found
            else message
        )
    if reply.code == 410:
        raise PositionGoneError(message)
    if reply.code == 421 and "partition" in found:
        raise NotHereError(message, partition=found["partition"], host=found.get("host"))
    if reply.code == 501:
        raise StoreInMemoryError(message)
    if reply.code == 503:
        raise NotReadableError(
            message, remaining=found.get("restore_remaining"), unreached=found.get("host")
        )
    raise QueryError(message)
