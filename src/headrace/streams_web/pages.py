"""HTTP routes with access control: metrics, health, dashboard, and JSON."""

from __future__ import annotations

import hmac
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, lru_cache
from http import HTTPStatus
from importlib.resources import files
from itertools import accumulate
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace import __version__
from headrace.streams.config.secrets import Secret
from headrace.streams.config.settings import span_of
from headrace.streams.logs import LEVELS
from headrace.streams.metrics.counters import Distribution
from headrace.streams.metrics.hot_keys import without_keys
from headrace.streams.metrics.snapshots import (
    UNRESPONSIVE_S,
    ApplicationSnapshot,
    HealthSnapshot,
    InputSnapshot,
    TaskSnapshot,
    WorkerSnapshot,
    WorkerView,
    to_json,
    without_taken,
)
from headrace.streams.web import SetLevel
from headrace.streams_web.address import names_this_machine
from headrace.streams_web.metrics import METRICS, Labels, Metric
from headrace.streams_web.stores.parameters import store_paths
from headrace.topology.describe.picture import Arrow, Box, Picture

# Snapshots in Prometheus' text format (0.0.4).
#
# Written here because prometheus-client takes 160 ms and more for 8 workers with 64 tasks. This
# takes a small fraction, because the labels of a task, an input or a store are written once for
# all of its metrics. The tests parse the output with that library.


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TYPES = {"info": "gauge"}
_SPECIAL = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}

LABELS_KEPT = 16_384
"""Number of objects whose labels are cached as text between scrapes. Labels do not change, and
writing them takes as long as writing the values of several metrics."""

Rows = list[tuple[str, Any]]
"""Measured objects, with their labels as text."""


def scrape(snapshot: ApplicationSnapshot, now_s: float) -> bytes:
    """Return all metrics in Prometheus' text format; `now_s` is of the clock of `at_s`."""
    lines: list[str] = []
    known: dict[object, Rows] = {}
    for metric in METRICS:
        name = metric.name if metric.kind == "histogram" else metric.sample
        lines.append(f"# HELP {name} {metric.help}")
        lines.append(f"# TYPE {name} {_TYPES.get(metric.kind, metric.kind)}")
        key = (metric.read.things, metric.labels)
        rows = known.get(key)
        if rows is None:
            rows = known[key] = [
                (_text(metric.labels, labels), thing)
                for labels, thing in metric.read.things(snapshot, now_s)
            ]
        if metric.kind == "histogram":
            lines += _buckets(metric, rows)
        else:
            lines += _plain(metric, rows)
    lines.append("")
    return "\n".join(lines).encode()


@lru_cache(LABELS_KEPT)
def _text(names: Labels, labels: Labels) -> str:
    pairs = zip(names, labels, strict=True)
    return ",".join([f'{name}="{_escaped(label)}"' for name, label in pairs])


def _plain(metric: Metric, rows: Rows) -> list[str]:
    sample, value = metric.sample, metric.read.value
    found: Rows = [(labels, value(thing)) for labels, thing in rows]
    return [
        # `+ 0` converts a bool to a number.
        f"{sample}{{{labels}}} {number + 0!r}" if labels else f"{sample} {number + 0!r}"
        for labels, number in found
        if number is not None
    ]


def _buckets(metric: Metric, rows: Rows) -> Iterable[str]:
    for labels, thing in rows:
        value = metric.read.value(thing)
        assert isinstance(value, Distribution)
        bounds = [*(f"{bound:g}" for bound in value.bounds_s), "+Inf"]
        for bound, count in zip(bounds, accumulate(value.counts), strict=True):
            yield f'{metric.name}_bucket{{{labels},le="{bound}"}} {count}'
        yield f"{metric.name}_count{{{labels}}} {value.count}"
        yield f"{metric.name}_sum{{{labels}}} {value.sum_s!r}"


def _escaped(text: str) -> str:
    # Almost no label needs escaping.
    if '"' in text or "\\" in text or "\n" in text:
        return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)
    return text


# Liveness, readiness and startup of an application, computed from a health snapshot, for probes.
#
#     live      the supervisor's loop runs, and no worker has been abandoned
#     ready     all tasks process records, or have done so within a given time
#     startup   the application is loaded, and its settings are valid
#
# No probe checks more than it must. An application that restores for ten minutes, waits for its
# brokers or rebalances is alive: a restart would make it begin again, and take longer.


STUCK_S = 30.0
"""Time without an iteration after which the supervisor's loop, which runs every 0.1 s, is stuck."""
OLD_S = UNRESPONSIVE_S
"""Age after which the report of a worker counts as outdated."""
_AWAY = "connecting"


@dataclass(frozen=True, slots=True)
class Health:
    """Result of a probe, with reasons for a failure, and the progress of each worker."""

    reasons: tuple[str, ...] = ()
    progress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        return not self.reasons


def live(health: HealthSnapshot, now_s: float) -> Health:
    """Return the liveness: if it fails, the process must be restarted."""
    reasons = []
    if health.has_failed:
        reasons.append(f"{health.why}. See the log")
    stuck_s = now_s - health.turned_s
    if stuck_s > STUCK_S:
        reasons.append(f"the supervisor's loop has not run for {stuck_s:.0f} s")
    return Health(tuple(reasons))


def startup(health: HealthSnapshot) -> Health:
    if health.is_loaded:
        return Health()
    return Health(("the application is not loaded yet",), _progress(health.snapshot))


def ready(health: HealthSnapshot, now_s: float, within: timedelta | None = None) -> Health:
    """Return whether all tasks run and keep up.

    Each task runs, or has stopped running or was assigned to its worker `within` the time; no input
    is further behind, and no worker's report is older. None requires that all tasks run, and
    ignores how far behind they are. A worker that restarts, connects, is paused or has a task that
    cannot commit is never ready.
    """
    reasons = [] if health.is_loaded else ["the application is not loaded yet"]
    left = without_taken(health.snapshot)
    for view, before in zip(left.workers, health.snapshot.workers, strict=True):
        if not _is_taken(view, before):
            reasons += _of_worker(view, now_s, within)
    if not reasons and not health.snapshot.tasks:
        reasons.append("no worker has a task")  # not yet or not any more
    return Health(tuple(reasons), _progress(left.at(now_s)) if reasons else [])


def _of_worker(view: WorkerView, now_s: float, within: timedelta | None) -> list[str]:
    name, snapshot = f"worker {view.index}", view.snapshot
    if view.pid is not None and view.state == _AWAY:
        return [f"{name} is {_AWAY}: brokers are not reached"]
    if snapshot is None or view.pid is None:
        return [f"{name} is {view.state}"]
    age_s = snapshot.age_s(now_s)
    if age_s > (OLD_S if within is None else min(OLD_S, within.total_seconds())):
        return [f"{name} has not reported for {age_s:.0f} s"]
    if snapshot.is_paused:
        return [f"{name} is paused"]
    stalled = [
        f"{name}: {task.id} has committed nothing for {task.stalled_s + age_s:.0f} s"
        for task in snapshot.tasks
        if task.stalled_s
    ]
    if stalled:
        return stalled
    if within is None:
        # A worker without assigned tasks is ready to take over.
        is_well = all(task.state == "running" for task in snapshot.tasks)
        return [] if is_well else [f"{name} is {view.state}{_waiting(snapshot.tasks)}"]
    limit_s = within.total_seconds() - age_s
    late = [
        f"{name}: {task.id} is {task.state}{_since(task, age_s)}"
        for task in snapshot.tasks
        if task.state != "running" and max(task.state_s, task.unready_s) > limit_s
    ]
    late += [
        f"{name}: {one.topic}-{one.partition} is {one.behind_ms / 1000 + age_s:.0f} s behind"
        for task in snapshot.tasks
        for one in task.inputs
        if one.behind_ms and one.behind_ms / 1000 > limit_s
    ]
    return late


def _since(task: TaskSnapshot, age_s: float) -> str:
    if task.unready_s > task.state_s:
        return f", and has not run for {task.unready_s + age_s:.0f} s"
    return f" for {task.state_s + age_s:.0f} s"


def _is_taken(left: WorkerView, before: WorkerView) -> bool:
    """Return whether other workers have all tasks of a worker's report, so nothing waits for it."""
    if left.snapshot is None or before.snapshot is None:
        return False
    return bool(before.snapshot.tasks) and not left.snapshot.tasks


def _waiting(tasks: tuple[TaskSnapshot, ...]) -> str:
    waiting = [task.id for task in tasks if task.state != "running"]
    return f"; not running: {', '.join(waiting[:5])}" if waiting else ""


def _progress(app: ApplicationSnapshot) -> list[dict[str, Any]]:
    found = []
    for view in app.workers:
        tasks = view.snapshot.tasks if view.snapshot else ()
        stores = (store for task in tasks for store in task.stores)
        found.append({
            "worker": view.index,
            "state": view.state,
            "tasks": len(tasks),
            "running": sum(task.state == "running" for task in tasks),
            "restore_remaining": sum(store.restore_remaining for store in stores),
        })  # fmt: skip
    return found


# The static files of the dashboard, as they are in the package.


_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
START = "index.html"
PREFIX = "/page/"
_HEADERS = {
    # No content of other hosts, and no scripts injected by a name or a key.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def contents() -> dict[str, bytes]:
    found = files("headrace.streams_web").joinpath("page")
    return {
        one.name: one.read_bytes()
        for one in found.iterdir()
        if one.name.rpartition(".")[2] in _KINDS
    }


def static_routes() -> Iterator[Route]:
    """Yield a route for each static file: a request path never becomes a file path."""
    for name in contents():
        yield Route(f"{PREFIX}{name}", _page(name))


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(_: Request) -> Response:
        return _file(name)

    return page


def _file(name: str) -> Response:
    return Response(contents()[name], media_type=_KINDS[name.rpartition(".")[2]], headers=_HEADERS)


# The API: parts of an application's snapshot, each under a name.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """A worker, without its tasks and nodes."""

    index: int
    state: str
    pid: int | None
    restarts: int
    report_age_seconds: float | None
    processed: int
    committed: int
    commits: int
    rebalances: int
    aborted: int
    tasks: int
    is_paused: bool
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationAnswer:
    """Application and workers; `report_age_seconds` is that of the oldest report in the sums.

    `lag` is the sum of the known lags. The lag of a task is unknown until it runs and the ends of
    its inputs are known.
    """

    application: str
    version: str
    topology: str
    tasks: int
    tasks_running: int
    tasks_with_unknown_lag: int
    lag: int
    report_age_seconds: float | None
    workers: tuple[WorkerAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer:
    """A task and its worker."""

    worker: int
    report_age_seconds: float
    task: TaskSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class LagAnswer:
    """An input partition, with the lag of the task that reads it.

    `input` is null for a task that does not run yet, and `lag` is null while it is unknown.
    """

    worker: int
    task: str
    report_age_seconds: float
    lag: int | None
    input: InputSnapshot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyAnswer:
    """The topology as a graph of topics, processor nodes and stores.

    An arrow that is `tied` connects a processor node and its store. `lanes` are the names of the
    sub-topologies; `queries` is whether interactive queries are enabled.
    """

    application: str
    topology: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    lanes: dict[int, str]
    queries: bool


def topology_of(health: HealthSnapshot, *, queries: bool = False) -> TopologyAnswer:
    picture = health.picture or Picture((), (), {})
    return TopologyAnswer(
        application=health.snapshot.application,
        topology=health.snapshot.topology,
        boxes=picture.boxes,
        arrows=picture.arrows,
        lanes=picture.lanes,
        queries=queries,
    )


@dataclass(frozen=True, slots=True)
class View:
    """A part of the API, at ``/api/NAME``.

    `of` computes the response from a snapshot and the current seconds of its clock.
    """

    name: str
    help: str
    answer: object
    of: Callable[[ApplicationSnapshot, float], object]


def _application(app: ApplicationSnapshot, now_s: float) -> ApplicationAnswer:
    tasks = app.at(now_s).tasks
    return ApplicationAnswer(
        application=app.application,
        version=app.version,
        topology=app.topology,
        tasks=len(tasks),
        tasks_running=sum(task.state == "running" for task in tasks),
        tasks_with_unknown_lag=sum(task.lag is None for task in tasks),
        lag=sum(one.lag or 0 for one in app.inputs),
        report_age_seconds=max(
            (one.report_age_seconds for one in _tasks(app, now_s)), default=None
        ),
        workers=_workers(app, now_s),
    )


def _workers(app: ApplicationSnapshot, now_s: float) -> tuple[WorkerAnswer, ...]:
    def one(number: Callable[[WorkerSnapshot], int], snapshot: WorkerSnapshot | None) -> int:
        return 0 if snapshot is None else number(snapshot)

    return tuple(
        WorkerAnswer(
            index=view.index,
            state=view.state_at(now_s),
            pid=view.pid,
            restarts=view.restarts,
            report_age_seconds=None
            if view.snapshot is None
            else round(view.snapshot.age_s(now_s), 3),
            processed=one(lambda snapshot: snapshot.processed, view.snapshot),
            committed=one(lambda snapshot: snapshot.committed, view.snapshot),
            commits=one(lambda snapshot: snapshot.commits, view.snapshot),
            rebalances=one(lambda snapshot: snapshot.rebalances, view.snapshot),
            aborted=one(lambda snapshot: snapshot.aborted, view.snapshot),
            tasks=one(lambda snapshot: len(snapshot.tasks), view.snapshot),
            is_paused=view.snapshot is not None and view.snapshot.is_paused,
            memory_bytes=None if view.snapshot is None else view.snapshot.memory_bytes,
        )
        for view in app.workers
    )


def _tasks(app: ApplicationSnapshot, now_s: float) -> tuple[TaskAnswer, ...]:
    return tuple(
        TaskAnswer(
            worker=view.index, report_age_seconds=round(view.snapshot.age_s(now_s), 3), task=task
        )
        for view in app.at(now_s).workers
        if view.snapshot is not None and view.pid is not None
        for task in view.snapshot.tasks
    )


def _lag(app: ApplicationSnapshot, now_s: float) -> tuple[LagAnswer, ...]:
    return tuple(
        LagAnswer(
            worker=one.worker,
            task=one.task.id,
            report_age_seconds=one.report_age_seconds,
            lag=None if read is None else read.lag,
            input=read,
        )
        for one in _tasks(app, now_s)
        for read in (one.task.inputs or (None,))
    )


VIEWS = (
    View("application", "Application, with a summary of its workers.", ApplicationAnswer,
         _application),
    View("workers", "Workers, without their tasks.", tuple[WorkerAnswer, ...], _workers),
    View("tasks", "Tasks with their workers and progress.", tuple[TaskAnswer, ...], _tasks),
    View("lag", "Lag of each input partition.", tuple[LagAnswer, ...], _lag),
    View("snapshot", "Reports of all workers, with each task once.", ApplicationSnapshot,
         ApplicationSnapshot.at),
)  # fmt: skip
"""All parts of the API."""


# The description of the API, generated from the types of its responses.


_HEALTH = {
    "live": "Whether the process is alive.",
    "ready": "Whether all tasks run; with `within`, whether each has run within that time, and no "
    "input is further behind.",
    "startup": "Whether the application was loaded.",
}


@cache
def described(*, with_stores: bool = False) -> dict[str, Any]:
    answers, components = msgspec.json.schema_components(
        [*(view.answer for view in VIEWS), TopologyAnswer],
        ref_template="#/components/schemas/{name}",
    )
    paths = {
        f"/api/{view.name}": _path(view.help, answer)
        for view, answer in zip(VIEWS, answers[:-1], strict=True)
    }
    paths["/api/topology"] = _path("Topology as a graph.", answers[-1])
    paths |= {f"/health/{name}": _path(text, None) for name, text in _HEALTH.items()}
    paths["/health/ready"]["get"]["parameters"] = [
        {"name": "within", "in": "query", "schema": {"type": "string", "examples": ["30s"]}}
    ]
    paths[LOG_LEVEL] = {"post": _log_level_operation()}
    paths["/metrics"] = {
        "get": {
            "summary": "Metrics in Prometheus' text format.",
            "responses": {"200": {"description": "The metrics.", "content": {"text/plain": {}}}},
        }
    }
    if with_stores:
        of_stores, schemas = store_paths()
        paths |= of_stores
        components = {**components, **schemas}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _log_level_operation() -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["level"],
        "properties": {"level": {"type": "string", "enum": list(LEVELS)}},
    }
    changed = {"type": "object", "properties": {"message": {"type": "string"}}}
    return {
        "summary": "Set the log level of all workers until the process ends.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {"schema": changed}}},
            "400": {"description": "The level is unknown, or the body is not JSON."},
            "403": {"description": "A change requires a token, or a server for this machine only."},
            "415": {"description": "The content type is not application/json."},
            "503": {"description": "The application does not answer."},
        },
    }


def _path(summary: str, answer: dict[str, Any] | None) -> dict[str, Any]:
    content = {} if answer is None else {"application/json": {"schema": answer}}
    return {
        "get": {
            "summary": summary,
            "responses": {
                "200": {"description": "The result.", "content": content},
                "503": {"description": "Not ready, with the reasons."},
            },
        }
    }


ABOUT = """Headrace {version}: {application}

/                              the dashboard, in a browser
/metrics                       for Prometheus
/health/live /health/ready /health/startup
/api/openapi.json              the description of the API
"""
UNGUARDED = frozenset({"/health/live", "/health/ready", "/health/startup"})
"""Paths of probes, which cannot always send a token; their responses contain little."""
NOT_HERE = (
    "only this machine is served, and {host!r} is another host. Use localhost, or serve with a "
    "token: --http-token-file FILE"
)
SEND_IT = "send the token: Authorization: Bearer TOKEN"
NOT_IT = "the token is wrong: it differs from the token in the server's file"
NOT_THERE = "the page does not exist. See / for all pages, and /api/openapi.json for the API"
NO_STORES = "stores are not served here. Start headrace run --http ... with --queries"
LOG_LEVEL = "/api/log-level"
BODY_MAX = 1_024
Headers = list[tuple[bytes, bytes]]
SCRAPE_KEPT_S = 0.25
"""Maximum age of a cached scrape, which concurrent requests share."""


class Pages:
    """HTTP routes for metrics, health, dashboard and JSON.

    Args:
        monotonic_s: seconds of the clock of the snapshot.
        token: token that clients must send, except for health; None without access control.
        set_level: changes the log level; None if that is not possible.
        may_change: whether clients may change the log level.
        is_local: serve this machine only. A request for another host then comes from a foreign web
            page in a local browser, whose host name resolves to this address (DNS rebinding).
        queries: returns the stores for interactive queries; None if these are disabled.
    """

    def __init__(
        self,
        health: Callable[[], HealthSnapshot],
        monotonic_s: Callable[[], float],
        token: Secret | None,
        *,
        set_level: SetLevel | None = None,
        may_change: bool = False,
        is_local: bool = False,
        queries: Callable[[], object] | None = None,
    ) -> None:
        self._health = health
        self._monotonic_s = monotonic_s
        self._token = token
        self._is_local = is_local
        self._set_level = set_level
        self._may_change = may_change
        self._queries = queries
        self._lock = threading.Lock()
        self._scraped = (float("-inf"), b"")
        self._close_stores: Callable[[], None] = lambda: None

    def application(self) -> Any:
        routes = [
            Route("/", self._about),
            Route("/metrics", self._metrics),
            Route("/health/live", self._live),
            Route("/health/ready", self._ready),
            Route("/health/startup", self._startup),
            Route("/api/openapi.json", self._described),
            Route("/api/topology", self._topology),
            *static_routes(),
            *(Route(f"/api/{view.name}", self._page_of(view)) for view in VIEWS),
            Route(LOG_LEVEL, self._log_level, methods=["POST"]),
            *self._of_stores(),
        ]
        refused = {HTTPException: self._refused}
        return self._guarded(Starlette(routes=routes, exception_handlers=refused))

    def _of_stores(self) -> list[Route]:
        if self._queries is None:
            return []
        from headrace.streams_web.stores.pages import StorePages  # loads RocksDB

        stores = StorePages(self._queries)
        self._close_stores = stores.close
        return stores.routes()

    def close(self) -> None:
        """End responses that last as long as the client reads."""
        self._close_stores()

    def _guarded(self, pages: Any) -> Any:
        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            page = pages
            if scope["type"] == "http" and not _is_free(scope["path"], scope["headers"]):
                if not self._may(scope["headers"]):
                    message = NOT_IT if _has_token(scope["headers"]) else SEND_IT
                    page = JSONResponse({"error": message}, 401, {"WWW-Authenticate": "Bearer"})
                elif self._is_local and (other := _other_host(scope["headers"])):
                    page = JSONResponse({"error": NOT_HERE.format(host=other)}, 421)
            await page(scope, receive, send)

        return guarded

    def _may(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        wanted = f"Bearer {self._token.reveal()}".encode()
        return any(
            name == b"authorization" and hmac.compare_digest(value, wanted)
            for name, value in headers
        )

    # -- pages; a blocking page is a plain function, which runs in a thread pool ------------------

    def _metrics(self, _: Request) -> Response:
        with self._lock:  # one scrape at a time: concurrent requests share it
            at_s, text = self._scraped
            if self._monotonic_s() - at_s > SCRAPE_KEPT_S:
                now_s = self._monotonic_s()
                text = scrape(without_taken(self._health().snapshot), now_s)
                self._scraped = (now_s, text)
        return Response(text, media_type=CONTENT_TYPE)

    def _page_of(self, view: View) -> Callable[[Request], Response]:
        def page(_: Request) -> Response:
            health = self._health()
            if not health.is_loaded:
                return _answer(startup(health))
            found = view.of(without_keys(without_taken(health.snapshot)), self._monotonic_s())
            return Response(to_json(found), media_type="application/json")

        return page

    async def _log_level(self, request: Request) -> Response:
        """Handle a POST of ``{"level": "debug"}``."""
        if self._set_level is None:
            return _error(404, "the log level cannot be changed here")
        if not self._may_change:
            return _error(403, "a change requires a token. Serve with --http-token-file FILE")
        # Foreign web pages in a local browser can send other content types without a preflight.
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return _error(415, "the Content-Type must be application/json. Set this header")
        level = _level(await _body(request))
        if level is None:
            return _error(
                400, f'the body must be {{"level": LEVEL}}. Use a LEVEL of {", ".join(LEVELS)}'
            )
        try:
            return JSONResponse({"message": await run_in_threadpool(self._set_level, level)})
        except TimeoutError:
            return _error(503, "the application does not answer, because it may be stopping")

    def _refused(self, request: Request, error: Exception) -> Response:
        """Return an HTTP error, such as 404 or 405, as JSON."""
        assert isinstance(error, HTTPException)
        message = error.detail
        if error.status_code == HTTPStatus.NOT_FOUND:
            message = NOT_THERE
            if self._queries is None and request.url.path.startswith("/api/stores"):
                message = NO_STORES
        return JSONResponse({"error": message}, error.status_code, error.headers)

    async def _described(self, _: Request) -> Response:  # in one thread: see `prepare_type`
        return JSONResponse(described(with_stores=self._queries is not None))

    def _topology(self, _: Request) -> Response:
        health = self._health()
        if not health.is_loaded:
            return _answer(startup(health))
        found = topology_of(health, queries=self._queries is not None)
        return Response(to_json(found), media_type="application/json")

    async def _about(self, request: Request) -> Response:
        if _wants_page(request.headers.raw):
            return _file(START)
        snapshot = self._health().snapshot
        return Response(ABOUT.format(version=snapshot.version, application=snapshot.application))

    async def _live(self, _: Request) -> Response:
        return _answer(live(self._health(), self._monotonic_s()))

    async def _startup(self, _: Request) -> Response:
        return _answer(startup(self._health()))

    async def _ready(self, request: Request) -> Response:
        text = request.query_params.get("within")
        try:
            within = None if text is None else span_of(text, "within")
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        return _answer(ready(self._health(), self._monotonic_s(), within))


def _other_host(headers: Headers) -> str | None:
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    return next((host[:80] for host in hosts if not names_this_machine(host)), None)


def _is_free(path: str, headers: Headers) -> bool:
    """Return whether a path needs no token: probes, and the dashboard's static files."""
    if path in UNGUARDED or path.startswith(PREFIX):
        return True
    return path == "/" and _wants_page(headers)


def _wants_page(headers: Headers) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in headers)


def _has_token(headers: Headers) -> bool:
    return any(n == b"authorization" and v[:7].lower() == b"bearer " for n, v in headers)


def _error(code: int, message: str) -> Response:
    return JSONResponse({"error": message}, code)


async def _body(request: Request) -> bytes:
    """Return empty bytes if it is too large."""
    body = b""
    async for more in request.stream():
        body += more
        if len(body) > BODY_MAX:
            return b""
    return body


def _level(body: bytes) -> str | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    has_level = isinstance(document, dict) and document.keys() == {"level"}
    level = document["level"] if has_level else None
    return level if level in LEVELS else None


def _answer(health: Health) -> Response:
    if health.is_well:
        return JSONResponse({"ok": True})
    document = {"ok": False, "reasons": list(health.reasons), "workers": health.progress}
    return JSONResponse(document, 503)
