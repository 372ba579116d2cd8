"""An error about two of one name says where both are written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from headrace import StreamsBuilder, Topology, serdes
from headrace.topology.errors import TopologyError
from headrace.topology.processors.stores import Stores


def _here() -> int:
    return sys._getframe(1).f_lineno


def _kept(record: Any, context: Any) -> None:
    """A processor that does nothing."""


def _refused(write: Callable[[list[int]], object]) -> tuple[str, list[int]]:
    """What is said, and the lines where both were written."""
    lines: list[int] = []
    with pytest.raises(TopologyError) as raised:
        write(lines)
    return str(raised.value), lines


def _nodes(lines: list[int]) -> None:
    stream = StreamsBuilder().stream("in")
    lines.append(_here() + 1)
    stream.filter(bool, name="kept")
    lines.append(_here() + 1)
    stream.map_values(str, name="kept")


def _repartitions(lines: list[int]) -> None:
    stream = StreamsBuilder().stream("in")
    lines.append(_here() + 1)
    stream.repartition(name="again")
    lines.append(_here() + 1)
    stream.map_values(str).repartition(name="again")


def _stores(lines: list[int]) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string).group_by_key()
    lines.append(_here() + 1)
    stream.count(store="counts")
    lines.append(_here() + 1)
    stream.count(store="counts")
    builder.build()


def _state_stores(lines: list[int]) -> None:
    builder = StreamsBuilder()
    lines.append(_here() + 1)
    builder.add_state_store(Stores.key_value("rows", key=serdes.string))
    lines.append(_here() + 1)
    builder.stream("in").process(_kept, stores=[Stores.key_value("rows", key=serdes.long)])


def _a_store_of_each_face(lines: list[int]) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string).group_by_key()
    lines.append(_here() + 1)
    stream.count(store="rows")
    lines.append(_here() + 1)
    builder.add_state_store(Stores.key_value("rows"))
    builder.build()


def _streams_of_two_serdes(lines: list[int]) -> None:
    builder = StreamsBuilder()
    lines.append(_here() + 1)
    builder.stream("in", value=serdes.string)
    lines.append(_here() + 1)
    builder.stream("in", value=serdes.long)
    builder.build()


def _stream_and_table(lines: list[int]) -> None:
    builder = StreamsBuilder()
    lines.append(_here() + 1)
    builder.stream("in")
    lines.append(_here() + 1)
    builder.table("in")
    builder.build()


def _processors(lines: list[int]) -> None:
    lines.append(_here() + 1)
    topology = Topology().add_source("read", "in")
    lines.append(_here() + 1)
    topology.add_processor("read", _kept, "read")


def _sources(lines: list[int]) -> None:
    lines.append(_here() + 1)
    topology = Topology().add_source("read", "in")
    topology.add_source("again", "in")


def _connected_stores(lines: list[int]) -> None:
    topology = Topology().add_source("read", "in").add_processor("act", _kept, "read")
    lines.append(_here() + 1)
    topology = topology.add_state_store(Stores.key_value("rows"), "act")
    lines.append(_here() + 1)
    topology.add_state_store(Stores.key_value("rows", key=serdes.long), "act")


@pytest.mark.parametrize(
    "write",
    [
        _nodes,
        _repartitions,
        _stores,
        _state_stores,
        _a_store_of_each_face,
        _streams_of_two_serdes,
        _stream_and_table,
        _processors,
        _sources,
        _connected_stores,
    ],
)
def test_both_places_are_said(write: Callable[[list[int]], object]) -> None:
    said, lines = _refused(write)
    places = [f" at {__file__}:{line}" for line in lines]
    assert places
    for place in places:
        assert place in said, said


def test_topologies_that_are_written_elsewhere_are_equal() -> None:
    one = Topology().add_source("read", "in")
    other = Topology().add_source("read", "in")
    assert one == other
    assert one.lines != other.lines
