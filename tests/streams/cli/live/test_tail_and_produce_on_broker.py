"""`headrace topics tail`, `produce`, `list` and `describe` on a real broker."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from headrace.streams.cli.main import main
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics

APP = """
from datetime import timedelta
from headrace import KafkaStreams, StreamsBuilder, TimeWindows, serdes
from headrace.topology.serdes import avro
builder = StreamsBuilder()
orders = builder.stream({orders!r}, key=serdes.string, value=serdes.json)
by_user = orders.group_by(lambda _, order: order["user"], key=serdes.string, name="by-user")
by_user.count(store="counts").to_stream().to({counts!r})
windows = TimeWindows(size=timedelta(seconds=10))
by_user.windowed_by(windows).count(store="per-window").to_stream().to({windowed!r})
schema = '{{"type": "record", "name": "Order", "fields": [{{"name": "cents", "type": "int"}}]}}'
only_cents = orders.map_values(lambda order: {{"cents": order["cents"]}})
only_cents.to({avro!r}, value=avro.serde(schema))
app = KafkaStreams(builder.build(), {settings!r})
"""


class Shop:
    """An application with topics of every kind, in a file."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.bootstrap = topics.bootstrap
        kinds = ("orders", "counts", "windowed", "avro")
        self.names = {kind: topics.create(kind, partitions=3) for kind in kinds}
        self.settings = settings_of(topics, directory)
        text = APP.format(settings=self.settings, **self.names)
        self.file = directory / f"app_{uuid.uuid4().hex}.py"
        self.file.write_text(text)
        made: dict[str, Any] = {}
        exec(text, made)  # the same application, to run it here
        self.topology = made["app"].topology

    def __getitem__(self, kind: str) -> str:
        return self.names[kind]

    def asked(self, command: str, *arguments: str, text: str | None = None) -> Result:
        line = ["topics", command, *arguments, "--app", f"{self.file}:app"]
        return CliRunner().invoke(main, line, input=text)

    def records(self, *arguments: str) -> list[dict[str, Any]]:
        return lines_of(self.asked("tail", *arguments))


def lines_of(done: Result) -> list[dict[str, Any]]:
    assert done.exit_code == 0, done.output
    # What runs in this process logs to standard output, too.
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def without_app(topics: Topics, command: str, *arguments: str, text: str | None = None) -> Result:
    line = ["topics", command, *arguments, "--bootstrap-servers", topics.bootstrap]
    return CliRunner().invoke(main, line, input=text)


@pytest.fixture
def shop(topics: Topics, tmp_path: Path) -> Iterator[Shop]:
    return Shop(topics, tmp_path)


ORDERS = """\
{"key": "o1", "value": {"user": "ann", "cents": 5}, "timestamp": 1000}
{"key": "o2", "value": {"user": "bob", "cents": 7}, "timestamp": 2000, "headers": {"trace": "t"}}
{"key": null, "value": {"user": "ann", "cents": 9}, "timestamp": 12000, "partition": 2}
"""


def test_what_is_produced_goes_through_the_application_and_is_read_with_its_serdes(
    shop: Shop, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(ORDERS)
    done = shop.asked("produce", shop["orders"], str(file))
    assert done.stdout == f"Written: {shop['orders']} (3 records)\n", done.output
    with live(shop.topology, shop.settings) as app:
        app.wait(lambda: len(kafka.read(shop.bootstrap, shop["windowed"])) >= 3, what="results")
    orders = shop.records(shop["orders"], "--with", "all")
    found = sorted(orders, key=lambda record: record["timestamp"])
    assert [record["value"]["cents"] for record in found] == [5, 7, 9]
    assert found[1]["headers"] == [["trace", "t"]]
    assert (found[2]["key"], found[2]["partition"]) == (None, 2)
    assert {r["key"]: r["value"] for r in shop.records(shop["counts"])} == {"ann": 2, "bob": 1}
    keys = [json.dumps(r["key"]) for r in shop.records(shop["windowed"])]
    window = {"start_ms": 10_000, "end_ms": 20_000}
    assert json.dumps({"key": "ann", "window": window}) in keys
    assert {r["value"]["cents"] for r in shop.records(shop["avro"])} == {5, 7, 9}
    # Internal topics go by the name of the store or of the step.
    assert {r["key"]: r["value"] for r in shop.records("counts")} == {"ann": 2, "bob": 1}
    repartitioned = shop.records("by-user", "--with", "offset")
    assert {r["key"] for r in repartitioned} <= {"ann", "bob"}
    # All that it writes, where no topic is named.
    assert {r["topic"] for r in shop.records()} == {shop[k] for k in ("counts", "windowed", "avro")}


def test_keys_go_where_kafka_s_own_producers_put_them(shop: Shop) -> None:
    values = "".join(f'{{"key": "k{n}", "value": {{"cents": 1}}}}\n' for n in range(50))
    assert shop.asked("produce", shop["orders"], text=values).exit_code == 0
    ours = {r.key: r.partition for r in kafka.read(shop.bootstrap, shop["orders"])}
    kafka.write(shop.bootstrap, shop["counts"], [(f"k{n}".encode(), b"") for n in range(50)])
    assert ours == {r.key: r.partition for r in kafka.read(shop.bootstrap, shop["counts"])}


def test_what_a_serde_refuses_is_printed_with_its_place_and_the_tail_goes_on(shop: Shop) -> None:
    records = [(b"a", b'{"cents": 1}'), (b"a", b"{broken"), (b"\xff", b'{"cents": 2}')]
    for record in records:
        kafka.write(shop.bootstrap, shop["orders"], [record])
    found = shop.records(shop["orders"])
    (broken,) = [r for r in found if r["value"] == {"base64": "e2Jyb2tlbg=="}]
    assert broken["offset"] == 1
    assert broken["error"].startswith("value: ")
    (other,) = [r for r in found if r["key"] == {"base64": "/w=="}]
    assert other["error"].startswith("key: ")
    assert other["value"] == {"cents": 2}
    assert [set(r) for r in found if "error" not in r] == [{"key", "value"}]


def test_what_tail_prints_produce_writes_again_to_the_byte(topics: Topics) -> None:
    old, new = topics.create(), topics.create()
    records = [(b"a", b"text"), (b"\xff", b"\x00\xfe"), (None, b""), (b"b", None)]
    kafka.write(topics.bootstrap, old, records)
    printed = without_app(topics, "tail", old, "--with", "all").stdout
    done = without_app(topics, "produce", new, "--transaction", text=printed)
    assert done.exit_code == 0, done.output
    # The broker writes a transaction's marker behind its answer to the commit.
    wait_until(lambda: bool(kafka.read(topics.bootstrap, new)), what="the transaction is passed")
    assert [r[1:] for r in kafka.read(topics.bootstrap, new)] == [
        r[1:] for r in kafka.read(topics.bootstrap, old)
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [0, 1, 2, 3, 4]),
        (["--from", "beginning", "--max", "2"], [0, 1]),
        (["--from", "3"], [3, 4]),
        (["--from", "99"], []),
        (["--from", "2023-11-14T22:13:20.002Z"], [2, 3, 4]),
        (["--from", "end", "--follow", "--max", "1"], None),
    ],
)
def test_it_begins_where_it_is_told_to(
    topics: Topics, options: list[str], expected: list[int] | None
) -> None:
    topic = topics.create()
    kafka.write(topics.bootstrap, topic, [(None, b"%d" % n) for n in range(5)])
    if expected is None:
        assert without_app(topics, "tail", topic, "--from", "end").exit_code == 2
        return
    found = lines_of(without_app(topics, "tail", topic, "--value", "json", *options))
    assert [record["value"] for record in found] == expected


def test_it_follows_until_it_has_seen_enough(topics: Topics) -> None:
    topic = topics.create(partitions=2)
    kafka.write(topics.bootstrap, topic, [(b"%d" % n, b"old") for n in range(5)])
    assert len(lines_of(without_app(topics, "tail", topic, "--follow", "--max", "5"))) == 5
    later = threading.Timer(
        2.0, lambda: kafka.write(topics.bootstrap, topic, [(b"%d" % n, b"new") for n in range(5)])
    )
    later.start()
    options = ("--follow", "--from", "end", "--max", "5")
    found = lines_of(without_app(topics, "tail", topic, *options))
    assert [record["value"] for record in found] == ["new"] * 5


def test_what_was_aborted_is_read_only_where_that_is_asked_for(topics: Topics) -> None:
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for value, end in (("kept", "commit"), ("void", "abort")):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(PATIENCE_S)
        getattr(producer, f"{end}_transaction")(PATIENCE_S)
    values = [r["value"] for r in lines_of(without_app(topics, "tail", topic))]
    assert values == ["kept"]
    every = lines_of(without_app(topics, "tail", topic, "--uncommitted"))
    assert [r["value"] for r in every] == ["kept", "void"]


def test_a_line_that_is_none_ends_it_and_says_what_was_written(topics: Topics) -> None:
    topic = topics.create(partitions=2)
    text = '{"value": "a"}\n{"value": "b", "partition": 2}\n'
    done = without_app(topics, "produce", topic, text=text)
    assert done.exit_code != 0
    assert f"standard input, line 2: {topic} has 2 partitions, not 2" in done.stderr
    assert f"Written to {topic} before that: 1 records." in done.stderr
    done = without_app(topics, "produce", topic, "--transaction", text=text)
    assert f"Nothing was written to {topic}: the transaction was aborted." in done.stderr
    assert len(kafka.read(topics.bootstrap, topic)) == 1


def test_what_is_named_wrong_is_said_with_what_is_near(shop: Shop, topics: Topics) -> None:
    cases = [
        (shop.asked("tail", shop["orders"][:-1]), f"Did you mean {shop['orders']}?"),
        (shop.asked("tail", "count"), "Did you mean counts?"),
        (shop.asked("produce", "counts", text="1"), "may write its internal topic"),
        (without_app(topics, "tail", f"{shop['orders']}x"), f"did you mean {shop['orders']}?"),
        (without_app(topics, "tail"), "TOPIC or --app is required"),
        (without_app(topics, "tail", "x", "--from", "soon"), "neither beginning nor end"),
        (without_app(topics, "tail", "x", "--with", "size"), "'size' must be all or in timestamp"),
        (
            without_app(topics, "tail", shop["orders"], "--partition", "3"),
            "has no partition 3, only 0 to 2",
        ),
        (without_app(topics, "produce", shop["orders"], "/nowhere"), "/nowhere cannot be read"),
    ]
    for done, said in cases:
        assert done.exit_code != 0
        assert said in done.output
        assert "Traceback" not in done.output


def test_topics_are_listed_and_described(shop: Shop, topics: Topics) -> None:
    kafka.write(shop.bootstrap, shop["orders"], [(b"a", b"1")] * 7)
    listed = json.loads(shop.asked("list", "--json").stdout)
    found = {one["topic"]: one for one in listed}
    assert found[shop["orders"]] == {
        "topic": shop["orders"], "partitions": 3, "records": 7, "use": "reads"
    }  # fmt: skip
    assert found[shop["counts"]]["use"] == "writes"
    kept = f"{shop.settings['application.id']}-counts-changelog"
    assert found[kept] == {"topic": kept, "partitions": None, "records": None, "use": "keeps"}
    assert "keeps; missing" in shop.asked("list").stdout
    every = without_app(topics, "list")
    assert shop["orders"] in every.stdout, every.output
    assert "__consumer_offsets" not in every.stdout
    described = json.loads(shop.asked("describe", shop["windowed"], "--json").stdout)
    assert (described["use"], described["values"]) == ("writes", "long")
    assert [p["in_sync"] for p in described["partitions"]] == [[1]] * 3
    assert "retention.ms: -1" in without_app(topics, "describe", shop["orders"]).stdout


def test_all_topics_of_an_application_are_made_at_once(topics: Topics, tmp_path: Path) -> None:
    shop = Shop(topics, tmp_path)
    text = shop.file.read_text()
    new = {name: topics.name(kind) for kind, name in shop.names.items()}
    for old, name in new.items():
        text = text.replace(old, name)
    shop.file.write_text(text)
    done = shop.asked("create", "--partitions", "2")
    assert done.exit_code == 0, done.output
    assert {topics.partitions(name) for name in new.values()} == {2}
    assert done.stdout.count("Created: ") == 4
