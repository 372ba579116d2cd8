"""The pages for readers who know another tool name only what exists here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import KafkaStreams, StreamsBuilder, TopologyTestDriver, avro, serdes
from headrace.streams.config.java_settings import NOT_SUPPORTED
from headrace.streams.testing.driver_topics import TestInput, TestOutput
from headrace.topology.graph.optimizer import BY_NAME, COMBINE
from tests.support.processes import ROOT
from tests.test_docs import PRIVATE_WORDS

DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "coming-from").glob("*.md"))
OF_JAVA = (
    "start state setStateListener setUncaughtExceptionHandler setGlobalStateRestoreListener "
    "setStandbyUpdateListener addStreamThread removeStreamThread pause resume isPaused cleanUp "
    "metrics metadataForLocalThreads metadataForAllStreamsClients streamsMetadataForStore "
    "queryMetadataForKey allLocalStorePartitionLags clientInstanceIds close store query"
)
"""The public methods of Kafka Streams' class, in version 4.3.1."""
FOREIGN = {
    "auto.offset.reset",
    "consumer.auto.offset.reset",
    "enable.auto.commit",
    "group.id",
    "single.store.self.join",
}
"""Settings of Kafka clients, with and without a prefix, and one of Kafka Streams."""
OBJECTS = ("agent", "avro", "sdf", "serdes", "state", "topic")
"""Names before a dot that begin a method or a serde, and not a setting."""

FIGURES = (
    ("when-to-use", "10 ms p50, 40 ms p99", "| stateless | headrace | 10.1 | 16.8 | 40.2 |"),
    ("when-to-use", "57 ms p50, 118 ms p99", "| stateless | kafka-streams | 57.4 | 99.4 | 118.4 |"),
    ("when-to-use", "0.95 s to the first commit", "| 5,000,000 | kept | 0.71 | 0.95 | 0.95 |"),
    ("when-to-use", "5.4 to 12.2", "caches | quix | 5.41 |"),
    ("when-to-use", "1.5 to 6.0", "caches | kafka-streams | 5.98 |"),
    ("coming-from/quix", "5.4 to 12.2 times", "every update | quix | 12.15 |"),
    ("coming-from/spark", "10 ms (p50) and 40 ms (p99)", "| 10.1 | 16.8 | 40.2 |"),
    ("coming-from/spark", "took 4.6 times as long as Spark SQL", "| 22.6 | 4.9 | 4.60 "),
    ("coming-from/spark", "the ratio was 1.02 ", "| 27.1 | 25.4 | 1.02 "),
)
"""Figures of the pages, with what the page on performance says."""


def _rows(title: str) -> list[tuple[str, str]]:
    """Return the first two cells of each row of a section's table on the page on Kafka Streams."""
    page = (DOCS / "coming-from/kafka-streams.md").read_text()
    section = re.split(r"^##+ ", page.partition(f"### {title}\n")[2], maxsplit=1, flags=re.M)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = [line.strip("| ").split(" | ") for line in lines]
    return [(first, second) for first, second, *_ in cells]


def _quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_each_java_method_of_the_class_is_in_its_table() -> None:
    named = {re.split(r"\W", name)[0] for java, _ in _rows("The class `KafkaStreams`")
             for name in _quoted(java)}  # fmt: skip
    assert [method for method in OF_JAVA.split() if method not in named] == []


@pytest.mark.parametrize(
    ("title", "count"), [("The class `KafkaStreams`", 30), ("The class `TopologyTestDriver`", 15)]
)
def test_each_of_our_names_in_the_table_of_a_class_exists(title: str, count: int) -> None:
    commands = (DOCS / "commands.md").read_text()
    methods: tuple[Callable[..., Any], ...] = (
        *(KafkaStreams.__init__, KafkaStreams.close, TopologyTestDriver.__init__),
        *(TopologyTestDriver.input, TestInput.send),
    )
    arguments = {name for method in methods for name in inspect.signature(method).parameters}
    classes = {"TestInput": TestInput, "TestOutput": TestOutput}
    names = [name for _, ours in _rows(title) for name in _quoted(ours)]
    assert len(names) > count
    missing = []
    for name in names:
        owner, _, attribute = name.partition(".")
        if name.startswith("headrace "):
            exists = f"## {name}\n" in commands
        elif name.startswith("--"):
            exists = f"`{name} " in commands
        elif attribute:
            exists = hasattr(classes.get(owner) or getattr(headrace, owner, None), attribute)
        else:
            exists = hasattr(headrace, name) or name in {*arguments, "with"}
        if not exists:
            missing.append(name)
    assert missing == []


def test_javas_optimizations_write_no_partial_aggregates() -> None:
    page = (DOCS / "coming-from/kafka-streams.md").read_text()
    builder = StreamsBuilder()
    builder.stream("in").group_by(lambda _, value: value).count(store="counts")
    settings = {"application.id": "a", "bootstrap.servers": "localhost:1"}

    def combined(optimization: str) -> list[object]:
        app = KafkaStreams(builder.build(), {**settings, "topology.optimization": optimization})
        sinks = [sink for plan in app.plans for sink in plan.program.sub_topology.sinks]
        return [sink.combines for sink in sinks if sink.combines is not None]

    rows = re.findall(r"^    - If Java sets .*`(\w+)`: `([a-z.,]+)`\.$", page, re.M)
    assert dict(rows) == {"none": "none", "all": ",".join(n for n in BY_NAME if n != COMBINE)}
    assert [combined(ours) for _, ours in rows] == [[], []]
    assert len(combined("all")) == len(combined(COMBINE)) == 1, "the page warns of both"


def test_each_serde_of_the_table_exists() -> None:
    modules = {"serdes": serdes, "avro": avro}
    names = [name for _, ours in _rows("Serdes and their defaults") for name in _quoted(ours)]
    assert len(names) > 8
    for name in names:
        module, _, attribute = name.partition(".")
        assert hasattr(modules[module], attribute), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_setting_on_the_pages_is_known(page: Path) -> None:
    known = (DOCS / "configuration.md").read_text()
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", text))
    settings = {name for name in named - FOREIGN if name.split(".")[0] not in OBJECTS}
    assert settings
    unknown = [n for n in settings if f"`{n}`" not in known and n not in NOT_SUPPORTED]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pages_use_standard_terms(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose)
    lines = [line for line in prose.splitlines() if not line.strip().startswith("|")]
    assert [line for line in lines if PRIVATE_WORDS.search(line)] == []


@pytest.mark.parametrize(("page", "figure", "measured"), FIGURES)
def test_the_figures_are_those_of_the_page_on_performance(
    page: str, figure: str, measured: str
) -> None:
    assert measured in (DOCS / "performance.md").read_text(), f"change the figure on {page}, too"
    assert figure in " ".join((DOCS / f"{page}.md").read_text().split())
