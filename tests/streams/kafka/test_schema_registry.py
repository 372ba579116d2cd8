"""`SchemaRegistry` speaks a registry's HTTP interface through Confluent's client."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from headrace.streams.kafka.schema_registry import SchemaRegistry
from headrace.topology.errors import RegistryError, SchemaRefusedError, SchemaUnknownError
from headrace.topology.serdes import avro
from tests.support.processes import ROOT
from tests.support.recipes import blocks, renamed

V1 = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
V2 = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":"long"},'
    '{"name":"b","type":"int","default":0}]}'
)
BAD = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
QUICK = {"max.retries": 0, "timeout": 5}


class Handler(BaseHTTPRequestHandler):
    """The three calls of the interface that are used, as its documentation says, over a registry
    in memory."""

    known: avro.MemoryRegistry
    broken = False

    def do_GET(self) -> None:
        *_, schema_id = urlparse(self.path).path.split("/")
        self._answer(lambda: {"schema": self.known.schema(int(schema_id))}, 40403)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        _, _, subject, *versions = urlparse(self.path).path.split("/")
        name, schema = unquote(subject), asked["schema"]
        if versions == ["versions"]:
            self._answer(lambda: {"id": self.known.register(name, schema)}, 0)
        else:
            found = {"subject": name, "version": 1, "schema": schema}
            self._answer(lambda: {**found, "id": self.known.id_of(name, schema)}, 40403)

    def _answer(self, make: Any, unknown: int) -> None:
        if self.broken:
            self._send(500, {"error_code": 50001, "message": "store is down"})
            return
        try:
            self._send(200, make())
        except SchemaUnknownError as error:
            self._send(404, {"error_code": unknown, "message": str(error)})
        except SchemaRefusedError as error:
            self._send(409, {"error_code": 409, "message": str(error)})

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(**more: Any) -> Iterator[str]:
    handler = type("Own", (Handler,), {"known": avro.MemoryRegistry(), **more})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_records_go_from_a_writer_to_a_reader_with_another_schema() -> None:
    with serving() as url:
        old = avro.registered(V1, registry=SchemaRegistry(url), subject="orders-value")
        new = avro.registered(V2, registry=SchemaRegistry(url), subject="orders-value")
        data = [old.serialize({"a": 1}), new.serialize({"a": 2, "b": 3})]
        assert [one[:5] for one in data] == [b"\0\0\0\0\x01", b"\0\0\0\0\x02"]
        assert [new.deserialize(one) for one in data] == [{"a": 1, "b": 0}, {"a": 2, "b": 3}]


def test_the_page_of_serdes(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "api" / "serdes.md"
    with serving() as url:
        exec(renamed(blocks(page, "python")[0], {"http://localhost:8081": url}), {})
    assert capsys.readouterr().out == blocks(page, "text")[0]


def test_an_incompatible_schema_is_refused_with_the_subject() -> None:
    with serving() as url:
        registry = SchemaRegistry(url, QUICK)
        assert registry.register("orders value/é", V1) == 1
        with pytest.raises(SchemaRefusedError, match=r"subject 'orders value/é'.*reader type"):
            registry.register("orders value/é", BAD)


def test_what_the_registry_does_not_have_is_said() -> None:
    with serving() as url:
        registry = SchemaRegistry(url, QUICK)
        with pytest.raises(SchemaUnknownError, match="schema id 7"):
            registry.schema(7)
        with pytest.raises(SchemaUnknownError, match="subject 'x'"):
            registry.id_of("x", V1)
        registry.register("x", V1)
        assert SchemaRegistry(url).id_of("x", V1) == 1


def test_a_registry_that_fails_or_is_not_there_blames_no_schema() -> None:
    with serving(broken=True) as url:
        with pytest.raises(RegistryError, match=r"store is down.*HTTP 500") as caught:
            SchemaRegistry(url, QUICK).schema(1)
        assert type(caught.value) is RegistryError
    with pytest.raises(RegistryError, match="no answer"):
        SchemaRegistry(url, QUICK).schema(1)


def test_a_setting_that_the_client_refuses_is_said() -> None:
    with pytest.raises(RegistryError, match=r"http://r.*correct it"):
        SchemaRegistry("http://r", {"no.such.setting": 1})


def test_it_travels_to_another_process() -> None:
    with serving() as url:
        again = pickle.loads(pickle.dumps(SchemaRegistry(url, QUICK)))
        assert again.register("x", V1) == 1


def test_without_the_client_s_parts_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['httpx2'] = sys.modules['httpx'] = None\n"
        "from headrace.streams.kafka.schema_registry import SchemaRegistry\n"
        "from headrace.topology.errors import RegistryError\n"
        "try: SchemaRegistry('http://r')\n"
        "except RegistryError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'headrace[registry]'" in done.stdout
