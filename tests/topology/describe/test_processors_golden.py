"""`describe` prints what Kafka Streams prints for topologies that are built node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.topology import StoreBuilder, Stores, StreamsBuilder, Topology

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka_streams" / "processors"


def p(record: Any, context: Any) -> None:
    context.forward(record)


def store(name: str) -> StoreBuilder[Any]:
    return Stores.key_value(name)


def read() -> Topology:
    return Topology().add_source("read", "in")


def two() -> Topology:
    sources = Topology().add_source("a", "a").add_source("b", "b")
    return sources.add_processor("pa", p, "a").add_processor("pb", p, "b")


def diamond() -> Topology:
    topology = Topology().add_source("read", "x", "y")
    topology = topology.add_processor("left", p, "read").add_processor("right", p, "read")
    topology = topology.add_processor("both", p, "left", "right")
    return topology.add_sink("one", "o1", "both", "left").add_sink("two", "o2", "right")


def behind_the_dsl() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", name="src").filter(lambda k, v: True, name="kept")
    return builder.build().add_processor("mine", p, "kept").add_sink("write", "out", "mine")


CASES = {
    "empty": Topology(),
    "one-processor": read().add_processor("count", p, "read").add_sink("write", "out", "count"),
    "stores": read()
    .add_processor("count", p, "read")
    .add_state_store(store("b"), "count")
    .add_state_store(store("a"), "count")
    .add_sink("write", "out", "count"),
    "supplied-stores": read()
    .add_processor("count", p, "read", stores=[store("b"), store("a")])
    .add_sink("write", "out", "count"),
    "store-joins-two": two().add_state_store(store("s"), "pa", "pb"),
    "two-apart": two().add_state_store(store("s"), "pa"),
    "connected-later": two()
    .add_state_store(store("s"), "pa")
    .connect_processor_and_state_stores("pb", "s"),
    "diamond": diamond(),
    "store-unused": read().add_state_store(store("s")).add_sink("write", "out", "read"),
    "behind-the-dsl": behind_the_dsl(),
}


def test_every_golden_file_has_its_calls_here_and_in_the_readme() -> None:
    files = {path.stem for path in GOLDEN.glob("*.txt")}
    assert files == CASES.keys()
    readme = (GOLDEN / "README.md").read_text()
    assert all(f"- `{name}`: " in readme for name in files)


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_that_of_kafka_streams(name: str) -> None:
    assert CASES[name].describe() == (GOLDEN / f"{name}.txt").read_text()
