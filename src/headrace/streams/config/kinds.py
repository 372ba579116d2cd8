"""The kinds of settings whose values are Python objects, or names of some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.streams.settings import Kind
from headrace.topology import serdes, timestamps
from headrace.topology.arguments import why_not_called_as
from headrace.topology.serdes import Serde

SERDES: Mapping[str, Serde[Any]] = {
    name: getattr(serdes, name) for name in ("string", "bytes", "integer", "long", "double", "json")
}
_SERDE_MEMBERS = ("name", "immutable", "canonical", "serialize", "deserialize")


def serde() -> Kind:
    """A serde, or the name of one that comes along."""

    def parse(value: object) -> object:
        if isinstance(value, str) and value in SERDES:
            return SERDES[value]
        if all(hasattr(value, member) for member in _SERDE_MEMBERS):
            return value
        raise ValueError(f"must be a Serde or one of {', '.join(SERDES)}, not {value!r}")

    return Kind("a Serde, or " + ", ".join(f"`{name}`" for name in SERDES), parse)


def extractor() -> Kind:
    """A timestamp extractor, or the name of one that comes along."""

    def parse(value: object) -> object:
        if isinstance(value, str) and value in timestamps.BY_NAME:
            return timestamps.BY_NAME[value]
        if callable(value):
            wrong = why_not_called_as("extractor(record, partition_time)", 2, value)
            if wrong is not None:
                raise ValueError(wrong)
            return value
        names = ", ".join(timestamps.BY_NAME)
        raise ValueError(f"must be a function or one of {names}, not {value!r}")

    return Kind("a function, or " + ", ".join(f"`{name}`" for name in timestamps.BY_NAME), parse)
