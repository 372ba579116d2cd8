"""Settings that are right alone and wrong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from headrace.streams.config.client_settings import TRANSACTION_TIMEOUT_MS, ClientSettings
from headrace.streams.records.handlers import Stage

TRANSACTION_MARGIN_MS = 2_000
"""What a transaction must have left, beyond the commit interval, for the slowest batch."""


def transaction_timeout_ms(clients: ClientSettings) -> int:
    """After how many milliseconds the broker aborts a transaction of a worker that died."""
    value = clients.by_prefix["producer."].get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
    return int(str(value))


def check_dead_letters(values: Mapping[str, object]) -> list[str]:
    """A topic to which nothing would ever be written is a mistake."""
    names = [f"{stage}.exception.handler" for stage in get_args(Stage)]
    if values.get("errors.dead.letter.queue.topic.name") is None or any(
        values.get(name) != "fail" for name in names
    ):
        return []
    problem = (
        "errors.dead.letter.queue.topic.name is set, but records are written there only where a "
        f"handler lets them go; set one of {', '.join(names)} to 'continue'"
    )
    return [problem]


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
