"""State, topics and offsets of each release: today's code continues from them exactly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.testing.driver import TopologyTestDriver
from tests.support.release_app import APPLICATION_ID
from tests.support.release_state import (
    Results,
    deployed_topology,
    ends_of,
    extract_state,
    make_driver,
    read_results,
    read_topics,
    release_directories,
    results_of,
    run_part,
    stores_of,
)


@pytest.fixture(params=release_directories(), ids=lambda path: path.name)
def release(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def driver(release: Path, tmp_path: Path) -> Iterator[TopologyTestDriver]:
    """Driver with the topics and offsets of a release; local state may be put in its directory."""
    driver = make_driver(tmp_path / "state")
    read_topics(release).load(driver.cluster)
    yield driver
    driver.close()


def differences(found: Results, expected: Results) -> list[str]:
    """Describe the keys whose records or rows differ."""
    return [
        f"{name}, key {key}: {found.get(name, {}).get(key)}, expected {rows.get(key)}"
        for name in sorted({*found, *expected})
        for rows in [expected.get(name, {})]
        for key in sorted({*rows, *found.get(name, {})})
        if found.get(name, {}).get(key) != rows.get(key)
    ]


def continue_from(driver: TopologyTestDriver, release: Path) -> None:
    """Process the rest of the input, and compare with the run without an interruption."""
    ends, names = ends_of(driver.cluster), offset_metadata_names(driver)
    run_part(driver, "after")
    wrong = differences(results_of(driver, ends), read_results(release))
    assert not wrong, "\n".join(wrong)
    # A renamed offset-metadata value would be ignored, often without changing these results.
    assert offset_metadata_names(driver) == names


def offset_metadata_names(driver: TopologyTestDriver) -> dict[TopicPartition, set[str]]:
    """Return the names of the values in the metadata of each offset."""
    return {
        tp: set(OffsetMetadata.decode(offset.metadata).values)
        for tp, offset in driver.cluster.committed(APPLICATION_ID).items()
    }


def test_local_state_of_a_release_is_continued(
    driver: TopologyTestDriver, release: Path, tmp_path: Path
) -> None:
    extract_state(release, tmp_path)
    driver.run()
    in_memory = driver.cluster.partitions("released-in-memory-changelog")
    # Only the store without files is restored.
    assert driver.restored == sum(len(driver.cluster.log(tp).records()) for tp in in_memory)
    continue_from(driver, release)


def test_changelogs_of_a_release_are_restored(driver: TopologyTestDriver, release: Path) -> None:
    driver.run()
    assert driver.restored > 1_000
    continue_from(driver, release)


def test_the_deployed_topology_of_a_release_is_compared(driver: TopologyTestDriver) -> None:
    deployed = deployed_topology(driver)
    deployed.check()
    before = deployed.before
    assert before is not None
    assert (before.stores, before.topics) == (deployed.present.stores, deployed.present.topics)
    assert before.subs == deployed.present.subs


def test_a_release_left_rows_and_records_of_every_kind(
    driver: TopologyTestDriver, release: Path, tmp_path: Path
) -> None:
    """Guard: the stored release covers all store kinds and join outcomes."""
    extract_state(release, tmp_path)
    cluster, unread = driver.cluster, 0
    for tp in cluster.partitions("released-by-city-repartition"):
        committed = driver.committed_offsets(tp.topic)[tp.partition]
        assert 0 < cluster.log(tp).start <= committed
        unread += len(cluster.log(tp).read(committed, 1_000, committed=True)[0])
    assert unread
    logs = [cluster.log(tp) for topic in cluster.topics for tp in cluster.partitions(topic)]
    assert any(not log.is_final(offset) for log in logs for offset in range(log.end))
    empty = [name for name in stores_of(driver) if not driver.store(name, committed=True)]
    assert empty == ["in-memory"]
    expected = read_results(release)
    written = {name.removeprefix("topic ") for name in expected if name.startswith("topic ")}
    assert written == {topic for topic in driver.output_topics if topic.startswith("out-")}
    assert all(
        any(value[one] is None for own in expected[f"topic {name}"].values() for _, value in own)
        for name, one in (("out-left", 1), ("out-outer", 0), ("out-outer", 1))
    )
