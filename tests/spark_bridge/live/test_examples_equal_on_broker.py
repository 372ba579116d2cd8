"""The examples on Spark and a real Kafka: a backfill that goes on live is a run that is live alone.

All runs of an example read the same topics; each is an application of its own, with sinks of its
own. A backfill ends in the middle, and the live application does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge import backfill
from headrace.streams.kafka.protocols import TopicPartition
from headrace.topology import Topology
from tests.spark_bridge.support.example_inputs import EXAMPLES, Example
from tests.spark_bridge.support.sameness import (
    Final,
    Input,
    Progress,
    archive,
    changelogs_of,
    ends,
    furthest_behind,
    in_order,
    outputs_of,
    rows_of,
    write,
)
from tests.support.live import default_settings_of, live, settings_of
from tests.support.topics import Topics


@dataclass(frozen=True)
class Prepared:
    """An example whose inputs are written.

    Args:
        sources: the topics.
        inputs: their records, in the order in which tasks take them.
        directory: for files.
    """

    example: Example
    topics: Topics
    sources: list[str]
    inputs: list[Input]
    directory: Path

    @staticmethod
    def of(example: Example, topics: Topics, directory: Path) -> Prepared:
        count = example.partitions
        sources = [topics.create(name, partitions=count) for name in example.sources]
        inputs = in_order(example.inputs(sources, directory), count)
        write(topics.bootstrap, inputs, count)
        return Prepared(example, topics, sources, inputs, directory)

    def ends(self, part: float) -> dict[TopicPartition, int]:
        """Where the first part of the records ends: where the next one is late."""
        about = int(len(self.inputs) * part)
        cut = furthest_behind(self.inputs, self.sources[0], about - 20, about + 20)
        return ends(self.inputs[:cut], self.sources, self.example.partitions)

    def run(self, name: str, *, defaults: bool = False) -> Run:
        """Name the sinks and the application of another run."""
        count = self.example.partitions
        sinks = [self.topics.create(sink, partitions=count) for sink in self.example.sinks]
        more: dict[str, Any] = {"null_key_policy": "drop", "max_task_idle_ms": 500}
        if defaults:  # but for the half minute that they would wait for a commit
            more["commit_interval_ms"] = 500
        make = default_settings_of if defaults else settings_of
        settings = make(self.topics, self.directory / name, **more)
        topology = self.example.make(self.sources, sinks, self.directory)
        return Run(self, topology, settings, sinks)


@dataclass(frozen=True)
class Run:
    """One application."""

    prepared: Prepared
    topology: Topology
    settings: dict[str, Any]
    sinks: list[str]

    def backfill(self, spark: Any, part: float, **options: Any) -> None:
        """Compute what comes of the first part of the records."""
        until = self.prepared.ends(part)
        report = backfill(self.topology, self.settings, spark=spark, until=until, **options)
        assert report.keys

    def archives(self, spark: Any, part: float, directory: Path) -> Mapping[str, Any]:
        """The first part of the records as files, by topic."""
        bootstrap, before = self.prepared.topics.bootstrap, self.prepared.ends(part)
        return {
            topic: archive(spark, bootstrap, topic, before, directory / topic)
            for topic in self.prepared.sources
        }

    def go_on_live(self) -> Final:
        """Process what is left, and look at what there is then."""
        with live(self.topology, self.settings) as app:
            app.wait_running()
            with Progress(self.topology, self.settings) as progress:
                progress.wait(app)
            rows = rows_of(app)
            restored = sum(one.total or 0 for one in app.restored)
        bootstrap, names = self.prepared.topics.bootstrap, self.prepared.example.sinks
        outputs = outputs_of(bootstrap, dict(zip(names, self.sinks, strict=True)))
        return Final(rows, changelogs_of(self.topology, self.settings), outputs, restored > 0)


@dataclass(frozen=True)
class Alone:
    """An example, and what it comes to live."""

    prepared: Prepared
    final: Final

    def check(self, found: Final) -> None:
        """Compare a run with the one that was live alone, as far as is promised."""
        example = self.prepared.example
        assert found.warm
        found.check_state(self.final)
        found.check_last_outputs(self.final, example.decode(self.prepared.directory))
        if example.promise == "updates":
            found.check_number_of_outputs(self.final)
        if example.promise == "outputs":
            found.check_outputs(self.final)


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: example.name)
def alone(
    request: pytest.FixtureRequest, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Alone]:
    """Each example once, live over everything."""
    topics = Topics(broker)
    try:
        prepared = Prepared.of(request.param, topics, tmp_path_factory.mktemp("example"))
        final = prepared.run("alone").go_on_live()
        assert not final.warm
        assert all(final.rows.values()), "there is state to compare in each task"
        assert all(final.outputs.values()), "there are outputs to compare"
        yield Alone(prepared, final)
    finally:
        topics.delete_all()


@pytest.mark.parametrize(("part", "handover"), [(0.3, "driver"), (0.8, "partitioned")])
def test_a_backfill_that_goes_on_live_is_live_alone(
    spark: Any, alone: Alone, part: float, handover: str
) -> None:
    run = alone.prepared.run(handover)
    run.backfill(spark, part, handover=handover)
    alone.check(run.go_on_live())


def test_a_backfill_at_default_settings_leaves_the_same(spark: Any, alone: Alone) -> None:
    """With the default caches, as most run it; which updates they leave out is theirs to choose."""
    run = alone.prepared.run("defaults", defaults=True)
    run.backfill(spark, 0.5)
    found = run.go_on_live()
    assert found.warm
    found.check_values(alone.final)
    found.check_last_outputs(alone.final, alone.prepared.example.decode(alone.prepared.directory))


def test_a_backfill_from_files_that_goes_on_live_is_live_alone(
    spark: Any, alone: Alone, tmp_path: Path
) -> None:
    run = alone.prepared.run("files")
    run.backfill(spark, 0.6, source=run.archives(spark, 0.6, tmp_path))
    alone.check(run.go_on_live())
