"""Joins of a stream: with another stream, or with a table.

One method for each kind of join; what the other side is decides what else it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from headrace.topology.dsl import ktable
from headrace.topology.dsl.global_table import GlobalKTable
from headrace.topology.dsl.materialized import Materialized, materialized
from headrace.topology.dsl.steps.global_join import global_join
from headrace.topology.dsl.steps.join_nodes import (
    JoinKind,
    StreamJoin,
    add_stream_join,
    add_table_join,
    table_lookup,
)
from headrace.topology.dsl.steps.late import Late
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.operators.joins.stream_join import LateMatch
from headrace.topology.serdes import Serde
from headrace.topology.windows import JoinWindows

if TYPE_CHECKING:
    from headrace.topology.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
R = TypeVar("R")


class OfStreams(TypedDict, Generic[K, V, V2], total=False):
    """What a join of two streams may be given; see `KStream.join`."""

    key: Serde[K] | None
    value: Serde[V] | None
    other_value: Serde[V2] | None
    store: str | Materialized | None
    name: str | None
    late: Late[K, V] | None
    other_late: Late[K, V2] | None


class WithNulls(OfStreams[K, V, V2], total=False):
    """The same of one that has results without a match; see `KStream.left_join`."""

    late_match: LateMatch


class OfTable(TypedDict, Generic[K, V], total=False):
    """What a join with a table may be given."""

    key: Serde[K] | None
    value: Serde[V] | None
    name: str | None
    grace: timedelta | None


class StreamJoins(Generic[K, V]):
    """The part of `KStream` that joins."""

    __slots__ = ()
    _edge: Edge

    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2], R],
        windows: JoinWindows,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[OfStreams[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2], R],
        windows: JoinWindows,
        *,
        with_key: Literal[True],
        **options: Unpack[OfStreams[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: ktable.KTable[K, V2],
        joiner: Callable[[V, V2], R],
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[OfTable[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: ktable.KTable[K, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        with_key: Literal[True],
        **options: Unpack[OfTable[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[V, V2], R],
        *,
        key_mapper: Callable[[K, V], K2 | None],
        with_key: Literal[False] = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...
    @overload
    def join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K, V, V2], R],
        *,
        key_mapper: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        name: str | None = ...,
    ) -> KStream[K, R]: ...

    def join(
        self,
        other: KStream[K, V2] | ktable.KTable[K, V2] | GlobalKTable[Any, V2],
        joiner: Callable[..., R],
        windows: JoinWindows | None = None,
        *,
        with_key: bool = False,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
        grace: timedelta | None = None,
        key_mapper: Callable[[K, V], Any] | None = None,
        late: Late[K, V] | None = None,
        other_late: Late[K, V2] | None = None,
    ) -> KStream[K, R]:
        """Join each record with those of another stream near it in time, or with a row of a table.

        With another stream, both keep their records, and each record is joined with all of the
        other stream that have its key and lie within `windows`, whichever comes first. The result
        has the later timestamp of the two. With a table, each record of this stream is joined with
        the row that the table has at that moment, and the result has the record's timestamp. A
        `GlobalKTable` is looked up likewise, by the key that `key_mapper` tells.

        A record without a value, or a match, has no result; one without a key is left to
        ``null.key.policy``. A side whose key may have changed is partitioned anew, and both sides
        have as many partitions: with a global table neither matters.

        Args:
            other: the other stream, or the table, global or not.
            joiner: called as ``joiner(value, other_value)``.
            windows: how far apart in time records of two streams may lie.
            with_key: call ``joiner(key, value, other_value)`` instead.
            key: serde of keys; None takes that of this stream, or else that of the other.
            value: serde of this stream's values; None takes what it has.
            other_value: serde of the other stream's values; None takes what it has.
            store: what the names of two streams' stores begin with, or their options. A retention
                longer than the windows and their grace lets records be joined that come even later.
            name: what names of nodes and repartition topics begin with, or the node's name where
                the other side is a table; None generates them.
            grace: how long a record waits for late rows of a table that keeps its past
                (``store=Materialized(history=...)``), to be joined with the row of its time.
            key_mapper: called as ``key_mapper(key, value)``, tells the key of a global table's row.
            late: is given this stream's records that came too late to be kept, once they are
                joined with what the other stream still had; nothing that comes will find them.
            other_late: the same with the other stream's records, in the serdes of that one.

        Raises:
            TopologyError: a name is not legal or is taken, or an argument does not go with `other`.

        >>> from datetime import timedelta
        >>> from headrace import JoinWindows, StreamsBuilder, TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> views, clicks = builder.stream("views"), builder.stream("clicks")
        >>> minute = JoinWindows(time_difference=timedelta(minutes=1))
        >>> views.join(clicks, "{}, {}".format, minute, store="pairs", name="pair").to("pairs")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("views").send("ann", "page", timestamp=0)
        ...     driver.input("clicks").send("ann", "button", timestamp=50_000)
        ...     driver.input("clicks").send("ann", "link", timestamp=70_000)
        ...     [(r.key, r.value, r.timestamp) for r in driver.output("pairs").read_all()]
        [('ann', 'page, button', 50000)]
        """
        return self._joined(
            "inner", other, joiner, windows, with_key=with_key, key=key, value=value,
            other_value=other_value, store=store, name=name, late_match="emit", late=late,
            other_late=other_late, key_mapper=key_mapper, grace=grace,
        )  # fmt: skip

    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V, V2 | None], R],
        windows: JoinWindows,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[WithNulls[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        windows: JoinWindows,
        *,
        with_key: Literal[True],
        **options: Unpack[WithNulls[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: ktable.KTable[K, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[OfTable[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: ktable.KTable[K, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        with_key: Literal[True],
        **options: Unpack[OfTable[K, V]],
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[V, V2 | None], R],
        *,
        key_mapper: Callable[[K, V], K2 | None],
        with_key: Literal[False] = ...,
        name: str | None = ...,
    ) -> KStream[K, R]: ...
    @overload
    def left_join(
        self,
        other: GlobalKTable[K2, V2],
        joiner: Callable[[K, V, V2 | None], R],
        *,
        key_mapper: Callable[[K, V], K2 | None],
        with_key: Literal[True],
        name: str | None = ...,
    ) -> KStream[K, R]: ...

    def left_join(
        self,
        other: KStream[K, V2] | ktable.KTable[K, V2] | GlobalKTable[Any, V2],
        joiner: Callable[..., R],
        windows: JoinWindows | None = None,
        *,
        with_key: bool = False,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
        late_match: LateMatch = "emit",
        grace: timedelta | None = None,
        key_mapper: Callable[[K, V], Any] | None = None,
        late: Late[K, V] | None = None,
        other_late: Late[K, V2] | None = None,
    ) -> KStream[K, R]:
        """As `join`, and a record of this stream that matches nothing is joined with None.

        With another stream that happens as soon as stream time is later than the last time at which
        something could match the record: its own time, the windows' reach and the grace period. A
        result follows all the same if a match comes even later and the record is still kept, unless
        `late_match` is "drop". With a table it happens at once.

        A record without a key is joined with None at once; one without a value has no result. With
        a global table the first goes for a record for which `key_mapper` tells None.

        Args:
            other: the other stream, or the table, global or not.
            joiner: called as ``joiner(value, other_value)``, with None where there is none.
            windows: how far apart in time records of two streams may lie.
            with_key: call ``joiner(key, value, other_value)`` instead.
            key: serde of keys; None takes that of this stream, or else that of the other.
            value: serde of this stream's values; None takes what it has.
            other_value: serde of the other stream's values; None takes what it has.
            store: how the records of two streams are kept, as `join` takes it.
            name: what names begin with, as `join` takes it.
            grace: how long a record waits for late rows of a table, as `join` takes it.
            late_match: what a match makes that comes after the null result: "emit" makes a second
                result, as in Kafka Streams; with "drop" the null result is the last one.
            key_mapper: tells the key to look up in a global table, as `join` takes it.
            late: is given this stream's records that came too late to be kept.
            other_late: the same with the other stream's records.

        Raises:
            TopologyError: as `join`.

        >>> from headrace import StreamsBuilder, TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> users, views = builder.table("users", store="users"), builder.stream("views")
        >>> views.left_join(users, "{} by {}".format, name="name").to("seen")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("views").send("u1", "page")
        ...     driver.input("users").send("u1", "Ann")
        ...     driver.input("views").send("u1", "shop")
        ...     [r.value for r in driver.output("seen").read_all()]
        ['page by None', 'shop by Ann']
        """
        return self._joined(
            "left", other, joiner, windows, with_key=with_key, key=key, value=value,
            other_value=other_value, store=store, name=name, late_match=late_match, late=late,
            other_late=other_late, key_mapper=key_mapper, grace=grace,
        )  # fmt: skip

    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[V | None, V2 | None], R],
        windows: JoinWindows,
        *,
        with_key: Literal[False] = ...,
        **options: Unpack[WithNulls[K, V, V2]],
    ) -> KStream[K, R]: ...
    @overload
    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[[K, V | None, V2 | None], R],
        windows: JoinWindows,
        *,
        with_key: Literal[True],
        **options: Unpack[WithNulls[K, V, V2]],
    ) -> KStream[K, R]: ...

    def outer_join(
        self,
        other: KStream[K, V2],
        joiner: Callable[..., R],
        windows: JoinWindows,
        *,
        with_key: bool = False,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        other_value: Serde[V2] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
        late_match: LateMatch = "emit",
        late: Late[K, V] | None = None,
        other_late: Late[K, V2] | None = None,
    ) -> KStream[K, R]:
        """As `left_join`, and so are the other stream's records that match nothing.

        Args:
            other: the other stream.
            joiner: called as ``joiner(value, other_value)``; one of them may be None.
            windows: how far apart in time records may lie.
            with_key: call ``joiner(key, value, other_value)`` instead.
            key: serde of keys; None takes that of this stream, or else that of the other.
            value: serde of this stream's values; None takes what it has.
            other_value: serde of the other stream's values; None takes what it has.
            store: how the records are kept, as `join` takes it.
            name: what names begin with, as `join` takes it.
            late_match: what a match makes that comes after a null result, as `left_join` takes it.
            late: is given the records of this stream that came too late to be kept.
            other_late: the same with the other stream's records.

        Returns:
            The stream of results.

        Raises:
            TopologyError: as `join`.

        >>> from datetime import timedelta
        >>> from headrace import JoinWindows, StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> texts = {"key": serdes.string, "value": serdes.string}
        >>> sent, paid = builder.stream("sent", **texts), builder.stream("paid", **texts)
        >>> day = JoinWindows(time_difference=timedelta(days=1))
        >>> pairs = sent.outer_join(paid, lambda a, b: (a, b), day, store="bills", name="bill")
        >>> pairs.to("bills", value=serdes.json)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("sent").send("b1", "sent", timestamp=0)
        ...     driver.input("paid").send("b2", "paid", timestamp=0)
        ...     driver.input("sent").send("b3", "sent", timestamp=86_400_001)
        ...     [(r.key, r.value) for r in driver.output("bills").read_all()]
        [('b2', [None, 'paid']), ('b1', ['sent', None])]
        """
        return self._joined(
            "outer", other, joiner, windows, with_key=with_key, key=key, value=value,
            other_value=other_value, store=store, name=name, late_match=late_match, late=late,
            other_late=other_late,
        )  # fmt: skip

    def _joined(
        self,
        kind: JoinKind,
        other: Any,
        joiner: Callable[..., Any],
        windows: JoinWindows | None,
        **options: Any,
    ) -> KStream[Any, Any]:
        key_mapper, grace = options.pop("key_mapper", None), options.pop("grace", None)
        if grace is not None and not isinstance(other, ktable.KTable):
            raise TopologyError(
                "grace= is for joins with a table that keeps its past; two streams have the grace "
                "period of their JoinWindows, and a global table has only present rows"
            )
        if isinstance(other, GlobalKTable):
            options["windows"] = windows
            return self._stream(global_join(self._edge, other, joiner, key_mapper, kind, options))
        if key_mapper is not None:
            raise TopologyError(
                "key_mapper= is for joins with a global table; a stream or a table is joined by "
                "the key that the records have: select_key() gives them another"
            )
        if isinstance(other, ktable.KTable):
            lookup = replace(table_lookup(kind, joiner, windows, options), grace=grace)
            return self._stream(add_table_join(self._edge, other._edge, lookup))
        if not isinstance(other, StreamJoins):
            raise TypeError(
                "a stream joins with a KStream, a KTable or a GlobalKTable, not with a "
                f"{type(other).__name__}"
            )
        if not isinstance(windows, JoinWindows):
            raise TopologyError(
                "a join of two streams takes JoinWindows: how far apart in time records of both "
                f"may lie; it was given {windows!r}"
            )
        kept = materialized(options.pop("store"))
        join = StreamJoin(kind=kind, joiner=joiner, windows=windows, store=kept, **options)
        return self._stream(add_stream_join(self._edge, other._edge, join))

    def _stream(self, edge: Edge) -> KStream[Any, Any]:
        stream: Callable[[Edge], KStream[Any, Any]] = type(self)  # type: ignore[assignment]
        return stream(edge)
