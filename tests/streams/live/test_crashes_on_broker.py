"""A worker dies at each point of the commit and is started again: the output stays exact."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import kafka, oracle
from tests.support.processes import AppProcess, running, wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

RECORDS = 2_000
KEYS = 40

STEPS = {
    "before the changelogs are written": "caches_flushed",
    "between changelogs and offsets": "changelogs_written",
    "between offsets and the commit": "offsets_sent",
    "between the commit and local state": "transaction_committed",
    "between the local states of two tasks": "state_written",
}


class Scenario:
    """One application, its topics, and what its output must be."""

    def __init__(
        self,
        topics: Topics,
        directory: Path,
        *,
        partitions: int,
        repartition: bool = False,
        guarantee: str = "exactly_once_v2",
        caches: bool = False,
        worker_id: str | None = "w",
    ) -> None:
        self.topics = topics
        self.bootstrap = topics.bootstrap
        self.input = topics.create("in", partitions=partitions)
        self.output = topics.create("out", partitions=partitions)
        self.application_id = topics.name("app")
        self.state_dir = directory / "state"
        self.log = directory / "log"
        self.repartition = repartition
        self.expected: Counter[bytes] = Counter()
        self.settings: dict[str, Any] = {
            "application.id": self.application_id,
            "bootstrap.servers": self.bootstrap,
            "processing.guarantee": guarantee,
            "state.dir": str(self.state_dir),
            "commit.interval.ms": 0,
            "max.poll.records": 100,
            "consumer.session.timeout.ms": 6_000,
        }
        if worker_id is not None:
            self.settings["worker.id"] = worker_id
        if not caches:
            self.settings["statestore.cache.max.bytes"] = 0

    def write(self, count: int = RECORDS, seed: int = 0) -> None:
        """Write input, and expect its counts."""
        choose = random.Random(seed)
        keys = [b"key-%02d" % choose.randrange(KEYS) for _ in range(count)]
        if self.repartition:
            lines = [b" ".join(keys[i : i + 4]) for i in range(0, count, 4)]
            kafka.write(self.bootstrap, self.input, [(b"line-%d" % (i % 9), line) for i, line in
                                                     enumerate(lines)])  # fmt: skip
        else:
            kafka.write(self.bootstrap, self.input, [(key, b"x") for key in keys])
        self.expected.update(keys)

    def plan(self, **faults: Any) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "input": self.input,
            "output": self.output,
            "repartition": self.repartition,
            **faults,
        }

    def start(self, **faults: Any) -> Any:
        return running(self.plan(**faults), self.log)

    def output_records(self, isolation: kafka.Isolation = "read_committed") -> list[kafka.Record]:
        return kafka.read(self.bootstrap, self.output, isolation)

    def is_complete(self) -> bool:
        return oracle.last_counts(self.output_records()) == self.expected

    def die(self, step: str, *, on: int = 3, after: str | None = None) -> None:
        """Run until the process kills itself at a step of the commit."""
        with self.start(die_at=step, die_on=on, after=after) as app:
            assert app.wait() == -signal.SIGKILL, app.text()[-4000:]

    def finish(self) -> AppProcess:
        """Run until all input is counted, and stop cleanly."""
        with self.start() as app:
            wait_until(
                lambda: self.is_complete() or not app.running, what=f"all counts; {self.log}"
            )
            app.stop()
            return app

    def check_exact(self) -> None:
        """Nothing missing, nothing doubled, at the isolation that a user reads with."""
        oracle.check_exact(self.output_records(), self.expected)


# Without local state it matters whether the commit was decided, and not where within a half.
WITHOUT_STATE = ("between offsets and the commit", "between the commit and local state")


@pytest.mark.parametrize(
    ("point", "state"),
    [
        *((point, "kept") for point in STEPS),
        (WITHOUT_STATE[0], "deleted"),
        pytest.param(WITHOUT_STATE[1], "deleted", marks=pytest.mark.faults),
        *(
            pytest.param(point, "deleted", marks=pytest.mark.long)
            for point in STEPS
            if point not in WITHOUT_STATE
        ),
    ],
)
def test_counts_stay_exact_when_a_worker_dies(
    point: str, state: str, topics: Topics, tmp_path: Path
) -> None:
    """Caches off: per key exactly 1, 2, 3 …, whichever step of the commit the worker died at."""
    scenario = Scenario(topics, tmp_path, partitions=4)
    scenario.write()
    scenario.die(STEPS[point])
    if state == "deleted":
        shutil.rmtree(scenario.state_dir)
    scenario.write(seed=1)
    scenario.finish()
    scenario.check_exact()


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.long), 4])
@pytest.mark.parametrize(
    "point",
    [WITHOUT_STATE[0], pytest.param(WITHOUT_STATE[1], marks=pytest.mark.faults)],
)
def test_counts_behind_a_repartition_stay_exact_when_a_worker_dies(
    point: str, partitions: int, topics: Topics, tmp_path: Path
) -> None:
    """The repartition topic's records, its offsets and the state are one transaction too."""
    scenario = Scenario(topics, tmp_path, partitions=partitions, repartition=True)
    scenario.write()
    scenario.die(STEPS[point])
    scenario.finish()
    scenario.check_exact()


@pytest.mark.parametrize("commit", [1, 2], ids=["of where it begins", "of records"])
def test_counts_stay_exact_when_a_worker_dies_after_the_first_commit_behind_a_restore(
    commit: int, topics: Topics, tmp_path: Path
) -> None:
    """The restore leaves the log out; what it wrote must be on disk before logged writes begin."""
    scenario = Scenario(topics, tmp_path, partitions=1)
    scenario.write()
    scenario.finish()
    shutil.rmtree(scenario.state_dir)
    scenario.write(seed=1)
    scenario.die("state_written", on=commit, after="restore_ended")
    app = scenario.finish()
    # The local state was good: only what came after its position was read again, if anything.
    whole, *again = app.reports("restored")
    assert whole["records"] >= KEYS, whole
    assert sum(restored["records"] for restored in again) < KEYS, again
    scenario.check_exact()


def test_counts_rise_strictly_with_caches_on(topics: Topics, tmp_path: Path) -> None:
    """Caches on: per key a subsequence of the same counts, with the same last one."""
    scenario = Scenario(topics, tmp_path, partitions=4, caches=True)
    scenario.write()
    scenario.die("offsets_sent")
    scenario.write(seed=1)
    scenario.finish()
    oracle.check_increasing(scenario.output_records(), scenario.expected)


def test_what_a_dead_worker_had_written_is_visible_to_uncommitted_readers_alone(
    topics: Topics, tmp_path: Path
) -> None:
    """The kill hits an open transaction, so its records exist, and read_committed hides them."""
    scenario = Scenario(topics, tmp_path, partitions=1)
    scenario.write()
    scenario.die("offsets_sent")
    scenario.finish()
    scenario.check_exact()
    uncommitted = scenario.output_records("read_uncommitted")
    assert len(uncommitted) > sum(scenario.expected.values())


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before the changelogs are written", marks=pytest.mark.faults),
        "between the commit and local state",
    ],
)
def test_at_least_once_loses_nothing_when_a_worker_dies(
    point: str, topics: Topics, tmp_path: Path
) -> None:
    """Counts may be too high after a crash, never too low."""
    scenario = Scenario(topics, tmp_path, partitions=4, guarantee="at_least_once")
    scenario.write()
    scenario.die(STEPS[point])
    with scenario.start() as app:
        wait_until(
            lambda: (
                kafka.committed(scenario.bootstrap, scenario.application_id, scenario.input)
                == {
                    r.partition: r.offset + 1
                    for r in kafka.read(scenario.bootstrap, scenario.input)
                }
            ),
            what="all input committed",
        )
        app.stop()
    last = oracle.last_counts(scenario.output_records())
    assert all(last[key] >= count for key, count in scenario.expected.items())


def test_a_worker_without_a_given_identity_goes_on_where_it_was_killed(
    topics: Topics, tmp_path: Path
) -> None:
    """The identity is in the state directory, so the same worker decides its old transaction."""
    scenario = Scenario(topics, tmp_path, partitions=1, worker_id=None)
    scenario.write()
    scenario.die("changelogs_written")
    scenario.finish()
    scenario.check_exact()


def test_a_second_process_shares_the_partitions(topics: Topics, tmp_path: Path) -> None:
    """Both process, and together they count every record once."""
    scenario = Scenario(topics, tmp_path, partitions=4, worker_id=None)
    scenario.write()
    with scenario.start() as first:
        wait_until(scenario.is_complete, what="the first process counts")
        second = AppProcess(scenario.plan(), tmp_path / "second.log")
        try:
            wait_until(
                lambda: second.text().count("task_started") >= 1, what="the second takes tasks"
            )
            scenario.write(seed=1)
            wait_until(scenario.is_complete, what="both count")
            scenario.write(seed=2)
            wait_until(scenario.is_complete, what="both count on")
            second.stop()
            scenario.write(seed=3)
            wait_until(scenario.is_complete, what="the first counts everything again")
        finally:
            if second.running:
                second.kill()
        first.stop()
    scenario.check_exact()


def test_local_state_that_cannot_be_read_is_rebuilt_from_its_changelog(
    topics: Topics, tmp_path: Path
) -> None:
    """Broken files are worth nothing, and the changelog has every row."""
    scenario = Scenario(topics, tmp_path, partitions=1)
    scenario.write()
    scenario.finish()
    (manifest,) = scenario.state_dir.rglob("MANIFEST-*")
    manifest.write_bytes(b"rubbish" * 100)
    scenario.write(seed=1)
    app = scenario.finish()
    assert "state_rebuilt" in app.text()
    assert app.reports("restored")[-1]["records"] >= KEYS
    scenario.check_exact()
