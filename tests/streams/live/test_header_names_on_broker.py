"""Headers with names that are not UTF-8, as any client can write them: they are kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from confluent_kafka import Producer

from headrace.streams.cli.main import main
from headrace.streams.errors import RecordError
from headrace.topology import Processor, ProcessorContext, Record, StreamsBuilder, serdes
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT
from tests.support.raw_records import RawHeaders, read_raw, write_raw
from tests.support.topics import Topics

HEADERS: list[RawHeaders] = [
    [(b"plain", b"1")],
    [(b"a", b"1"), (b"gr\xf6\xdfe", b"2"), (b"n", None)],
    [(b"\xff\xfe", None), (b"\xff\xfe", b"twice"), (b"\xed\xa0\x80", b""), (b"", b"empty")],
    [(b"gr\xc3\xb6\xc3\x9fe", b"3")],
    [],
    [(b"\x80%d" % n, b"v") for n in range(10_000)],
    [(b"\xfelarge", bytes(900_000))],
    [(b"last", b"1")],
]
# A broker that compresses again replaces the bytes that are not UTF-8.
PLAIN = {"producer_compression_type": "none"}


def fill(topics: Topics) -> str:
    topic = topics.create("headers")
    for number, headers in enumerate(HEADERS):
        write_raw(topics.bootstrap, topic, headers, key=b"k", value=b"%d" % number)
    return topic


def headers_of(topics: Topics, topic: str) -> list[RawHeaders]:
    return [headers for _, _, headers in read_raw(topics.bootstrap, topic)]


def test_an_application_copies_the_names_as_they_are(topics: Topics, tmp_path: Path) -> None:
    source, copied, forwarded = fill(topics), *(topics.create() for _ in range(2))
    seen: list[Any] = []

    class Noting(Processor[str, str, str, str]):
        def init(self, context: ProcessorContext[str, str]) -> None:
            self.context = context

        def process(self, record: Record[str, str]) -> None:
            seen.append(record.headers)
            self.context.forward(record)

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    stream.to(copied)
    stream.process(Noting).to(forwarded)
    with live(builder.build(), settings_of(topics, tmp_path, **PLAIN)) as app:
        app.wait_processed(len(HEADERS))
    assert headers_of(topics, copied) == HEADERS
    assert headers_of(topics, forwarded) == HEADERS
    assert seen[1] == (("a", b"1"), ("gr\udcf6\udcdfe", b"2"), ("n", None))


def test_a_dead_letter_has_the_names_and_a_skip_gets_past(topics: Topics, tmp_path: Path) -> None:
    source, letters = fill(topics), topics.create("letters")
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    stream.map_values(lambda value: 1 // (int(value) % 2) and value).for_each(lambda *_: None)
    settings = settings_of(topics, tmp_path, **PLAIN)
    fails = Live(builder.build(), settings).failure()
    assert isinstance(fails, RecordError)
    assert fails.offset == 0
    more = {
        "processing.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": letters,
    }
    with live(builder.build(), settings | more) as app:
        app.wait_processed(len(HEADERS))
    found = headers_of(topics, letters)
    assert [headers[: len(HEADERS[2 * n])] for n, headers in enumerate(found)] == HEADERS[::2]


APP = """
from headrace import KafkaStreams, StreamsBuilder, serdes
builder = StreamsBuilder()
builder.stream({source!r}, key=serdes.string, value=serdes.json).to({target!r})
app = KafkaStreams(builder.build(), {settings!r})
"""


def test_skip_shows_the_record(topics: Topics, tmp_path: Path) -> None:
    source, target = topics.create(), topics.create()
    write_raw(topics.bootstrap, source, [(b"\xff\xfe", b"2")], value=b"{no json")
    settings = settings_of(topics, tmp_path, **PLAIN)
    file = tmp_path / "app.py"
    file.write_text(APP.format(source=source, target=target, settings=settings))
    made: dict[str, Any] = {}
    exec(file.read_text(), made)
    assert isinstance(Live(made["app"].topology, settings).failure(), RecordError)
    words = ["skip", source, "0", "0", f"--app={file}:app", "--yes", "--show"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert '"headers":[[{"base64":"//4="},"2"]]' in done.output


def test_tail_prints_what_produce_writes_again(topics: Topics) -> None:
    source, target = fill(topics), topics.create()
    settings = ["--set", f"bootstrap.servers={topics.bootstrap}"]
    tail = ["topics", "tail", source, "--from", "beginning", "--with", "headers", *settings]
    printed = CliRunner().invoke(main, tail)
    assert printed.exit_code == 0, printed.output
    lines = printed.stdout.splitlines()
    assert json.loads(lines[1])["headers"][1] == [{"base64": "Z3L232U="}, "2"]
    produce = ["topics", "produce", target, "--set", "producer.compression.type=none", *settings]
    written = CliRunner().invoke(main, produce, input=printed.stdout)
    assert written.exit_code == 0, written.output
    assert headers_of(topics, target) == HEADERS


SEND = """
import sys
from headrace import KafkaStreams, StreamsBuilder, serdes
from headrace.topology import Processor

class Adds(Processor):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.with_headers([("\\ud800", b"1")]))

builder = StreamsBuilder()
builder.stream({source!r}, key=serdes.string, value=serdes.string).process(Adds).to({target!r})
KafkaStreams(builder.build(), {settings!r}).run()
"""


def test_a_name_that_nothing_can_encode_is_an_error_of_the_record(
    topics: Topics, tmp_path: Path
) -> None:
    source, target = topics.create(), topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(source, b"v", b"k")
    producer.flush(PATIENCE_S)
    file = tmp_path / "app.py"
    settings = settings_of(topics, tmp_path, **PLAIN)
    file.write_text(SEND.format(source=source, target=target, settings=settings))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=PATIENCE_S,
        cwd=ROOT, env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert r"a header with the name '\ud800', which UTF-8 cannot encode" in done.stderr


def test_a_global_table_and_a_restore_take_the_names(topics: Topics, tmp_path: Path) -> None:
    table, source, copied = fill(topics), topics.create(), topics.create()
    write_raw(topics.bootstrap, source, [(b"\xff", b"1")], key=b"k")
    builder = StreamsBuilder()
    names = builder.global_table(table, key=serdes.string, value=serdes.string, store="names")
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    joined = stream.join(names, lambda value, name: value + name, key_mapper=lambda key, _: key)
    joined.to(copied)
    counts = stream.group_by_key().count(store="counts")
    counts.to_stream().map_values(str).to(copied)
    settings = settings_of(topics, tmp_path, **PLAIN)
    with live(builder.build(), settings) as app:
        app.wait_processed(1)
    restored = settings | {"state.dir": str(tmp_path / "other")}
    write_raw(topics.bootstrap, source, [(b"\xfe", b"2")], key=b"k")
    with live(builder.build(), restored) as app:
        app.wait_processed(1)
    found = sorted(read_raw(topics.bootstrap, copied), key=str)
    assert [((value or b"").strip(b'"'), headers) for _, value, headers in found] == [
        (b"1", [(b"\xff", b"1")]), (b"2", [(b"\xfe", b"2")]),
        (b"v7", [(b"\xfe", b"2")]), (b"v7", [(b"\xff", b"1")]),
    ]  # fmt: skip
