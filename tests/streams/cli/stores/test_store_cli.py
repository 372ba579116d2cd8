"""`headrace store`: the rows of an application, running or stopped, for people and scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace import TopologyTestDriver, serdes
from headrace.streams.cli.main import main
from headrace.streams.errors import FatalClientError
from headrace.streams.feeds import feeds
from headrace.streams.supervise.app_loader import load_app
from headrace.streams.testing.memory_cluster import MemoryCluster
from tests.support.feeds import MemoryFeeds
from tests.support.processes import wait_until

APP = """
from datetime import timedelta

from headrace import KafkaStreams, Materialized, StreamsBuilder, TimeWindows, serdes

builder = StreamsBuilder()
words = builder.stream("words", key=serdes.string, value=serdes.string)
grouped = words.group_by_key()
grouped.count(store="counts").to_stream().to("out")
windows = TimeWindows(size=timedelta(seconds=10), grace=timedelta(days=1))
grouped.windowed_by(windows).count(store="windows").to_stream().to("windows-out")
prices = Materialized("prices", history=timedelta(days=1))
builder.table("prices", key=serdes.string, value=serdes.json, store=prices)
held = Materialized("held", kind="memory")
builder.table("held", key=serdes.string, value=serdes.string, store=held)
app = KafkaStreams(
    builder.build(), {"application.id": "asked", "bootstrap.servers": "nowhere:1"}
)
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An application that has counted, and runs on."""
    file = tmp_path / "asked_app.py"
    file.write_text(APP)
    target = f"{file}:app"
    state_dir = tmp_path / "state"
    app = load_app(target)
    with TopologyTestDriver(
        app.topology, app.settings, state_dir=state_dir, partitions=2, commit="manual"
    ) as driver:
        for time, word in ((1, "the"), (11_000, "the"), (12_000, "a\x1b[2J")):
            driver.input("words").send(word, "", timestamp=time)
        driver.input("prices").send("tea", {"cents": 3}, timestamp=10)
        driver.input("prices").send("tea", {"cents": 2}, timestamp=20)
        driver.commit()
        monkeypatch.setenv("HEADRACE_STATE_DIR", str(state_dir))
        yield target


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["store", *arguments])


def lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_stores_are_listed(target: str) -> None:
    text = run("list", "--app", target).output
    rows = {line.split()[0]: line.split() for line in text.splitlines()[1:]}
    assert rows["counts"][1:5] == ["key-value", "string", "long", "0,1"]
    assert rows["prices"][1] == "versioned"
    assert rows["held"][-2:] == ["in", "memory"]
    (found,) = lines(run("list", "--app", target, "--json"))
    assert {store["name"] for store in found} == {"counts", "windows", "prices", "held"}
    counts = next(store for store in found if store["name"] == "counts")
    assert [place["partition"] for place in counts["places"]] == [0, 1]


def test_keys_are_shown(target: str) -> None:
    (row,) = lines(run("get", "counts", "the", "--app", target, "--json"))
    assert (row["key"], row["value"], row["timestamp"]) == ("the", 2, 11_000)
    (row,) = lines(run("get", "prices", "tea", "--as-of", "15", "--app", target, "--json"))
    assert row["value"] == {"cents": 3}
    rows = lines(run("get", "windows", "the", "--app", target, "--json"))
    assert [row["key"]["window"]["start_ms"] for row in rows] == [0, 10_000]
    found = run("get", "counts", "the", "none", "--app", target)
    assert found.exit_code == 1
    assert "the" in found.stdout
    assert "1 of 2 keys have no row in counts" in found.stderr


def test_rows_are_shown_in_order_and_take_no_hold_of_the_terminal(target: str) -> None:
    found = run("scan", "counts", "--app", target)
    assert found.exit_code == 0
    assert "\x1b" not in found.stdout
    rows = lines(run("scan", "counts", "--app", target, "--json"))
    assert [row["key"] for row in rows] == ["a\x1b[2J", "the"]
    rows = lines(run("scan", "counts", "--reverse", "--limit", "1", "--app", target, "--json"))
    assert [row["key"] for row in rows] == ["the"]
    rows = lines(run("scan", "counts", "--prefix", "t", "--app", target, "--json"))
    assert [row["key"] for row in rows] == ["the"]
    rows = lines(run("scan", "windows", "--from", "5000", "--app", target, "--json"))
    assert [row["key"]["window"]["start_ms"] for row in rows] == [10_000, 10_000]


def test_a_store_is_exported_whole(target: str, tmp_path: Path) -> None:
    assert len(lines(run("export", "counts", "--app", target))) == 2
    out = tmp_path / "rows.jsonl"
    assert run("export", "counts", str(out), "--app", target).exit_code == 0
    assert [json.loads(line)["value"] for line in out.read_text().splitlines()] == [1, 2]


def test_what_is_wrong_is_one_sentence(target: str, tmp_path: Path) -> None:
    found = run("get", "count", "the", "--app", target)
    assert found.exit_code != 0
    assert found.stderr.startswith("Error: asked has no store 'count'; there are: counts, held")
    found = run("get", "held", "the", "--app", target)
    assert "kept in the memory of the workers" in found.stderr
    found = run("get", "counts", "the", "--as-of", "5", "--app", target)
    assert "keeps no versions" in found.stderr
    found = run("get", "counts", "the", "--app", target, "--state-dir", str(tmp_path / "none"))
    assert "this host has no rows of store 'counts'" in found.stderr
    found = run("list", "--app", target, "--state-dir", str(tmp_path / "none"))
    assert "none here" in found.stdout


CHANGELOG = "asked-counts-changelog"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryFeeds:
    """A cluster that has three changes."""
    memory = MemoryFeeds(MemoryCluster(partitions=2))
    memory.cluster.create(CHANGELOG)
    monkeypatch.setattr(feeds, "LiveCluster", lambda _: memory)
    for partition, key, count in ((0, b"the", 1), (1, b"a\x1b[2J", 1), (0, b"the", None)):
        value = None if count is None else serdes.long.serialize(count)
        memory.write(CHANGELOG, (partition, key, value))
    return memory


def test_changes_are_printed_as_they_are_committed(target: str, memory: MemoryFeeds) -> None:
    watched = ("watch", "counts", "--app", target)
    found = run(*watched, "--from", "beginning", "--max", "3", "--with-position")
    by_key = {(line["key"], line["value"]): line for line in lines(found)}
    assert by_key.keys() == {("the", 1), ("the", None), ("a\x1b[2J", 1)}
    assert "\x1b" not in found.stdout
    assert "Following counts." in found.stderr
    assert by_key["the", None]["deleted"] is True
    position = by_key["the", 1]["position"]
    again = lines(run(*watched, "the", "--from", position, "--max", "1"))
    assert [(line["key"], line["value"]) for line in again] == [("the", None)]
    wait_until(lambda: not memory.open, what="no reader")


def test_rows_are_printed_before_changes(target: str, memory: MemoryFeeds) -> None:
    assert memory.made == 0
    found = lines(run("watch", "counts", "the", "--app", target, "--snapshot", "--max", "1"))
    assert [(line["key"], line["value"]) for line in found] == [("the", 2)]


def test_what_cannot_be_watched_is_one_sentence(target: str, memory: MemoryFeeds) -> None:
    found = run("watch", "counts", "--app", target, "--from", "0:99")
    assert found.exit_code != 0
    assert "was made anew; begin anew with the rows" in found.stderr
    assert (
        "leave out --from"
        in run("watch", "counts", "--app", target, "--from", "beginning", "--snapshot").stderr
    )
    memory.failure = FatalClientError("the brokers are gone")
    found = run("watch", "counts", "--app", target)
    assert found.exit_code == 1
    assert "Error: the changes cannot be read: the brokers are gone" in found.stderr
