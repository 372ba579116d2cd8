"""Commits, aborts and crashes at chosen points: what is committed stays exact."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, get_args

import pytest

from headrace.state.spec import StoreKind
from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.streams.worker.commit import Commit
from headrace.topology import Materialized, StreamsBuilder, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE, NO_CACHE, key_count, word_count

COMMIT_POINTS: list[CrashPoint] = [
    "caches_flushed",
    "changelogs_written",
    "offsets_sent",
    "transaction_committed",
    "state_written",
]
RESTORE_POINTS: list[CrashPoint] = ["records_restored", "restore_ended"]
SENTENCES = ["a b a", "b", "c a b", "a a a", "c"]


def sequences(driver: TopologyTestDriver, topic: str) -> dict[Any, list[Any]]:
    """The values of each key, in the order in which they were written."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for record in driver.output(topic).read_all():
        found[record.key].append(record.value)
    return dict(found)


def check_counts(driver: TopologyTestDriver, words: list[str], *, cached: bool) -> None:
    """Output, store and changelog say what a recount says; outputs rise without gaps or repeats."""
    expected = Counter(words)
    assert dict(driver.store("counts")) == expected
    assert dict(driver.store("counts", committed=True)) == expected
    assert driver.output("test-counts-changelog").as_dict() == expected
    found = sequences(driver, "word-counts")
    if cached:
        assert all(counts == sorted(set(counts)) for counts in found.values()), found
        assert {key: counts[-1] for key, counts in found.items()} == expected
    else:
        assert found == {key: list(range(1, n + 1)) for key, n in expected.items()}


def split(sentences: list[str]) -> list[str]:
    return [word for sentence in sentences for word in sentence.split()]


def test_every_step_of_the_commit_and_of_the_restore_can_be_crashed_at() -> None:
    assert sorted(COMMIT_POINTS + RESTORE_POINTS) == sorted(get_args(CrashPoint))


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("cached", [False, True], ids=["no-cache", "cache"])
@pytest.mark.parametrize("keep", [True, False], ids=["state-kept", "state-lost"])
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_crash_in_a_commit_changes_nothing_that_readers_of_committed_records_see(
    point: CrashPoint, keep: bool, cached: bool, partitions: int
) -> None:
    settings = EXACTLY_ONCE if cached else NO_CACHE
    driver = TopologyTestDriver(word_count(), settings, partitions=partitions, commit="manual")
    source = driver.input("lines")
    for sentence in SENTENCES:
        source.send(None, sentence)
        driver.crash(at=point, keep=keep)
        driver.commit()
    assert driver.crashes == len(SENTENCES)
    check_counts(driver, split(SENTENCES), cached=cached)


@pytest.mark.parametrize("keep", [True, False], ids=["state-kept", "state-lost"])
@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_crashes_between_single_records_change_nothing_either(
    point: CrashPoint, keep: bool
) -> None:
    driver = TopologyTestDriver(word_count(), NO_CACHE)
    for number, sentence in enumerate(SENTENCES):
        if number % 2:
            driver.crash(at=point, keep=keep)
        driver.input("lines").send(None, sentence)
    assert driver.crashes == 2
    check_counts(driver, split(SENTENCES), cached=False)


@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_a_crash_in_a_restore_leaves_the_next_restore_to_be_right(point: CrashPoint) -> None:
    driver = TopologyTestDriver(word_count(), NO_CACHE)
    driver.input("lines").send_many([(None, sentence) for sentence in SENTENCES])
    driver.crash(keep=False)
    driver.crash(at=point, keep=True)
    driver.run()
    assert driver.crashes == 2
    driver.input("lines").send(None, "a")
    check_counts(driver, [*split(SENTENCES), "a"], cached=False)


def test_a_crash_after_the_transaction_restores_one_commit_and_no_more() -> None:
    """What an unclean stop costs is the changelog's tail, not the whole of it."""
    driver = TopologyTestDriver(key_count(), EXACTLY_ONCE, commit="manual")
    driver.input("in").send_many([(str(i), "x") for i in range(100)])
    driver.commit()
    driver.input("in").send("last", "x")
    driver.crash(at="transaction_committed")
    driver.commit()
    assert driver.restored == 1
    assert len(driver.store("counts")) == 101


@pytest.mark.parametrize("point", [*COMMIT_POINTS[:3], "state_written"])
def test_a_crash_elsewhere_restores_nothing(point: CrashPoint) -> None:
    driver = TopologyTestDriver(key_count(), EXACTLY_ONCE, commit="manual")
    driver.input("in").send_many([(str(i), "x") for i in range(10)])
    driver.commit()
    driver.input("in").send("last", "x")
    driver.crash(at=point)
    driver.commit()
    driver.run()
    assert driver.crashes == 1
    assert driver.restored == 0


def test_a_restore_without_local_state_reads_the_whole_changelog() -> None:
    driver = TopologyTestDriver(key_count(), EXACTLY_ONCE, commit="manual")
    for _ in range(3):
        driver.input("in").send_many([("a", "x"), ("b", "x")])
        driver.commit()
    driver.crash(keep=False)
    driver.run()
    assert driver.restored == 6
    assert dict(driver.store("counts")) == {"a": 3, "b": 3}


def test_an_abort_rolls_back_state_output_and_offsets() -> None:
    driver = TopologyTestDriver(key_count(), NO_CACHE, commit="manual")
    driver.input("in").send_many([("a", "x"), ("b", "x")])
    driver.commit()
    driver.input("in").send_many([("a", "x"), ("c", "x")])
    assert dict(driver.store("counts")) == {"a": 2, "b": 1, "c": 1}
    driver.abort()
    assert dict(driver.store("counts")) == {"a": 1, "b": 1}
    assert driver.committed_offsets("in") == {0: 2}
    assert sequences(driver, "out") == {"a": [1], "b": [1]}
    driver.commit()
    assert dict(driver.store("counts")) == {"a": 2, "b": 1, "c": 1}
    assert sequences(driver, "out") == {"a": [1, 2], "b": [1], "c": [1]}
    uncommitted = driver.output("out", isolation="read_uncommitted").read_all()
    assert [r.value for r in uncommitted if r.key == "c"] == [1, 1], "once of them void"


def test_what_was_aborted_is_processed_again_from_the_first_record_on() -> None:
    seen: list[int] = []
    builder = StreamsBuilder()
    builder.stream("in").peek(lambda _, n: seen.append(n)).to("out")
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE, commit="manual")
    driver.input("in").send_many([("a", 1), ("a", 2)])
    driver.abort()
    driver.abort()
    driver.run()
    assert seen == [1, 2, 1, 2]
    driver.commit()
    assert [r.value for r in driver.output("out").read_all()] == [1, 2]


def test_an_abort_throws_away_what_a_cache_holds_back() -> None:
    driver = TopologyTestDriver(key_count(), EXACTLY_ONCE, commit="manual")
    driver.input("in").send("a", "x")
    driver.abort()
    driver.input("in").send("a", "x")
    driver.commit()
    assert sequences(driver, "out") == {"a": [2]}


def test_a_clean_restart_commits_and_restores_nothing() -> None:
    driver = TopologyTestDriver(word_count(), NO_CACHE, commit="manual", partitions=1)
    driver.input("lines").send(None, "a b a")
    driver.restart()
    assert driver.committed_offsets("lines") == {0: 1}
    driver.commit()
    driver.restart()
    driver.input("lines").send(None, "a")
    driver.commit()
    assert driver.restored == 0
    check_counts(driver, ["a", "b", "a", "a"], cached=False)


def test_a_store_in_memory_is_restored_after_every_stop() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    stream.group_by_key().count(store=Materialized("counts", kind="memory"))
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE)
    driver.input("in").send_many([("a", 1), ("b", 1)])
    driver.restart()
    driver.input("in").send("a", 1)
    assert driver.restored == 2
    assert dict(driver.store("counts")) == {"a": 2, "b": 1}


@pytest.mark.parametrize("full", ["first", "second"])
@pytest.mark.parametrize("kinds", [("memory", "memory"), ("memory", "rocksdb")])
@pytest.mark.parametrize("keep", [True, False], ids=["state-kept", "state-lost"])
def test_a_kill_in_a_restore_leaves_stores_beside_empty_ones_restorable(
    keep: bool, kinds: tuple[StoreKind, StoreKind], full: str
) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    for name, kind in zip(("first", "second"), kinds, strict=True):
        matching = stream.filter(lambda key, _, name=name: key == name)
        matching.group_by_key().count(store=Materialized(name, kind=kind))
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE, commit="manual")
    driver.input("in").send(full, 1)
    driver.commit()
    driver.crash(keep=keep)
    driver.crash(at="records_restored", keep=True)
    driver.commit()
    driver.commit()
    assert {name: dict(driver.store(name)) for name in ("first", "second")} == {
        "first": {},
        "second": {},
        full: {full: 1},
    }


class TestUnloggedStores:
    """Nothing but the commit's number says whether such a store belongs to the offsets."""

    def driver(self) -> TopologyTestDriver:
        builder = StreamsBuilder()
        stream = builder.stream("in", key=serdes.string)
        stream.group_by_key().count(store=Materialized("counts", logged=False))
        driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE, commit="manual")
        driver.input("in").send_many([("a", 1), ("b", 1)])
        driver.commit()
        driver.input("in").send("a", 1)
        return driver

    def test_have_no_changelog(self) -> None:
        driver = self.driver()
        driver.commit()
        assert [t for t in driver.cluster.topics if t.endswith("-changelog")] == []

    @pytest.mark.parametrize("point", [None, *COMMIT_POINTS[:3], "state_written"])
    def test_are_kept_where_they_belong_to_the_committed_offsets(
        self, point: CrashPoint | None
    ) -> None:
        driver = self.driver()
        driver.crash(at=point)
        driver.commit()
        driver.run()
        assert dict(driver.store("counts")) == {"a": 2, "b": 1}

    def test_are_kept_over_an_abort(self) -> None:
        driver = self.driver()
        driver.abort()
        driver.commit()
        assert dict(driver.store("counts")) == {"a": 2, "b": 1}

    def test_are_emptied_where_they_are_behind_the_committed_offsets(self) -> None:
        driver = self.driver()
        driver.crash(at="transaction_committed")
        driver.commit()
        driver.input("in").send("a", 1)
        driver.commit()
        assert dict(driver.store("counts")) == {"a": 1}


def test_at_least_once_repeats_what_was_not_committed_and_loses_nothing() -> None:
    driver = TopologyTestDriver(key_count(), {"statestore.cache.max.bytes": 0}, commit="manual")
    driver.input("in").send_many([("a", "x"), ("a", "x")])
    driver.crash(at="caches_flushed", keep=True)
    driver.commit()
    assert sequences(driver, "out") == {"a": [1, 2, 1, 2]}
    driver.input("in").send("a", "x")
    driver.crash(at="changelogs_written", keep=True)
    driver.commit()
    assert sequences(driver, "out")["a"][-1] >= 3
    assert driver.committed_offsets("in") == {0: 3}


def test_an_input_is_committed_though_nothing_comes_out() -> None:
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda _, n: n > 1).to("out")
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE)
    driver.input("in").send("k", 1)
    assert driver.committed_offsets("in") == {0: 1}


def test_offsets_of_inputs_that_did_not_move_are_committed_with_those_that_did() -> None:
    builder = StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).group_by_key().count(store="counts")
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE)
    driver.input("a").send("k", 1)
    assert (driver.committed_offsets("a"), driver.committed_offsets("b")) == ({0: 1}, {0: 0})


def test_offsets_pass_the_markers_of_a_repartition_topic() -> None:
    """Else the lag of an application that is done would never be 0."""
    driver = TopologyTestDriver(word_count(), EXACTLY_ONCE, commit="manual", partitions=1)
    driver.input("lines").send(None, "a b")
    driver.commit()
    (log,) = driver.cluster.topics["test-by-word-repartition"].logs
    assert log.end == 3
    assert driver.committed_offsets("test-by-word-repartition") == {0: 3}


def test_an_error_in_the_commit_leaves_nothing_of_it_behind() -> None:
    """A number that is too large is found at the commit, as numbers are encoded only there."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    stream.group_by_key().aggregate(int, lambda _, v, __: v, store="last", value=serdes.long)
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE, commit="manual")
    driver.input("in").send("good", 1)
    driver.commit()
    driver.input("in").send_many([("better", 2), ("bad", 2**63), ("fine", 3)])
    with pytest.raises(RecordError) as caught:
        driver.commit()
    text = str(caught.value)
    assert "store 'last'" in text
    assert "between offsets 1 and 3" in text
    assert "in-0" in text
    assert dict(driver.store("last")) == {"good": 1}
    assert driver.output("test-last-changelog").as_dict() == {"good": 1}
    assert driver.committed_offsets("in") == {0: 1}


def test_a_reached_bound_of_uncommitted_bytes_commits_early() -> None:
    settings = {**EXACTLY_ONCE, "statestore.uncommitted.max.bytes": 1 << 20}
    driver = TopologyTestDriver(key_count(), settings, commit="manual")
    driver.input("in").send_many([(f"{i}" * 50, "x") for i in range(5000)])
    assert (committed := driver.committed_offsets("in")[0]) > 1000
    driver.input("in").send("a", "x")
    assert driver.committed_offsets("in")[0] == committed, "the bound was not reached by one more"
    assert dict(driver.store("counts", committed=True))


def test_a_commit_of_several_tasks_can_die_between_their_local_writes() -> None:
    driver = TopologyTestDriver(key_count(), NO_CACHE, partitions=4, commit="manual")
    keys = [str(i) for i in range(40)]
    for _ in range(3):
        driver.input("in").send_many([(key, "x") for key in keys])
        driver.crash(at="state_written")
        driver.commit()
    driver.run()
    assert dict(driver.store("counts")) == dict.fromkeys(keys, 3)
    assert sequences(driver, "out") == {key: [1, 2, 3] for key in keys}
    assert 0 < driver.restored < 3 * len(keys), "only the tasks that were not written"


def many_steps() -> Topology:
    """Three repartition topics in a row."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.long)
    for step in ("x", "y", "z"):
        stream = stream.select_key(lambda k, v: k[::-1]).repartition(name=step)
    stream.group_by_key().reduce(lambda a, b: a + b, store="sums").to_stream().to("out")
    return builder.build()


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_a_crash_anywhere_along_a_chain_of_repartitions_loses_nothing(point: CrashPoint) -> None:
    driver = TopologyTestDriver(many_steps(), NO_CACHE, partitions=2, commit="manual")
    driver.input("in").send_many([("ab", 1), ("cd", 2), ("ab", 3)])
    for _ in range(4):
        driver.crash(at=point, keep=False)
        driver.commit(rounds=1)
    driver.commit()
    assert driver.crashes >= 3
    assert sequences(driver, "out") == {"ba": [1, 4], "dc": [2]}


def test_the_steps_of_the_commit_are_those_that_the_driver_knows() -> None:
    steps: list[str] = []
    driver = TopologyTestDriver(key_count(), EXACTLY_ONCE)
    original = Commit.run

    def run(self: Commit, *args: Any) -> Any:
        dependencies = self.parts.dependencies
        probe = dependencies.probe
        dependencies = replace(dependencies, probe=lambda step: (steps.append(step), probe(step)))
        return original(replace(self, parts=replace(self.parts, dependencies=dependencies)), *args)

    with pytest.MonkeyPatch.context() as patch:
        driver.run()
        patch.setattr(Commit, "run", run)
        driver.input("in").send("a", "x")
    assert steps == COMMIT_POINTS


def test_a_record_that_arrives_during_a_restore_is_not_passed_over_by_a_crash() -> None:
    """Without transactions a worker that is thought dead may write to the changelog once more."""
    driver = TopologyTestDriver(key_count(), {}, commit="manual")
    changelog = "test-counts-changelog"

    def arrives(place: Any, store: str, begin: int, end: int) -> None:
        if driver.crashes == 1:
            driver.cluster.append(changelog, (7).to_bytes(8, "big"), b"late", 0, 0, None)
            driver.crash(at="records_restored")

    driver.input("in").send("a", "x")
    driver.commit()
    driver.input("in").send("b", "x")
    driver.crash(at="transaction_committed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver._worker.counts.__class__, "on_restore_start", staticmethod(arrives))
        driver.commit()
    assert driver.crashes == 2
    assert dict(driver.store("counts")) == driver.output(changelog).as_dict()
    assert driver.store("counts")["late"] == 7
