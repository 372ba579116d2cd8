"""A worker that others have given up, and that does not know it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.streams.live.test_crashes_on_broker import Scenario
from tests.support.processes import AppProcess, running, wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

SESSION_S = 6


def refused(zombie: AppProcess) -> bool:
    return any(event in zombie.text() for event in ("transaction_aborted", "producer_replaced"))


@pytest.mark.parametrize(
    ("step", "transaction_ms"),
    [
        ("caches_flushed", 60_000),
        ("offsets_sent", 10_000),
    ],
    ids=["before it sends its offsets", "before it ends a transaction that expires"],
)
def test_a_worker_that_wakes_up_after_others_took_over_commits_nothing_of_before(
    step: str, transaction_ms: int, topics: Topics, tmp_path: Path
) -> None:
    """It stands still in the middle of a commit, past its session, and goes on with it then.

    Trap 33: the brokers would take its commit with the metadata of a new membership.
    """
    scenario = Scenario(topics, tmp_path, partitions=4, worker_id=None)
    scenario.settings["producer.transaction.timeout.ms"] = transaction_ms
    scenario.settings["max.poll.records"] = 50
    other_log, log = tmp_path / "other.log", tmp_path / "zombie.log"
    with (
        running(scenario.plan(), other_log) as other,
        running(scenario.plan(stop_at=step, stop_on=4), log) as zombie,
    ):
        wait_until(lambda: "task_started" in zombie.text(), what="both have tasks")
        seeds = iter(range(1_000))
        while not zombie.is_stopped:
            scenario.write(200, seed=next(seeds))
        time.sleep(SESSION_S + 4 if step == "caches_flushed" else transaction_ms / 1000 + 6)
        zombie.resume()
        wait_until(lambda: refused(zombie), what="the zombie's commit is refused")
        wait_until(scenario.is_complete, what="everything is counted")
        scenario.write(seed=next(seeds))
        wait_until(scenario.is_complete, what="both count on")
        zombie.stop()
        other.stop()
    scenario.check_exact()


def test_what_a_dead_worker_was_about_to_give_up_finds_an_owner(
    topics: Topics, tmp_path: Path
) -> None:
    """It is killed before it heard that a partition is to go, and is back within its session.

    The group takes it back without sharing out again, and has given that partition to nobody.
    """
    scenario = Scenario(topics, tmp_path, partitions=2)
    # So long that nothing but a request for a rebalance finds it an owner.
    scenario.settings["consumer.session.timeout.ms"] = 240_000
    first = {**scenario.settings, "worker.id": "first"}
    second = {**scenario.settings, "worker.id": "second"}
    scenario.write(100)
    log, other_log = tmp_path / "first.log", tmp_path / "second.log"
    with running({**scenario.plan(hang_at="caches_flushed"), "settings": first}, log) as dying:
        wait_until(lambda: "hangs" in dying.text(), what="the first has both partitions")
        with running({**scenario.plan(), "settings": second}, other_log) as other:
            wait_until(lambda: "partitions_assigned" in other.text(), what="the second has joined")
            dying.kill()
            with running({**scenario.plan(), "settings": first}, log) as back:
                wait_until(scenario.is_complete, what="everything is counted")
                assert "rebalance_requested" in back.text() + other.text()
                back.stop()
            other.stop()
    scenario.check_exact()


def test_who_stays_commits_on_while_another_worker_joins(topics: Topics, tmp_path: Path) -> None:
    """Another generation begins in the middle of its commit; what it owns it still owns."""
    scenario = Scenario(topics, tmp_path, partitions=4, worker_id=None)
    log, other_log, go_on = tmp_path / "stays.log", tmp_path / "other.log", tmp_path / "go on"
    scenario.write(200)
    plan = scenario.plan(hang_at="changelogs_written", hang_until=str(go_on))
    with running(plan, log) as stays:
        wait_until(lambda: "hangs" in stays.text(), what="the first is in its commit")
        with running(scenario.plan(), other_log) as other:
            wait_until(lambda: "partitions_assigned" in other.text(), what="the second has joined")
            go_on.touch()
            wait_until(lambda: "task_started" in other.text(), what="the second has tasks")
            scenario.write(200, seed=1)
            wait_until(scenario.is_complete, what="both count")
            before = stays.text().partition("partitions_revoked")[0]
            assert "transaction_aborted" not in before, "its commit was refused"
            other.stop()
        stays.stop()
    scenario.check_exact()
