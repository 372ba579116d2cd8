"""Joins of a stream: with another stream, or with a table.

One method for each kind of join; what the other side is decides what else it takes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

from headrace.topology.dsl.steps.late import Late
from headrace.topology.graph.materialized import Materialized
from headrace.topology.operators.joins.stream_join import LateMatch
from headrace.topology.serdes import Serde

if TYPE_CHECKING:
    pass

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
R = TypeVar("R")


class StreamJoinOptions(TypedDict, Generic[K, V, V2], total=False):
    """What a join of two streams may be given; see `KStream.join`."""

    key: Serde[K] | None
    value: Serde[V] | None
    other_value: Serde[V2] | None
    store: str | Materialized | None
    name: str | None
    late: Late[K, V] | None
    other_late: Late[K, V2] | None


class OuterJoinOptions(StreamJoinOptions[K, V, V2], total=False):
    """The same of one that has results without a match; see `KStream.left_join`."""

    late_match: LateMatch


class TableJoinOptions(TypedDict, Generic[K, V], total=False):
    """What a join with a table may be given."""

    key: Serde[K] | None
    value: Serde[V] | None
    name: str | None
    grace: timedelta | None
