"""Whoever comes from Java is told for each setting what to do with it here.

The lists are what the classes StreamsConfig, ConsumerConfig, ProducerConfig and AdminClientConfig
of Kafka 4.3.1 print of themselves.
"""

from __future__ import annotations

import re

import pytest

from headrace.streams.config.client_names import CONSUMER, PRODUCER, SHARED, TUNING
from headrace.streams.config.config import StreamsConfig, table
from headrace.streams.config.java_settings import NOT_SUPPORTED, next_step
from headrace.streams.errors import ConfigError
from tests.support.processes import ROOT

BASE: dict[str, object] = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
LISTS = ROOT / "tests" / "golden" / "kafka_settings"
PREFIXES = {
    "streams": ("",),
    "consumer": ("", "consumer.", "main.consumer.", "restore.consumer.", "global.consumer."),
    "producer": ("", "producer."),
    "admin": ("", "admin."),
}
OWN = {own.name for own in table()}
CLIENTS = {
    "": SHARED,
    "consumer.": SHARED | TUNING | CONSUMER,
    "restore.": SHARED | TUNING | CONSUMER,
    "producer.": SHARED | TUNING | PRODUCER,
    "admin.": SHARED | TUNING,
}
NO_STEP = re.compile(r"did you mean|lists all settings")


def names(of: str) -> list[str]:
    return (LISTS / f"{of}.txt").read_text().split()


def problems(name: str, value: object) -> list[str]:
    try:
        StreamsConfig.parse({**BASE, name: value})
    except ConfigError as error:
        return [problem for problem in error.problems if problem.startswith(name)]
    return []


def can_be_written(name: str) -> bool:
    """Whether a step that says "write this" says something that is taken."""
    prefix = next((p for p in CLIENTS if p and name.startswith(p)), "")
    return name in OWN or name.removeprefix(prefix) in CLIENTS[prefix]


@pytest.mark.parametrize("of", PREFIXES)
def test_every_setting_of_kafka_4_3_is_known_or_has_its_next_step(of: str) -> None:
    assert len(names(of)) > 70
    for name in (prefix + name for prefix in PREFIXES[of] for name in names(of)):
        told = problems(name, "x")
        assert not [text for text in told if NO_STEP.search(text)], told
        if next_step(name) is not None:
            assert told == [f"{name} is not supported: {next_step(name)}"]


@pytest.mark.parametrize("name", sorted(NOT_SUPPORTED))
def test_a_next_step_names_settings_that_exist(name: str) -> None:
    step = NOT_SUPPORTED[name]
    assert re.search(r"^write |: write |remove it|run `headrace|serdes\.", step), step
    given = re.sub(r"`[^`]*`", "", step)
    for written in re.findall(r"(?:write|with|and|or) ([a-z]+(?:\.[a-z0-9]+)+)\b(?!\()", given):
        assert can_be_written(written) or written.startswith("serdes."), written


def test_the_table_holds_no_setting_that_is_taken() -> None:
    assert not [name for name in NOT_SUPPORTED if name in OWN | SHARED]
    assert set(NOT_SUPPORTED) <= {
        "transaction.timeout.ms", "default.production.exception.handler",
        "uncaught.exception.handler",  # a method in Java
        "default.windowed.key.serde.inner", "default.windowed.value.serde.inner",  # before 4.0
        *(name for of in PREFIXES for name in names(of)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "guarantee", "said"),
    [
        ("auto.offset.reset", "earliest", "at_least_once", "write consumer.auto.offset.reset"),
        ("auto.offset.reset", "latest", "exactly_once", "write consumer.auto.offset.reset"),
        ("acks", "1", "at_least_once", "acks cannot be set to anything but all"),
        ("acks", "all", "exactly_once", "acks is always all: .*; remove it"),
        ("acks", "1", "exactly_once", "acks cannot be set to anything but all"),
        ("isolation.level", "read_committed", "exactly_once", "always read_committed"),
        ("enable.auto.commit", False, "at_least_once", "enable.auto.commit is always false"),
        ("enable.auto.commit", True, "at_least_once", "cannot be set to anything but false"),
        ("group.id", "g", "at_least_once", "it is the application.id"),
        ("consumer.ssl.truststore.location", "t", "at_least_once", "write ssl.ca.location"),
        ("sasl.jaas.config", "x", "at_least_once", "write sasl.mechanism with sasl.username"),
        ("client.tag.zone", "a", "at_least_once", "remove it"),
    ],
)
def test_a_setting_of_java_gets_the_right_next_step(
    name: str, value: object, guarantee: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        StreamsConfig.parse({**BASE, "processing.guarantee": guarantee, name: value})
    assert len(raised.value.problems) == 1
