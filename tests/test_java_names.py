"""A Java name raises an error with the name or the argument to write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, cast

import pytest

import headrace
from headrace import KafkaStreams, StreamsBuilder, TopologyTestDriver, serdes
from headrace.streams.testing.driver_topics import TestInput, TestOutput
from headrace.topology.java_names import _ADVICE, KEYWORDS, OF_PACKAGE, OF_SERDES, OTHER_SERDES
from tests.support.public_api import public_methods, public_objects

JAVA = cast("Any", headrace)
"""The package without its types."""


def app(**options: Any) -> Any:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    settings = {"application.id": "copy", "bootstrap.servers": "localhost:1"}
    return KafkaStreams(builder.build(), settings, **options)


def stream(**options: Any) -> Any:
    return JAVA.StreamsBuilder().stream("in", key=serdes.string, **options)


def driver() -> Any:
    return TopologyTestDriver(app().topology)


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "count": (lambda: stream().group_by_key().count("x"), "by name: store=, key=, value=, "),
    "to": (lambda: stream().to("out", 1, 2), "by name: key=, value=, "),
    "process": (lambda: stream().process(print, "a"), "by name: stores=, name="),
    "filter": (lambda: stream().filter(print, "a"), "by name: name="),
    "number_of_partitions": (
        lambda: stream().repartition(number_of_partitions=3),
        "its name here is partitions$",
    ),
    "timestamp_extractor": (
        lambda: stream(timestamp_extractor=print),
        "its name here is timestamps$",
    ),
    "uncaught_exception_handler": (
        lambda: app(uncaught_exception_handler=print),
        "its name here is uncaught_error_handler$",
    ),
    "cleanUp": (lambda: app().cleanUp(), "its name here is clean_up$"),
    "pipeInput": (lambda: driver().input("in").pipeInput("a"), r"write send\(key, value\)$"),
    "readKeyValuesToMap": (
        lambda: driver().output("out").readKeyValuesToMap(),
        r"write as_dict\(\)$",
    ),
    "withCachingDisabled": (
        lambda: JAVA.Materialized("x").withCachingDisabled(),
        r"write Materialized\(\.\.\., cached=False\)$",
    ),
    "unbounded": (lambda: JAVA.BufferConfig.unbounded(), r"write BufferConfig\(\), which"),
    "APPLICATION_ID_CONFIG": (
        lambda: JAVA.StreamsConfig.APPLICATION_ID_CONFIG,
        "write 'application.id' as a key of the settings$",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_error_shows_what_to_write(call: str) -> None:
    function, advice = CALLS[call]
    with pytest.raises((AttributeError, TypeError), match=advice):
        function()


@pytest.mark.parametrize("name", OF_PACKAGE)
def test_an_import_of_a_java_class_names_its_counterpart(name: str) -> None:
    with pytest.raises(ImportError, match=re.escape(f"headrace has no {name}; {OF_PACKAGE[name]}")):
        exec(f"from headrace import {name}")


def test_other_unknown_names_are_missing_attributes() -> None:
    assert not hasattr(headrace, "Consume")
    assert not hasattr(serdes, "Longs")
    assert not hasattr(app(), "unknown")


@pytest.mark.parametrize("name", [*OF_SERDES, *OTHER_SERDES])
def test_a_java_serde_names_its_counterpart(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'; write serdes\.\w+") as raised:
        getattr(serdes, name)
    found = re.search(r"write serdes\.(\w+)", str(raised.value))
    assert found is not None
    assert hasattr(serdes, found[1])


OWNERS = {"TestInput": TestInput, "TestOutput": TestOutput}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in _ADVICE.items() for name in names]
)
def test_each_name_of_a_table_is_unknown_and_has_advice(owner: str, name: str) -> None:
    cls = OWNERS.get(owner) or getattr(headrace, owner)
    with pytest.raises(AttributeError, match=re.escape(_ADVICE[owner][name])):
        getattr(object.__new__(cls), name)


def test_each_method_and_argument_of_the_advice_exists() -> None:
    """`name(` must be a method or a class, and `name=` an argument."""
    names, arguments = {"len"}, {"other_partitioner"}  # an option of joins of tables
    for value in public_objects():
        own = {value.__name__: value}
        if inspect.isclass(value):
            own |= {"__init__": value.__init__, **public_methods(value)}
        names |= own.keys()
        for function in own.values():
            if inspect.isfunction(function):
                arguments |= inspect.signature(function).parameters.keys()
    texts = [text for table in _ADVICE.values() for text in table.values()]
    texts += OF_PACKAGE.values()
    for text in texts:
        assert set(re.findall(r"(\w+)\(", text)) <= names, text
        assert set(re.findall(r"(\w+)=", text)) <= arguments, text
    assert set(KEYWORDS.values()) <= arguments
