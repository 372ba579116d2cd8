"""Keyword options of joins of a stream, by the kind of the other side."""

from __future__ import annotations

from datetime import timedelta
from typing import Generic, TypedDict, TypeVar

from headrace.topology.dsl.steps.late import Late
from headrace.topology.graph.materialized import Materialized
from headrace.topology.operators.joins.stream_join import LateMatch
from headrace.topology.serdes import Serde

K = TypeVar("K")
V = TypeVar("V")
V2 = TypeVar("V2")


class StreamJoinOptions(TypedDict, Generic[K, V, V2], total=False):
    """Options of an inner join of two streams; see `KStream.join`."""

    key: Serde[K] | None
    value: Serde[V] | None
    other_value: Serde[V2] | None
    store: str | Materialized | None
    name: str | None
    late: Late[K, V] | None
    other_late: Late[K, V2] | None


class OuterJoinOptions(StreamJoinOptions[K, V, V2], total=False):
    """Options of a join of two streams with unmatched results; see `KStream.left_join`."""

    late_match: LateMatch


class TableJoinOptions(TypedDict, Generic[K, V], total=False):
    """Options of a join of a stream with a table; see `KStream.join`."""

    key: Serde[K] | None
    value: Serde[V] | None
    name: str | None
    grace: timedelta | None
