"""Stores in the workers' memory are asked in the words of those on disk, and answer the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    KafkaStreams,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
)
from headrace.streams.queries import replicas
from headrace.streams.queries.errors import NotReadableError, StoreInMemoryError
from tests.streams.queries.query_driver import SETTINGS, held

MINUTE = timedelta(minutes=1)
KEYS = [f"k{n:04d}" for n in range(1_300)]


@pytest.fixture(autouse=True)
def follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is read at once, and not some time later."""
    monkeypatch.setattr(replicas, "UPDATE_EVERY_S", 0.0)
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)


def kept(step: Callable[[Any, Materialized], object], **options: Any) -> Callable[[str], Topology]:
    """A topology of one store, by its kind."""

    def build(kind: Any) -> Topology:
        builder = StreamsBuilder()
        words = builder.stream("words", key=serdes.string, value=serdes.string)
        step(words.group_by_key(), Materialized("s", kind=kind, **options))
        return builder.build()

    return build


def versions(kind: Any) -> Topology:
    builder = StreamsBuilder()
    store = Materialized("s", kind=kind, history=timedelta(days=1))
    builder.table("words", key=serdes.string, value=serdes.string, store=store)
    return builder.build()


counting = kept(lambda words, store: words.count(store=store))
windows = kept(
    lambda words, store: words.windowed_by(TimeWindows(size=MINUTE, grace=timedelta(days=1))).count(
        store=store
    )
)
sessions = kept(
    lambda words, store: words.windowed_by(
        SessionWindows(inactivity_gap=MINUTE, grace=timedelta(days=1))
    ).count(store=store)
)


def shown(rows: Any) -> list[tuple[Any, ...]]:
    return [(row.key, row.value, row.timestamp, row.partition) for row in rows]


def paged(reader: Any, scan: Any, limit: int = 400) -> list[tuple[Any, ...]]:
    found, after = [], None
    while True:
        page = reader.page(scan, limit=limit, after=after)
        found += shown(page.rows)
        if (after := page.after) is None:
            return found


PLAIN: list[Callable[[Any], Any]] = [
    lambda s: [s.get(key) for key in ("k0000", "k1299", "none")],
    lambda s: s.get_many([*KEYS[::3], "none"]),
    lambda s: shown(s.range("k0500", "k1200")),
    lambda s: shown(s.range("k0500", "k1200", reverse=True, limit=600)),
    lambda s: shown(s.range(None, "k0003")),
    lambda s: shown(s.prefix_scan("k00")),
    lambda s: shown(s.all(reverse=True)),
    lambda s: s.count(),
    lambda s: paged(s, s.between(None, None)),
    lambda s: paged(s, s.between("k0001", "k1298", reverse=True)),
    lambda s: [(p.partition, p.offset, p.inputs) for p in s.positions()],
]
WINDOWS: list[Callable[[Any], Any]] = [
    lambda s: [s.get("k0001", 0), s.get("k0001", 60_000), s.get("none", 0)],
    lambda s: shown(s.fetch("k0001", 0, 2**62)),
    lambda s: shown(s.fetch_all(0, 60_000)),
    lambda s: paged(s, s.of_times(0, 2**63)),
    lambda s: shown(s.all()),
    lambda s: (s.count(), s.approximate_num_entries() > 0),
]
SESSIONS: list[Callable[[Any], Any]] = [
    lambda s: shown(s.fetch("k0001")),
    lambda s: shown(s.find_sessions("k0001", 0, 60_000)),
    lambda s: shown(s.find_sessions_by_end(0, 10**6)),
    lambda s: shown(s.all()),
]
VERSIONS: list[Callable[[Any], Any]] = [
    lambda s: [s.get("k0001", as_of=at) for at in (0, 7, 60_007, 120_007)],
    lambda s: [s.get("k0001"), s.get("none"), s.get("none", as_of=5)],
    lambda s: shown(s.range("k0500", "k1200")),
]


@pytest.mark.parametrize(
    ("topology", "questions"),
    [(counting, PLAIN), (windows, WINDOWS), (sessions, SESSIONS), (versions, VERSIONS)],
    ids=["plain", "windows", "sessions", "versions"],
)
def test_they_answer_what_those_on_disk_do(
    topology: Callable[[str], Topology], questions: list[Callable[[Any], Any]], tmp_path: Path
) -> None:
    found: dict[str, list[Any]] = {}
    for kind in ("rocksdb", "memory"):
        with held(topology(kind), tmp_path / kind, partitions=2) as scene:
            for minute in range(3):
                some = KEYS if minute == 0 else KEYS[:: 7 * minute]
                scene.send(*some, value=f"{minute}", timestamp=60_000 * minute + 7)
                scene.driver.commit()
            store = scene.queries.store("s")
            found[kind] = [question(store) for question in questions]
    assert found["memory"] == found["rocksdb"]
    assert all(found["memory"])


def test_committed_rows_alone_are_told(tmp_path: Path) -> None:
    with held(counting("memory"), tmp_path) as scene:
        store = scene.queries.store("s")
        scene.send("a", "a", "b")
        assert (store.get("a"), store.count(), shown(store.all())) == (None, 0, [])
        scene.driver.commit()
        assert (store.get("a"), store.count()) == (2, 2)
        scene.send("a", "c")
        assert (store.get("a"), store.get("c"), store.count()) == (2, None, 2)
        scene.driver.abort()
        with pytest.raises(NotReadableError, match="the task is waiting"):
            store.get("a")
        scene.driver.run()
        assert (store.get("a"), store.get("c")) == (2, None)
        scene.driver.commit()
        assert (store.get("a"), store.get("c")) == (3, 1)


def test_places_say_how_far_it_is_and_that_it_is_of_now(tmp_path: Path) -> None:
    with held(counting("memory"), tmp_path) as scene:
        scene.send("a")
        scene.driver.commit()
        before = scene.queries.store("s").find("a").positions
        scene.send("a", "b")
        scene.driver.commit()
        (position,) = scene.queries.store("s").find("a").positions
        assert (position.partition, position.state, position.age_ms) == (0, "running", 0)
        assert position.offset > before[0].offset > 0
        assert position.commit_id > before[0].commit_id
        reached = []
        scene.queries.wait(
            "s", lambda at: reached.append(at.offset) is None, partition=0, timeout_s=0
        )
        assert reached == [position.offset]


def test_a_worker_that_is_gone_or_restores_is_said(tmp_path: Path) -> None:
    with held(counting("memory"), tmp_path) as scene:
        scene.send("a")
        scene.driver.commit()
        store = scene.queries.store("s")
        assert store.get("a") == 1
        scene.driver.crash()
        with pytest.raises(
            NotReadableError, match=r"its worker restarts|no worker of this host reports"
        ):
            store.get("a")
        scene.driver.run()
        assert store.get("a") == 1  # from its changelog


def test_where_no_worker_can_be_asked_the_error_says_what_to_do(tmp_path: Path) -> None:
    app = KafkaStreams(counting("memory"), {**SETTINGS, "state.dir": str(tmp_path)})
    with pytest.raises(StoreInMemoryError, match="Query the program that runs them"):
        app.store("s").get("a")


def test_a_global_table_in_memory_is_asked_for_too(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    in_memory = Materialized("rates", kind="memory")
    builder.global_table("rates", key=serdes.string, value=serdes.double, store=in_memory)
    builder.stream("words", key=serdes.string, value=serdes.string).to("out")
    with held(builder.build(), tmp_path) as scene:
        scene.send("EUR", "USD", topic="rates", value=1.5)
        rates = scene.queries.store("rates")
        assert rates.get("EUR") == 1.5
        assert [(row.key, row.partition) for row in rates.all()] == [("EUR", None), ("USD", None)]
        (position,) = rates.positions()
        assert (position.partition, position.state) == (None, None)


def test_a_piece_is_of_one_moment_where_that_matters(tmp_path: Path) -> None:
    """Whoever goes on with changes behind a piece is not told again what is in its rows."""
    with held(windows("memory"), tmp_path) as scene:
        scene.send("a", "b")
        scene.driver.commit()
        reader = scene.queries.reader("s")
        commits = 0

        def commit() -> None:
            nonlocal commits
            commits += 1
            scene.send("a")
            scene.driver.commit()

        # An index entry and its row are two questions, and a commit comes between them.
        scene.between = [lambda: None, lambda: None, commit]
        (piece,) = reader.pieces(reader.of_times(0, 10**6), frozenset([0]))  # type: ignore[attr-defined]
        (position,) = reader.positions()
        assert commits == 1
        assert [row.value for row in piece.rows] == [2, 1]
        assert piece.offset == position.offset


def test_many_keys_say_how_far_the_last_of_their_rows_is(tmp_path: Path) -> None:
    with held(counting("memory"), tmp_path) as scene:
        scene.send(*KEYS)
        scene.driver.commit()
        reader = scene.queries.reader("s")
        (before,) = reader.positions()

        def commit() -> None:
            scene.send(KEYS[-1])
            scene.driver.commit()

        scene.between = [lambda: None, commit]  # 500 keys are asked for at a time
        rows, (position,) = reader.find_many([key.encode() for key in KEYS])  # type: ignore[attr-defined]
        assert (rows[0].value, rows[-1].value) == (1, 2)
        (after,) = reader.positions()
        assert before.offset == before.max_offset < after.offset == after.max_offset
        assert (position.offset, position.max_offset) == (before.offset, after.offset)


def test_no_question_asks_for_much(tmp_path: Path) -> None:
    with held(counting("memory"), tmp_path) as scene:
        scene.send(*KEYS)
        scene.driver.commit()
        store = scene.queries.store("s")
        assert len(list(store.all())) == len(store.get_many(KEYS)) == len(KEYS)
        assert max(len(question.keys) for question in scene.questions) <= 500
        assert len([one for one in scene.questions if one.what == "scan"]) >= 3
