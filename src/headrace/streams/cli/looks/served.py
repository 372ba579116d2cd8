"""`headrace top --url`: what a running application tells over HTTP, in a table."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Group
from rich.text import Text

from headrace.streams.cli.tables import columns
from headrace.streams.errors import ConfigError, StreamsError
from headrace.streams.remote.tokens import sent_token

WITHIN_S = 10.0
BODY_MAX = 64 << 20
_HOW = "name the file that holds it: --http-token-file FILE"


class ServedError(StreamsError):
    """What is served cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class ServedTask:
    """A task, as the worker that has it tells.

    Args:
        committed: records whose commits are final, since the worker began.
        behind_s: how far the input is behind that is so most.
        told_s_ago: how old all this is.
    """

    id: str
    worker: int
    state: str
    lag: int
    behind_s: float
    committed: int
    told_s_ago: float


@dataclass(frozen=True, slots=True)
class ServedLook:
    """What was told, and when it was asked for."""

    application: str
    workers: tuple[str, ...]
    """The state of each."""
    tasks: tuple[ServedTask, ...]
    at_s: float

    def rates(self, before: ServedLook | None) -> dict[str, float]:
        """Records that were committed a second since an earlier look, by task.

        A task that has moved since, or whose worker has begun again, is left out.
        """
        if before is None:
            return {}
        then = {task.id: (before.at_s - task.told_s_ago, task) for task in before.tasks}
        found = {}
        for task in self.tasks:
            was_s, was = then.get(task.id, (0.0, None))
            span_s = self.at_s - task.told_s_ago - was_s
            if was is None or was.worker != task.worker or task.committed < was.committed:
                continue
            if span_s > 0:
                found[task.id] = (task.committed - was.committed) / span_s
        return found


class Served:
    """The pages of a running application.

    Args:
        url: where it serves, as its log says: http://127.0.0.1:9464.
        token_file: holds the token that it wants.

    Raises:
        ServedError: it is no such address, or the token cannot be read.
    """

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        self._url = (url if "://" in url else f"http://{url}").rstrip("/")
        if urlsplit(self._url).scheme not in ("http", "https") or not urlsplit(self._url).netloc:
            raise ServedError(f"{url!r} is no address such as http://localhost:9464")
        self._headers: dict[str, str] = {}
        if token_file is not None:
            try:
                token = sent_token(token_file.read_text())
            except (OSError, UnicodeDecodeError) as error:
                raise ServedError(f"the token in {token_file} cannot be read: {error}") from error
            except ConfigError as error:
                raise ServedError(f"{token_file}: {error}") from error
            self._headers["Authorization"] = f"Bearer {token.reveal()}"

    def look(self) -> ServedLook:
        """Ask how it is now.

        Raises:
            ServedError: nobody answers, or not with what is asked for.
        """
        application, tasks = self._get("/api/application"), self._get("/api/tasks")
        try:
            return ServedLook(
                application["application"],
                tuple(worker["state"] for worker in application["workers"]),
                tuple(_task(one) for one in tasks),
                time.monotonic(),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ServedError(
                f"what {self._url} answers is not that of this version of headrace"
            ) from error

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(self._url + path, headers=self._headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:  # noqa: S310
                return json.loads(answer.read(BODY_MAX))
        except urllib.error.HTTPError as error:
            raise ServedError(f"{self._url}{path}: {_refused(error)}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ServedError(
                f"{self._url} does not answer as `headrace run --http` does: {reason}"
            ) from error


def shown_served(seen: ServedLook, before: ServedLook | None, *, rows_max: int) -> Group:
    """The table; tasks that are far behind come first, and as many as find room."""
    rates = seen.rates(before)
    count = len(seen.workers)
    states = ", ".join(sorted(set(seen.workers)))
    head = (
        f"{seen.application}: {count} worker{'' if count == 1 else 's'} ({states}), "
        f"lag {sum(task.lag for task in seen.tasks):,}, {sum(rates.values()):,.0f}/s"
    )
    numbers = ("lag", "behind s", "rate/s", "told s ago")
    table = columns("task", "worker", "state", *numbers, numbers=numbers)
    for task in sorted(seen.tasks, key=lambda task: (-task.lag, task.id))[:rows_max]:
        rate = rates.get(task.id)
        table.add_row(
            task.id,
            str(task.worker),
            task.state,
            f"{task.lag:,}",
            f"{task.behind_s:,.0f}",
            "-" if rate is None else f"{rate:,.0f}",
            f"{task.told_s_ago:.0f}",
        )
    left = len(seen.tasks) - rows_max
    more = [Text(f"and {left} tasks that are less far behind")] if left > 0 else []
    return Group(Text(head), table, *more)


def _task(told: dict[str, Any]) -> ServedTask:
    task = told["task"]
    inputs = task["inputs"]
    return ServedTask(
        id=task["id"],
        worker=told["worker"],
        state=task["state"],
        lag=sum(max(0, one["end"] - one["committed"]) for one in inputs if one["end"] is not None),
        behind_s=max((one["behind_ms"] / 1000 for one in inputs), default=0.0),
        committed=task["committed"],
        told_s_ago=told["told_s_ago"],
    )


def _refused(error: urllib.error.HTTPError) -> str:
    with error:
        try:
            said = json.loads(error.read(4_096))
        except (OSError, ValueError):
            said = {}
    why = said.get("error") or "; ".join(said.get("reasons", [])) or error.reason
    way = f"; {_HOW}" if error.code == HTTPStatus.UNAUTHORIZED else ""
    return f"{why} ({error.code}){way}"
