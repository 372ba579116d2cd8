"""What stores of objects say, and who has to put it right."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.streams.connectors.delta import DeltaSink
from headrace.streams.connectors.iceberg import IcebergSink
from headrace.streams.connectors.locations import Objects
from headrace.streams.connectors.parquet import ParquetSink
from headrace.topology import ExternalSink, SinkUnavailableError, SinkUnusableError

ANSWERS = {"PUT": 412, "GET": 403}
"""A store that keeps conditions, and may be written to and not be listed."""


@pytest.fixture
def answers() -> dict[str, int]:
    return dict(ANSWERS)


@pytest.fixture
def objects(answers: dict[str, int]) -> Iterator[Objects]:
    """A part of an S3 that answers as it is told."""
    from obstore.store import S3Store

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            body = b"<Error><Code>AccessDenied</Code></Error>"
            self.send_response(answers[self.command])
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store = S3Store(
        "lake",
        endpoint=f"http://127.0.0.1:{server.server_port}",
        access_key_id="a",
        secret_access_key="b",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    yield Objects(store, "goods")
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [401, 403])
def test_a_right_that_is_missing_is_not_waited_for(
    status: int, answers: dict[str, int], objects: Objects
) -> None:
    """That a listing is refused, only the text of its error says."""
    objects.prepare()
    answers.update(PUT=status, GET=status)
    with pytest.raises(
        SinkUnusableError, match="Correct the address, the user, or its permissions"
    ):
        objects.create("partition=0", "rows.parquet", b"rows")
    with pytest.raises(
        SinkUnusableError,
        match=rf"rejects the request \(status code: {status}\)\. Correct the addre",
    ):
        objects.names("partition=0")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_store_that_is_busy_is_asked_again(
    status: int, answers: dict[str, int], objects: Objects
) -> None:
    objects.prepare()
    answers.update(PUT=status, GET=status)
    with pytest.raises(SinkUnavailableError, match="has failed: "):
        objects.create("partition=0", "rows.parquet", b"rows")
    with pytest.raises(SinkUnavailableError, match="has failed: "):
        objects.names("partition=0")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory where nothing can be made, not even by root."""
    path = tmp_path / "shelf"
    path.mkdir(mode=0o555)
    has_flags = subprocess.run(["chattr", "+i", path], capture_output=True, check=False)
    if os.access(path, os.W_OK):
        pytest.skip(f"root writes anywhere here: {has_flags.stderr.decode()}")
    yield path
    subprocess.run(["chattr", "-i", path], capture_output=True, check=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: DeltaSink(path / "delta", {"n": int}, create=True),
        lambda path: DeltaSink(f"file://{path}/delta", {"n": int}, create=True),
        lambda path: IcebergSink(
            {
                "type": "sql",
                "uri": f"sqlite:///{path.parent}/catalog.db",
                "warehouse": f"file://{path}/lake",
            },
            "a.t",
            {"n": int},
            create=True,
        ),
        lambda path: ParquetSink(path / "parquet", {"n": int}),
    ],
)
def test_a_directory_that_may_not_be_written_to_is_a_matter_for_a_person(
    make: Callable[[Path], ExternalSink], read_only: Path
) -> None:
    with pytest.raises(SinkUnusableError, match=f"{read_only} is not writable. Grant the permi"):
        make(read_only).open("app/keep")
