"""SIGTERM while no broker can be reached: the stop gives its commit up, and nothing is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from headrace.streams.devbroker import DevBroker
from headrace.streams.devbroker.cluster import choose_base
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support import kafka, oracle
from tests.support.processes import wait_until
from tests.support.supervised import Counted, Run
from tests.support.topics import Topics


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[DevBroker]:
    """A broker that this test alone stops."""
    broker = DevBroker(tmp_path / "broker", port=choose_base(1))
    broker.start()
    yield broker
    broker.stop()


def lose(broker: DevBroker, how: str) -> None:
    broker.kill(1) if how == "killed" else broker.pause(1)


def find_again(broker: DevBroker, how: str) -> None:
    broker.start() if how == "killed" else broker.resume(1)


def has_processed(run: Run, count: int) -> bool:
    return any(event.get("records") == count for event in run.events("status_reported"))


def has_settled(run: Run, count: int) -> bool:
    """So much is processed, and the commit soon after a start lies some time back."""
    last = run.events("status_reported")[-1:]
    return any(e.get("records") == count and e.get("commit_age_s", 0) > 2 for e in last)


def counts_all(counted: Counted) -> bool:
    found = oracle.last_counts(kafka.read(counted.bootstrap, counted.output))
    return all(found[key] >= count for key, count in counted.expected.items())


def serves(counted: Counted) -> bool:
    try:
        return bool(kafka.ends(counted.bootstrap, counted.input))
    except KafkaException:
        return False


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("how", "guarantee"),
    [
        pytest.param("killed", "exactly_once_v2", marks=pytest.mark.faults),
        pytest.param("killed", "at_least_once", marks=pytest.mark.long),
        pytest.param("silent", "exactly_once_v2", marks=pytest.mark.long),
        pytest.param("silent", "at_least_once", marks=pytest.mark.long),
    ],
)
def test_a_stop_without_brokers_gives_its_commit_up_and_loses_nothing(
    how: str, guarantee: str, own_broker: DevBroker, tmp_path: Path
) -> None:
    counted = Counted(
        Topics(own_broker.bootstrap),
        tmp_path,
        partitions=2,
        processing_guarantee=guarantee,
        commit_interval_ms=30_000,
        commit_interval_min_ms=30_000,
        producer_transaction_timeout_ms=60_000,
        consumer_session_timeout_ms=45_000,
    )
    counted.write(40)
    with counted.running(1) as run:
        wait_until(lambda: has_settled(run, 40) or run.process.poll() is not None, what="work")
        counted.write(40)  # what no early commit takes any more
        wait_until(lambda: has_processed(run, 80) or run.process.poll() is not None, what="more")
        lose(own_broker, how)
        run.wait_for("brokers_not_reached")
        time.sleep(3)
        run.signal(signal.SIGTERM)
        code = run.wait()
    find_again(own_broker, how)
    assert not run.events("worker_killed"), run.text()[-6000:]
    assert code == ExitCode.STOPPED
    (event,) = run.events("last_commit_failed")
    assert event["tasks"] == ["0_0", "0_1"]
    assert event["partitions"] == [f"{counted.input}-0", f"{counted.input}-1"]
    assert event["records"] == 40
    assert "Traceback" not in run.text()

    wait_until(lambda: serves(counted), what="the broker serves again")
    counted.write(40)
    with counted.running(1, "--set", "commit.interval.ms=20") as again:
        if guarantee == "exactly_once_v2":
            counted.wait_counted(again)
        else:  # what the silent broker took before the stop is counted twice
            wait_until(lambda: counts_all(counted), what="all counts, or more")
        again.signal(signal.SIGTERM)
        assert again.wait() == ExitCode.STOPPED
    if guarantee == "exactly_once_v2":
        counted.check_exact()
