"""`headrace store`: the rows of an application, running or stopped, for people and scripts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace import TopologyTestDriver, serdes
from headrace.state.directory import StateDirectory
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.secondary import task_files
from headrace.state.spec import StoreSpec
from headrace.state.store import NO_COMMIT, Position
from headrace.streams.cli.main import main
from headrace.streams.errors import FatalClientError
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.queries import feeds
from headrace.streams.supervisor.app_loader import load_app
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer
from tests.support.feeds import MemoryFeeds
from tests.support.processes import wait_until
from tests.support.snapshots import application_snapshot

LONG = "a" * 150
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
builder.table("empty", key=serdes.string, value=serdes.string, store="empty")
builder.table("ids", key=serdes.long, value=serdes.string, store="ids")
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
        driver.input("ids").send(-3, LONG, timestamp=10)
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
    assert {store["name"] for store in found} == {
        "counts",
        "windows",
        "prices",
        "held",
        "ids",
        "empty",
    }
    counts = next(store for store in found if store["name"] == "counts")
    assert [place["partition"] for place in counts["positions"]] == [0, 1]


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


def test_an_export_without_rows_leaves_no_older_ones(target: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text("older\n")
    assert run("export", "empty", str(out), "--app", target).exit_code == 0
    assert out.read_text() == ""
    out.write_text("older\n")
    assert run("export", "none", str(out), "--app", target).exit_code != 0
    assert out.read_text() == "older\n"


def test_a_key_may_begin_with_a_minus(target: str) -> None:
    (row,) = lines(run("get", "ids", "-3", "--app", target, "--json"))
    assert (row["key"], row["value"]) == (-3, LONG)
    (row,) = lines(run("get", "ids", "--app", target, "--json", "--", "-3"))
    assert row["key"] == -3
    found = run("get", "counts", "the", "--jsn", "--app", target)
    assert found.exit_code == 2
    assert "No such option: --jsn. Write -- before a key that starts with a minus" in found.stderr
    assert "1 of 1 keys have no row" in run("get", "counts", "--app", target, "--", "--jsn").stderr


def test_tables_that_are_piped_are_whole(target: str) -> None:
    assert LONG in run("get", "ids", "-3", "--app", target).stdout


@pytest.fixture
def stopped(target: str, tmp_path: Path) -> Path:
    """A copy of the files, which nobody holds."""
    return Path(shutil.copytree(tmp_path / "state", tmp_path / "copy"))


def test_what_a_task_has_left_behind_is_refused(target: str, stopped: Path, tmp_path: Path) -> None:
    here = ("--app", target, "--state-dir", str(stopped))
    with ExitStack() as held:
        # A worker runs here and has one of the two tasks.
        directory = StateDirectory(stopped, "asked")
        held.callback(directory.acquire_identity().release)
        (row,) = lines(run("get", "counts", "the", "--app", target, "--json"))
        gone = row["partition"]
        held.callback(directory.acquire_task(f"0_{1 - gone}", wait_ms=0).release)
        for question in (("get", "counts", "the"), ("scan", "counts"), ("export", "counts")):
            found = run(*question, *here)
            assert found.exit_code != 0, question
            assert f"partition {gone} of store 'counts' may lack changes of" in found.stderr
            assert "--max-age" in found.stderr
            assert run(*question, *here, "--max-age", "1000000h").exit_code == 0
        listed = run("list", *here)
        assert listed.exit_code == 1
        assert "too old" in listed.stdout
        assert "may lack changes of" in listed.stderr
        held.callback(directory.acquire_task(f"0_{gone}", wait_ms=0).release)
        assert run("get", "counts", "the", *here).exit_code == 0
    assert run("get", "counts", "the", *here, "--max-age", "10s").exit_code != 0
    assert run("get", "counts", "the", *here, "--max-age", "then").exit_code == 2


def test_a_restore_that_was_broken_off_is_told_and_the_other_partitions_are_counted(
    target: str, stopped: Path
) -> None:
    (row,) = lines(run("get", "counts", "the", "--app", target, "--json"))
    whole = row["partition"]
    path = task_files(stopped / "asked")[f"0_{1 - whole}"]
    memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    state = RocksTaskState(path, [StoreSpec("counts")], memory=memory)
    position = state.position("counts") or Position("", 0, 0, 0)
    state.write({}, {"counts": replace(position, commit_id=NO_COMMIT)})
    state.close()
    here = ("--app", target, "--state-dir", str(stopped), "--max-age", "1000000h")
    for question in (("scan", "counts"), ("export", "counts"), ("get", "counts", "other")):
        found = run(*question, *here)
        assert found.exit_code != 0, question
        assert (
            "a restore of its rows was interrupted, so some rows are old, and no worker"
            in found.stderr
        )
    assert run("get", "counts", "the", *here).exit_code == 0
    rows = {line.split()[0]: line.split() for line in run("list", *here).stdout.splitlines()[1:]}
    assert (rows["counts"][4], rows["counts"][-1]) == (str(whole), "~2")


def test_the_files_of_a_stopped_application_are_read_and_their_age_is_said_once(
    target: str, stopped: Path
) -> None:
    found = run("get", "counts", "the", "a\x1b[2J", "--app", target, "--state-dir", str(stopped))
    assert found.exit_code == 0
    said = "No worker of asked runs on this host. Rows of counts may lack changes of"
    assert found.stderr.count(said) == 1
    assert said not in run("get", "counts", "the", "--app", target).stderr


def test_what_is_wrong_is_one_sentence(target: str, tmp_path: Path) -> None:
    found = run("get", "count", "the", "--app", target)
    assert found.exit_code != 0
    assert found.stderr.startswith(
        "Error: asked has no store 'count'. Use a store that it has: counts, empty"
    )
    found = run("get", "held", "the", "--app", target)
    assert "is in the memory of the workers" in found.stderr
    found = run("get", "counts", "the", "--as-of", "5", "--app", target)
    assert "is not versioned" in found.stderr
    found = run("get", "counts", "the", "--app", target, "--state-dir", str(tmp_path / "none"))
    assert "this host has no rows of store 'counts'" in found.stderr
    found = run("list", "--app", target, "--state-dir", str(tmp_path / "none"))
    assert "none here" in found.stdout


def test_what_a_host_refuses_is_said_in_the_words_of_the_command(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("0123456789abcdef")
    known = HealthSnapshot(
        snapshot=application_snapshot(), turned_s=0.0, is_loaded=True, has_failed=False
    )
    with HttpServer(lambda: known, "0", log=EventLog(), token_file=token_file) as server:
        served = ("--url", server.url)
        for asked in (("list",), ("get", "counts", "the"), ("watch", "counts")):
            found = run(*asked, *served)
            assert found.exit_code != 0
            assert (
                "a token is required. Name the file that contains it: --http-token-file FILE"
                in found.stderr
            )
            assert "token=" not in found.stderr
        wrong = tmp_path / "wrong"
        wrong.write_text("fedcba9876543210")
        found = run("list", *served, "--http-token-file", str(wrong))
        assert "the token is wrong" in found.stderr
        assert "--http-token-file" in found.stderr
        own = ("--http-token-file", str(token_file))
        found = run("get", "counts", "k" * 70_000, *served, *own)
        assert found.stderr.endswith("are allowed. Query on its host, with --app\n")


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
    assert (
        "was re-created. Start again with the rows, --snapshot, or --from beginning" in found.stderr
    )
    assert (
        "--snapshot and --from exclude each other"
        in run("watch", "counts", "--app", target, "--from", "beginning", "--snapshot").stderr
    )
    memory.failure = FatalClientError("the brokers are gone")
    found = run("watch", "counts", "--app", target)
    assert found.exit_code == 2
    assert "Error: the changes cannot be read: the brokers are gone" in found.stderr


def test_who_watches_is_told_that_no_broker_answers(target: str, memory: MemoryFeeds) -> None:
    """Nothing was said for as long as one waited."""
    memory.away = FatalClientError("no broker of nowhere:1 answers within 3 s")
    found = run("watch", "counts", "--app", target)
    assert found.exit_code == 9
    assert found.stderr == "Error: no broker of nowhere:1 answers within 3 s\n"
