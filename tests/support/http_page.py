"""The page docs/reference/http-api.md: the OpenAPI description, with real requests and responses.

python -m tests.support.generated_pages http-api > docs/reference/http-api.md
"""

from __future__ import annotations

import json
import re
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from headrace import KafkaStreams, StreamsBuilder, Topology, TopologyTestDriver, serdes
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.pages import described
from headrace.streams_web.server import HttpServer
from tests.support.snapshots import application_snapshot

_HEAD = """\
# HTTP API

These are the requests that `headrace run --http` answers: use them for dashboards, probes and
interactive queries. Paths below `/api/stores` need `--queries`. [Monitoring](../monitoring.md) and
[Interactive queries](../interactive-queries.md) explain how to serve them, and who may send
requests; with a token, add `-H "Authorization: Bearer TOKEN"`.

The server describes itself in `/api/openapi.json`; nested fields are there, too. This page is
generated from that description by `python -m tests.support.generated_pages http-api`. The
responses come from an application in memory; long ones are cut.
"""
_REQUESTS: Mapping[tuple[str, str], tuple[str, object]] = {
    ("get", "/api/application"): ("/api/application", None),
    ("get", "/api/workers"): ("/api/workers", None),
    ("get", "/api/tasks"): ("/api/tasks", None),
    ("get", "/api/lag"): ("/api/lag", None),
    ("get", "/api/topology"): ("/api/topology", None),
    ("get", "/health/live"): ("/health/live", None),
    ("get", "/health/ready"): ("/health/ready?within=30s", None),
    ("get", "/health/startup"): ("/health/startup", None),
    ("get", "/api/stores"): ("/api/stores", None),
    ("get", "/api/stores/{name}"): ("/api/stores/counts", None),
    ("get", "/api/stores/{name}/get"): ("/api/stores/counts/get?key=the", None),
    ("post", "/api/stores/{name}/get"): ("/api/stores/counts/get", {"keys": ["the", "none"]}),
    ("get", "/api/stores/{name}/range"): ("/api/stores/counts/range?from=a&to=m", None),
    ("get", "/api/stores/{name}/prefix"): ("/api/stores/counts/prefix?prefix=th", None),
    ("get", "/api/stores/{name}/count"): ("/api/stores/counts/count?exact=true", None),
    ("get", "/api/stores/{name}/{key}"): ("/api/stores/counts/the", None),
}
"""An example of each operation that an application in memory can answer."""
_LINES_MAX = 24
_SHOWN = {"age_ms": 12, "committed_ms": 1_700_000_000_250, "commit_id": 3_894_208_445_980_606_465}


def http_api() -> str:
    document = described(with_stores=True)
    parts = [_HEAD]
    with _served() as url:
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                parts.append(f"\n## {method.upper()} `{path}`\n\n{operation['summary']}\n")
                parts += _parameters(operation)
                parts += _responses(operation, document["components"]["schemas"])
                request = _REQUESTS.get((method, path))
                if request is not None:
                    parts.append(_example(url, *request))
    return "".join(parts)


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    if parameters := operation.get("parameters"):
        yield "\n| parameter | in | meaning |\n|---|---|---|\n"
        for one in parameters:
            text = one.get("description", "").replace("|", "/")
            yield f"| `{one['name']}` | {one['in']} | {text} |\n"


def _responses(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    yield "\n| status | response | fields |\n|---|---|---|\n"
    for status, response in operation["responses"].items():
        content = response.get("content", {}).get("application/json", {}).get("schema", {})
        fields = ", ".join(f"`{name}`" for name in _fields(content, schemas))
        yield f"| {status} | {response['description'].replace('|', '/')} | {fields} |\n"


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[str]:
    """Return the names of an object's fields, or of the objects in an array."""
    if "$ref" in schema:
        return _fields(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if schema.get("type") == "array":
        return _fields(schema["items"], schemas)
    return [*schema.get("properties", ())]


def _example(url: str, path: str, body: object) -> str:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(url + path, data, timeout=60) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from error
    # These differ from run to run.
    text = json.dumps(found, indent=2)
    for name, value in _SHOWN.items():
        text = re.sub(rf'("{name}": )\d+', rf"\g<1>{value}", text)
    lines = text.splitlines()
    if len(lines) > _LINES_MAX:
        lines = [*lines[:_LINES_MAX], "..."]
    given = "" if body is None else f" -d '{json.dumps(body)}'"
    shown = "\n".join(lines)
    return f"\n```sh\ncurl 'localhost:8080{path}'{given}\n```\n\n```text\n{shown}\n```\n"


def _topology() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    words.group_by_key().count(store="counts").to_stream().to("out")
    return builder.build()


@contextmanager
def _served() -> Iterator[str]:
    """Serve an application in memory with one store; yield its URL."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {
            "application.id": "shop",
            "bootstrap.servers": "localhost:9092",
            "state.dir": str(directory),
        }
        driver = TopologyTestDriver(
            _topology(),
            settings,
            state_dir=directory,
            partitions=2,
            commit="manual",
            now=time.time_ns() // 1_000_000,  # a query rejects old rows
        )
        stack.callback(driver.close)
        words = driver.input("words")
        for word in ("the", "quick", "fox", "the", "end"):
            words.send(word, "", timestamp=1_700_000_000_000)
        driver.commit()
        queries = KafkaStreams(_topology(), settings).queries()
        stack.callback(queries.close)
        health = HealthSnapshot(
            snapshot=application_snapshot(), turned_s=101.0, is_loaded=True, has_failed=False
        )
        server = HttpServer(
            lambda: health, "0", log=EventLog(), monotonic_s=lambda: 101.0, queries=lambda: queries
        )
        stack.callback(server.close)
        yield server.url
