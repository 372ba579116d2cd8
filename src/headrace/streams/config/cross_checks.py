"""Settings that are right alone and wrong together."""

from __future__ import annotations

from headrace.streams.config.client_settings import (
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS,
    ClientSettings,
)

TRANSACTION_MARGIN_MS = 2_000
"""What a transaction must have left, beyond the commit interval, for the slowest batch."""


HEARTBEATS_PER_SESSION = 3
"""At least so many, as one or two may be lost."""


def heartbeat_interval_ms(clients: ClientSettings) -> int:
    """How often a worker tells the group that it lives, where the user does not say."""
    return max(
        1, min(HEARTBEAT_INTERVAL_MS, _session_timeout_ms(clients) // HEARTBEATS_PER_SESSION)
    )


def _session_timeout_ms(clients: ClientSettings) -> int:
    given = clients.by_prefix["consumer."]
    return int(str(given.get("session.timeout.ms", SESSION_TIMEOUT_MS)))


def check_heartbeats(clients: ClientSettings) -> list[str]:
    """A worker whose session is over before its next heartbeat is given up while it works."""
    try:
        session_ms = _session_timeout_ms(clients)
        given = clients.by_prefix["consumer."].get("heartbeat.interval.ms")
        heartbeat_ms = heartbeat_interval_ms(clients) if given is None else int(str(given))
    except ValueError:
        names = "consumer.session.timeout.ms and consumer.heartbeat.interval.ms"
        return [f"{names} must be milliseconds or a timedelta"]
    if heartbeat_ms < session_ms:
        return []
    problem = (
        f"consumer.heartbeat.interval.ms {heartbeat_ms} must be shorter than "
        f"consumer.session.timeout.ms {session_ms}; set it to a third of that, or to less"
    )
    return [problem]


def transaction_timeout_ms(clients: ClientSettings) -> int:
    """After how many milliseconds the broker aborts a transaction of a worker that died."""
    value = clients.by_prefix["producer."].get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
    return int(str(value))


def check_transaction_timeout(commit_interval_ms: object, clients: ClientSettings) -> list[str]:
    """A transaction lasts from one commit to the next, and one batch longer."""
    try:
        timeout_ms = transaction_timeout_ms(clients)
    except ValueError:
        return ["producer.transaction.timeout.ms must be milliseconds or a timedelta"]
    if not isinstance(commit_interval_ms, int):
        return []
    needed_ms = commit_interval_ms + TRANSACTION_MARGIN_MS
    if timeout_ms >= needed_ms:
        return []
    problem = (
        f"commit.interval.ms {commit_interval_ms} is too long for transactions that the broker "
        f"aborts after {timeout_ms} ms; commit more often, or set "
        f"producer.transaction.timeout.ms to {needed_ms} or more"
    )
    return [problem]
