"""A small notation for topologies that were made at random, and its reading.

One call a line: ``operation result input name arguments..``, "-" for what is not given. The same
lines were run against Kafka Streams to get the texts that ours is compared with.
"""

from __future__ import annotations

from typing import Any

from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.graph.materialized import Materialized

_STEPS = {
    "filter", "filter_not", "map", "map_values", "flat_map", "flat_map_values", "select_key",
    "peek", "for_each", "group_by",
}  # fmt: skip
_FOLDS: dict[str, tuple[Any, ...]] = {"count": (), "reduce": (max,), "aggregate": (str, max)}


def build(program: str) -> StreamsBuilder:
    """Make the calls of a program."""
    builder = StreamsBuilder()
    values: dict[str, Any] = {}
    for line in program.splitlines():
        operation, result, source, name, *rest = line.split(" ")
        given = None if name == "-" else name
        if operation == "split":
            values |= _split(values[source], given, result, rest[0])
        elif operation in ("stream", "table"):
            values[result] = _read(builder, operation, given, rest)
        else:
            values[result] = _call(values, operation, values[source], given, rest)
    return builder


def _read(builder: StreamsBuilder, operation: str, name: str | None, rest: list[str]) -> Any:
    if operation == "stream":
        return builder.stream(rest[0].split(","), name=name)
    return builder.table(rest[1], name=name, store=_store(rest))


def _call(
    values: dict[str, Any], operation: str, source: Any, name: str | None, rest: list[str]
) -> Any:
    if operation in _STEPS:
        return getattr(source, operation)(max, name=name)
    if operation in _FOLDS:
        return getattr(source, operation)(*_FOLDS[operation], name=name, store=_store(rest))
    if operation == "to_table":
        return source.to_table(name=name, store=_store(rest))
    if operation == "merge":
        return source.merge(values[rest[0]], name=name)
    if operation == "to":
        return source.to(rest[0], name=name)
    if operation in ("t_filter", "t_map_values"):
        return getattr(source, operation.removeprefix("t_"))(max, name=name)
    assert operation in ("group_by_key", "repartition", "to_stream"), operation
    return getattr(source, operation)(name=name)


def _store(rest: list[str]) -> str | Materialized | None:
    if rest[0] == "-":
        return None
    return Materialized() if rest[0] == "with" else rest[0]


def _split(stream: Any, name: str | None, result: str, branches: str) -> dict[str, Any]:
    *named, last = branches.split(",")
    split = stream.split(name=name)
    for branch in named:
        split.branch(max, name=None if branch == "-" else branch)
    if last == "none":
        streams = split.no_default_branch()
    else:
        streams = split.default_branch(name=None if last == "-" else last)
    return {f"{result}_{i}": streams[key] for i, key in enumerate(sorted(streams))}
