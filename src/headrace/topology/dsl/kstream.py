"""A stream of records, and what can be done with each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, overload

from typing_extensions import TypeVar

from headrace.topology.arguments import checked
from headrace.topology.dsl import branched, grouped, ktable
from headrace.topology.dsl.materialized import Materialized, materialized
from headrace.topology.dsl.methods.calling import Calling
from headrace.topology.dsl.steps.dead_letters import add_dead_letters
from headrace.topology.dsl.steps.external_sink import add_external_sink
from headrace.topology.dsl.steps.merging import merged
from headrace.topology.dsl.steps.table_nodes import to_table
from headrace.topology.errors import TopologyError
from headrace.topology.external_sink import ExternalSink
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Function, Sink, Stateless, StatelessOp
from headrace.topology.naming import legal
from headrace.topology.serdes import Serde

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2", default=Any)
V2 = TypeVar("V2", default=Any)
"""Nobody knows what a lambda forwards: then they are Any."""


@checked
class KStream(Calling[K, V]):
    """Records, one after the other; each method adds a step behind this stream.

    Functions take ``(key, value)``; those of the ``*_values`` steps take the value alone, unless
    ``with_key`` is set. They must not change what they are given. A stream may have several
    followers: each of them sees every record.

    >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
    >>> builder = StreamsBuilder()
    >>> lines = builder.stream("lines", value=serdes.string)
    >>> words = lines.flat_map_values(str.split, name="split")
    >>> by_word = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    >>> by_word.count(store="counts", name="count").to_stream().to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input("lines").send(None, "to be or not to be")
    ...     dict(driver.store("counts"))
    {'be': 2, 'not': 1, 'or': 1, 'to': 2}
    """

    __slots__ = ("_edge",)

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def __repr__(self) -> str:
        return f"<KStream of {self._edge}>"

    def filter(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KStream[K, V]:
        """Keep the records for which the predicate holds.

        Args:
            predicate: called as ``predicate(key, value)``.
            name: name of the node; None generates one.
        """
        return KStream(self._added("filter", "FILTER", predicate, name))

    def filter_not(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> KStream[K, V]:
        """Keep the records for which the predicate does not hold.

        Args:
            predicate: called as ``predicate(key, value)``.
            name: name of the node; None generates one.
        """
        return KStream(self._added("filter_not", "FILTER", predicate, name))

    def map(
        self, mapper: Callable[[K, V], tuple[K2, V2]], *, name: str | None = None
    ) -> KStream[K2, V2]:
        """Make another record of each.

        Args:
            mapper: called as ``mapper(key, value)``, returns the new key and value.
            name: name of the node; None generates one.
        """
        edge = self._added("map", "MAP", mapper, name)
        return KStream(replace(edge, key=None, value=None, rekeyed=True))

    @overload
    def map_values(
        self,
        mapper: Callable[[V], V2],
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], V2], *, with_key: Literal[True], name: str | None = None
    ) -> KStream[K, V2]: ...

    def map_values(
        self, mapper: Callable[..., V2], *, with_key: bool = False, name: str | None = None
    ) -> KStream[K, V2]:
        """Make another value of each; the key stays, so nothing is partitioned anew.

        Args:
            mapper: called as ``mapper(value)``.
            with_key: call ``mapper(key, value)`` instead.
            name: name of the node; None generates one.
        """
        edge = self._added("map_values", "MAPVALUES", mapper, name, with_key=with_key)
        return KStream(replace(edge, value=None))

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> KStream[K2, V2]:
        """Make any number of records of each.

        Args:
            mapper: called as ``mapper(key, value)``, returns pairs of a key and a value.
            name: name of the node; None generates one.
        """
        edge = self._added("flat_map", "FLATMAP", mapper, name)
        return KStream(replace(edge, key=None, value=None, rekeyed=True))

    @overload
    def flat_map_values(
        self,
        mapper: Callable[[V], Iterable[V2]],
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
    ) -> KStream[K, V2]: ...
    @overload
    def flat_map_values(
        self,
        mapper: Callable[[K, V], Iterable[V2]],
        *,
        with_key: Literal[True],
        name: str | None = None,
    ) -> KStream[K, V2]: ...

    def flat_map_values(
        self,
        mapper: Callable[..., Iterable[V2]],
        *,
        with_key: bool = False,
        name: str | None = None,
    ) -> KStream[K, V2]:
        """Make any number of values of each, all under the same key.

        Args:
            mapper: called as ``mapper(value)``, returns values.
            with_key: call ``mapper(key, value)`` instead.
            name: name of the node; None generates one.
        """
        edge = self._added("flat_map_values", "FLATMAPVALUES", mapper, name, with_key=with_key)
        return KStream(replace(edge, value=None))

    def select_key(
        self, mapper: Callable[[K, V], K2], *, name: str | None = None
    ) -> KStream[K2, V]:
        """Give each record another key.

        Args:
            mapper: called as ``mapper(key, value)``, returns the new key.
            name: name of the node; None generates one.
        """
        edge = self._added("select_key", "KEY-SELECT", mapper, name)
        return KStream(replace(edge, key=None, rekeyed=True))

    def peek(self, action: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Do something with each record and let it pass.

        Args:
            action: called as ``action(key, value)``; called again where a record is processed
                again after a failure.
            name: name of the node; None generates one.
        """
        return KStream(self._added("peek", "PEEK", action, name))

    def for_each(self, action: Callable[[K, V], object], *, name: str | None = None) -> None:
        """Do something with each record; nothing can follow.

        Args:
            action: called as ``action(key, value)``; called again where a record is processed
                again after a failure.
            name: name of the node; None generates one.
        """
        self._added("for_each", "FOREACH", action, name)

    def print(self, *, label: str | None = None, name: str | None = None) -> None:
        """Write each record to the standard output, as ``[label]: key, value``.

        Args:
            label: what stands in front; None takes the name of the node that comes before.
            name: name of the node; None generates one.
        """
        self._added(
            "print", "PRINTER", None, name, label=self._edge.node if label is None else label
        )

    def merge(self, other: KStream[K, V], *, name: str | None = None) -> KStream[K, V]:
        """Put two streams into one; the order between them is not defined.

        Args:
            other: a stream of the same builder.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the other stream comes from another builder.
        """
        return KStream(merged(self._edge, other._edge, name))

    def split(self, *, name: str | None = None) -> branched.BranchedKStream[K, V]:
        """Begin to send each record to one of several streams.

        Args:
            name: what the names of the branches begin with; None generates it.

        Returns:
            What the branches are added to.
        """
        return branched.BranchedKStream(self._edge, name)

    def repartition(
        self,
        *,
        partitions: int | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Send the records through an internal topic, so that equal keys come together.

        Args:
            partitions: partition count of the topic; None takes it from upstream.
            key: serde of the topic's keys; None takes that of the stream.
            value: serde of the topic's values; None takes that of the stream.
            name: what the topic is named after; None generates it.

        Raises:
            TopologyError: the name is not legal or is taken, or the count is not positive.
        """
        if partitions is not None and partitions < 1:
            raise TopologyError(f"repartition() was given {partitions} partitions; give at least 1")
        edge = self._with_serdes(key, value)
        # Unlike elsewhere, a given name uses up no number here.
        prefix = edge.draft.names.node("KSTREAM-REPARTITION-") if name is None else legal(name)
        return KStream(edge.repartitioned(prefix, partitions=partitions))

    def to(
        self,
        topic: str | Callable[[K, V], str],
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        partitioner: Function | None = None,
        name: str | None = None,
    ) -> None:
        """Write the records to a topic, under their own timestamps and headers.

        Args:
            topic: the topic, or a function that is called as ``topic(key, value)`` and returns it.
            key: serde of keys; None takes that of the stream.
            value: serde of values; None takes that of the stream.
            partitioner: called as ``partitioner(topic, key, value, partitions)``; returns a
                partition, several in a list, an empty list to write nowhere, or None for that of
                the key.
            name: name of the node; None generates one.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        edge = self._with_serdes(key, value)
        node_name = edge.draft.names.node("KSTREAM-SINK-", name)
        target = topic if callable(topic) else legal(topic, "topic")
        edge.draft.add(
            Sink(node_name, (edge.node,), target, edge.key, edge.value, partitioner=partitioner)
        )

    def to_dead_letters(
        self, reason: str | Callable[[K, V], str], *, name: str | None = None
    ) -> None:
        """Write a dead letter for each record, with a reason; nothing can follow.

        It goes to the topic of the setting ``errors.dead.letter.queue.topic.name``, and is what a
        record that fails becomes there: the bytes of the input record, and headers with the reason
        as ``__streams.errors.message`` and with the place of the input record.

        Args:
            reason: the text, or a function that is called as ``reason(key, value)`` and returns it.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the reason is neither or is empty, or a name is not legal or is taken.
                Without the setting the application does not start.

        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key=serdes.string, value=serdes.json)
        >>> orders.filter(lambda _, order: order["price"] < 0).to_dead_letters(
        ...     reason=lambda key, order: f"order {key} has the price {order['price']}"
        ... )
        >>> settings = {"errors.dead.letter.queue.topic.name": "dead-letters"}
        >>> with TopologyTestDriver(builder.build(), settings) as driver:
        ...     driver.input("orders").send("o1", {"price": -5})
        ...     letter = driver.output("dead-letters", value=serdes.json).read()
        >>> letter.value, dict(letter.headers)["__streams.errors.message"]
        ({'price': -5}, b'order o1 has the price -5')
        """
        add_dead_letters(self._edge, reason, name)

    def to_sink(
        self,
        sink: ExternalSink,
        *,
        name: str,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        direct: bool = False,
    ) -> None:
        """Write each record to a table outside of Kafka, exactly once.

        The records go through a topic of their own, named after the step. A task of its own reads
        it, and its commit is the table's: rows and the position in the topic are one transaction.

        Args:
            sink: where to, such as a `SqliteSink`.
            name: of the step; positions are kept under the ``application.id`` and this name, so
                both stay as they are.
            key: serde of the topic's keys; None takes that of the stream.
            value: serde of the topic's values; None takes that of the stream.
            direct: whether there is no such topic: the task reads that of the stream itself, with
                steps in between that have no state. It is one topic alone, so no merged one, and
                nothing else may be made of it then.

        Raises:
            TopologyError: it is no sink, the name is not legal or is taken, or there are serdes for
                a topic that there is none of; `StreamsBuilder.build` says where it cannot be
                direct.

        Example:
            >>> from headrace import SqliteSink, StreamsBuilder, TopologyTestDriver
            >>> builder = StreamsBuilder()
            >>> orders = SqliteSink("shop.db", "orders", columns={"id": int, "price": float})
            >>> builder.stream("orders").to_sink(orders, name="store-orders")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("orders").send(None, {"id": 7, "price": 9.5})
            ...     [row.value for row in driver.sink("store-orders").rows]
            [{'id': 7, 'price': 9.5}]
        """
        if direct and (key is not None or value is not None):
            raise TopologyError(
                f"to_sink({name!r}, direct=True) has no topic of its own, whose serdes key= and "
                "value= are; leave them out, and give serdes to stream()"
            )
        add_external_sink(self._with_serdes(key, value), sink, name, direct=direct)

    def to_table(
        self,
        *,
        store: str | Materialized | None = None,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> ktable.KTable[K, V]:
        """Read the stream as a table: the last value of each key, a null value deletes the row.

        Args:
            store: name or options of the store; a table that is given no name is not stored.
            key: serde of keys; None takes that of the stream.
            value: serde of values; None takes that of the stream.
            name: name of the node, and of the topic if the key has changed; None generates it.

        Raises:
            TopologyError: a name is not legal or is taken.
        """
        return ktable.KTable(to_table(self._with_serdes(key, value), materialized(store), name))

    def group_by_key(
        self,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> grouped.KGroupedStream[K, V]:
        """Group the records by the key that they have.

        Args:
            key: serde of keys; None takes that of the stream.
            value: serde of values; None takes that of the stream.
            name: what a repartition topic is named after; None takes the store's name.

        Raises:
            TopologyError: the name is not legal.
        """
        given = None if name is None else legal(name)
        return grouped.KGroupedStream(self._with_serdes(key, value), given)

    def group_by(
        self,
        selector: Callable[[K, V], K2],
        *,
        key: Serde[K2] | None = None,
        value: Serde[V] | None = None,
        name: str | None = None,
    ) -> grouped.KGroupedStream[K2, V]:
        """Give each record another key and group the records by it.

        Args:
            selector: called as ``selector(key, value)``, returns the new key.
            key: serde of the new keys; None takes the setting ``default.key.serde``.
            value: serde of values; None takes that of the stream.
            name: name of the node, and of the repartition topic; None generates the one and takes
                the store's name for the other.

        Raises:
            TopologyError: the name is not legal or is taken.
        """
        rekeyed: KStream[K2, V] = self.select_key(selector, name=name)
        return grouped.KGroupedStream(rekeyed._with_serdes(key, value), name)

    def _added(
        self,
        op: StatelessOp,
        kind: str,
        function: Function | None,
        name: str | None,
        *,
        with_key: bool = True,
        label: str | None = None,
    ) -> Edge:
        node_name = self._edge.draft.names.node(f"KSTREAM-{kind}-", name)
        return self._edge.then(
            Stateless(node_name, (self._edge.node,), op, function, with_key, label)
        )

    def _with_serdes(self, key: Serde[Any] | None, value: Serde[Any] | None) -> Edge:
        edge = self._edge
        return replace(
            edge,
            key=edge.key if key is None else key,
            value=edge.value if value is None else value,
        )
