"""Random topologies on Spark and a real Kafka: a backfill that goes on live is a run live alone.

Live, each record is written when all that came of the one before is done, behind every repartition
topic too: that is the run of perfect timeliness that docs/backfill.md promises, and there is one
order only. If all records were there at once, tasks that write to one repartition partition would
do so in any order; the folds of these programs depend on it, and what is late does so too.

Records without a key are left out: live, they go to any partition of a repartition topic. The seeds
are some of those whose programs make none themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge import backfill
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, Topology, serdes
from headrace.topology.graph.graph import Node, Sink, SourceNode
from tests.reference.programs import (
    BEHIND_CACHES,
    PLAIN_OPS,
    SOURCES,
    Program,
    Step,
    random_program,
    write,
)
from tests.spark_bridge.support import sameness
from tests.spark_bridge.support.local_engine import goes_anywhere
from tests.spark_bridge.support.sameness import Final, Input, Progress
from tests.support.live import default_settings_of, live, settings_of
from tests.support.topics import Topics

SEEDS = (142, 821, 157, 320, 653, 848, 9, 602)
SEEDS_OF_DEFAULTS = (9008, 9014, 9049)
PARTITIONS = 2
START_MS = 1_700_000_000_000


def program_of(seed: int, *, cached: bool = False) -> Program:
    ops = BEHIND_CACHES if cached else PLAIN_OPS
    return random_program(seed, interrupted=False, cached=cached, ops=ops, plain=True)


def topology_of(program: Program) -> Topology:
    builder = StreamsBuilder()
    write(program, builder)
    return builder.build()


def sinks_of(topology: Topology) -> list[str]:
    sinks = (node for node in topology.nodes if isinstance(node, Sink) and not node.internal)
    return [str(sink.topic) for sink in sinks]


def renamed(topology: Topology, names: dict[str, str]) -> Topology:
    """The topology with topics that no other test uses."""
    nodes: list[Node] = []
    for node in topology.nodes:
        if isinstance(node, SourceNode) and not node.internal:
            nodes.append(replace(node, topics=tuple(names[topic] for topic in node.topics)))
        elif isinstance(node, Sink) and not node.internal:
            nodes.append(replace(node, topic=names[str(node.topic)]))
        else:
            nodes.append(node)
    return Topology(tuple(nodes), topology.stores)


@dataclass(frozen=True)
class Run:
    """An application with topics of its own."""

    topics: Topics
    topology: Topology
    settings: dict[str, Any]
    names: dict[str, str]

    @staticmethod
    def of(program: Program, topics: Topics, directory: Path) -> Run:
        topology = topology_of(program)
        names = {
            name: topics.create(name, partitions=PARTITIONS)
            for name in (*SOURCES, *sinks_of(topology))
        }
        settings = settings_of(topics, directory, null_key_policy="drop")
        if program.cached:
            settings = default_settings_of(
                topics,
                directory,
                null_key_policy="drop",
                processing_guarantee="exactly_once_v2",  # commits as soon as nothing is left to do
            )
        settings["default.key.serde"] = "string"
        return Run(topics, renamed(topology, names), settings, names)

    def inputs(self, program: Program) -> list[Input]:
        """The records with a key, in the order in which tasks take them."""
        key, value = serdes.string, serdes.json if program.mutable else serdes.long
        inputs = [
            Input(
                self.names[event.topic],
                key.serialize(event.key),
                None if event.value is None else value.serialize(event.value),
                START_MS + event.timestamp,
                (("number", str(number).encode()),),
            )
            for number, event in enumerate(program.events)
            if event.key is not None
        ]
        return sameness.in_order(inputs, PARTITIONS)

    def write(self, inputs: Iterable[Input]) -> None:
        sameness.write(self.topics.bootstrap, inputs, PARTITIONS)

    def archives(self, spark: Any, inputs: Iterable[Input], directory: Path) -> dict[str, Any]:
        """What the sources have up to some records, as files."""
        sources = [self.names[source] for source in SOURCES]
        ends = sameness.ends(inputs, sources, PARTITIONS)
        return {
            topic: sameness.archive(spark, self.topics.bootstrap, topic, ends, directory / topic)
            for topic in sources
        }

    def live(self, inputs: Iterable[Input]) -> Final:
        """Process records one by one, each of them all the way."""
        with live(self.topology, self.settings) as app:
            app.wait_running()
            with Progress(self.topology, self.settings) as progress:
                progress.wait(app)
                for one in inputs:
                    self.write([one])
                    progress.wait(app)
            rows = sameness.rows_of(app)
            restored = sum(one.total or 0 for one in app.restored)
        sinks = {name: topic for name, topic in self.names.items() if name not in SOURCES}
        outputs = sameness.outputs_of(self.topics.bootstrap, sinks)
        changelogs = sameness.changelogs_of(self.topology, self.settings)
        return Final(rows, changelogs, outputs, restored > 0)


def test_the_programs_have_all_calls() -> None:
    assert {step.op for seed in SEEDS for step in program_of(seed).steps} == set(PLAIN_OPS)


@pytest.mark.parametrize("seed", [*SEEDS, *SEEDS_OF_DEFAULTS])
def test_no_program_takes_away_keys_before_a_repartition_topic(seed: int) -> None:
    program = program_of(seed, cached=seed in SEEDS_OF_DEFAULTS)
    settings = {"null.key.policy": "drop", "default.key.serde": "string"}
    driver = TopologyTestDriver(topology_of(program), settings, partitions=PARTITIONS)
    value = serdes.json if program.mutable else serdes.long
    for event in program.events:
        if event.key is not None:
            source = driver.input(event.topic, key=serdes.string, value=value)
            source.send(event.key, event.value, timestamp=event.timestamp)
    assert not goes_anywhere(driver)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_backfill_that_goes_on_live_is_live_alone(
    spark: Any, topics: Topics, tmp_path: Path, seed: int
) -> None:
    """Every other one begins with files, goes on in Kafka, and then live."""
    found, expected = gone_on(program_of(seed), seed, spark, topics, tmp_path)
    assert any(expected.rows.values())
    found.check_state(expected)
    found.check_outputs_in_any_order(expected)


def test_fewer_records_go_on_in_a_backfill_and_then_live(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    """What has gone on in the backfill is known live, behind a repartition topic as well."""
    steps = (
        Step("deduplicate", 0, 1, 3),
        Step("repartition", 1, 0, 0),
        Step("deduplicate", 3, 0, 5),
        Step("sample", 4, 0, 4),
    )
    program = replace(program_of(SEEDS[0]), steps=steps)
    found, expected = gone_on(program, 0, spark, topics, tmp_path)
    assert any(expected.rows.values())
    found.check_state(expected)
    found.check_outputs_in_any_order(expected)


def gone_on(
    program: Program, seed: int, spark: Any, topics: Topics, tmp_path: Path
) -> tuple[Final, Final]:
    """What a backfill of a part comes to, from files too where the seed is an odd one of `SEEDS`.

    Returns:
        That, and what there is without a backfill.
    """
    alone = Run.of(program, topics, tmp_path / "alone")
    expected = alone.live(alone.inputs(program))
    both = Run.of(program, topics, tmp_path / "both")
    inputs = both.inputs(program)
    cut = random.Random(seed).randint(len(inputs) // 3, len(inputs) * 2 // 3)
    both.write(inputs[:cut])
    files = None
    if seed in SEEDS[1::2]:
        files = both.archives(spark, inputs[: cut // 2], tmp_path / "archives")
    backfill(both.topology, both.settings, spark=spark, source=files)
    return both.live(inputs[cut:]), expected


@pytest.mark.parametrize("seed", SEEDS_OF_DEFAULTS)
def test_a_backfill_at_default_settings_leaves_the_same(
    spark: Any, topics: Topics, tmp_path: Path, seed: int
) -> None:
    """With the default caches; which updates they leave out is theirs to choose."""
    program = program_of(seed, cached=True)
    alone = Run.of(program, topics, tmp_path / "alone")
    expected = alone.live(alone.inputs(program))
    assert any(expected.rows.values())
    both = Run.of(program, topics, tmp_path / "both")
    inputs = both.inputs(program)
    cut = len(inputs) // 2
    both.write(inputs[:cut])
    backfill(both.topology, both.settings, spark=spark)
    found = both.live(inputs[cut:])
    found.check_values(expected)
    found.check_last_outputs(expected)
