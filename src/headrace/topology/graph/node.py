"""A node of the logical graph, and its edges to topics: sources and sinks.

A node describes itself: what it reads, stores, changes and requires are properties of its class.
Callers do not check the class. Only `topology/compile` does, because each class has its own
generated lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

from headrace.topology.context.operator_spec import Bind, NodeProperties, RowKind
from headrace.topology.errors import Arguments
from headrace.topology.graph.fold import Combining, Fold
from headrace.topology.serdes import Serde

Function = Callable[..., Any]
AnySerde = Serde[Any]
Serdes = tuple[AnySerde | None, AnySerde | None]
OffsetReset = Literal["earliest", "latest"]


class Binder(Protocol):
    """Binding of serdes to the topics that they are used with (see `graph.binding`)."""

    @property
    def part(self) -> Bind:
        """Function that binds a serde that an operator uses itself."""

    def serdes(
        self, key: AnySerde | None, value: AnySerde | None, topic: str, *, internal: bool
    ) -> Serdes:
        """Return the serdes of keys and values, bound to a topic."""


@dataclass(frozen=True, slots=True)
class Node(NodeProperties):
    """A node of a topology: its unique name, and the names of its parents."""

    name: str
    parents: tuple[str, ...] = ()

    # The edges of the graph.

    @property
    def as_source(self) -> SourceNode | None:
        """The node itself if it reads topics for its task, else None."""
        return None

    @property
    def as_sink(self) -> Sink | None:
        """The node itself if it writes to a topic and has no children, else None."""
        return None

    @property
    def reads_topics(self) -> tuple[str, ...]:
        """Topics that the node reads."""
        return ()

    @property
    def writes_topic(self) -> str | None:
        """Topic that the node writes, or None if a function chooses it for each record."""
        return None

    @property
    def topic_serdes(self) -> Serdes:
        """Key and value serdes of the node's topics; None means the default."""
        return (None, None)

    @property
    def internal(self) -> bool:
        """Whether the node's topics are internal topics of the topology."""
        return False

    is_global: ClassVar[bool] = False
    """Whether the node is part of a global table, and of no task."""

    def bound(self, binder: Binder) -> Node:  # noqa: ARG002
        """Return the node with its serdes bound to its topics."""
        return self

    # Parts of a record that the node reads and changes.

    @property
    def reads_key(self) -> bool:
        """Whether the node passes the decoded key to a user function."""
        return False

    @property
    def reads_value(self) -> bool:
        """Whether the node passes the decoded value to a user function, or stores it."""
        return False

    @property
    def is_timed(self) -> bool:
        """Whether the result depends on stream time, and so on when each record arrives."""
        return False

    @property
    def changes_value(self) -> bool:
        """Whether the node may forward records with another value."""
        return False

    @property
    def passes_null_keys(self) -> bool:
        """Whether the node forwards null keys, so that the nodes upstream decide about them."""
        return False

    @property
    def is_null_key_filter(self) -> bool:
        """Whether the node keeps null keys out of a repartition topic."""
        return False

    def keeping_null_keys(self) -> Node:
        """Return the node in a form that lets null keys pass."""
        return self

    @property
    def leaves_value_alone(self) -> bool:
        """Whether no user code keeps or changes a value that passes through the node."""
        return False

    @property
    def is_pass_through(self) -> bool:
        """Whether no user function sees a record in the node."""
        return False

    # State of the node.

    @property
    def is_stateless(self) -> bool:
        """Whether the result for a record depends on that record alone."""
        return False

    @property
    def stores(self) -> tuple[str, ...]:
        """Names of the stores that the node reads or writes, its own stores first."""
        return ()

    @property
    def view_stores(self) -> tuple[str, ...]:
        """Stores that are needed to read the rows of the node's table."""
        return self.stores

    @property
    def sends_old_values(self) -> bool:
        """Whether the node forwards the previous value with each change."""
        return False

    @property
    def maps_table(self) -> bool:
        """Whether the node computes the rows of a table from its parent's, without a store."""
        return False

    @property
    def copies_into(self) -> str | None:
        """Store whose rows are the last values of the node's input, or None."""
        return None

    @property
    def counts(self) -> bool:
        """Whether the node counts a whole grouped stream, so that partial counts can be added."""
        return False

    @property
    def folds(self) -> Fold | None:
        """Aggregation of a whole grouped stream that the node runs, or None."""
        return None

    @property
    def combinable(self) -> Fold | None:
        """Aggregation of the node, if its partial aggregates can be merged, else None."""
        fold = self.folds
        return fold if fold is not None and fold.combines else None

    @property
    def word(self) -> str:
        """Constant name of the operation that fills the store, part of the deployed topology."""
        return type(self).__name__

    @property
    def row_kind(self) -> RowKind:
        """Further properties that the format of the store's rows depends on, besides `word`."""
        return RowKind("")

    def with_store(self, store: str) -> Node:
        """Return the table's node with a store that it did not have before."""
        raise AssertionError(f"{self!r} keeps no rows in {store!r}")


@dataclass(frozen=True, slots=True)
class SourceNode(Node):
    """Source of topics; an `internal` source reads a repartition topic of this topology."""

    topics: tuple[str, ...] = ()
    key: AnySerde | None = None
    value: AnySerde | None = None
    internal: bool = False
    partitions: int | None = None
    """Requested partition count of a repartition topic; None takes it from upstream."""
    timestamps: Function | None = None
    """Timestamp extractor (see `headrace.topology.timestamps`); None takes the setting's."""
    offset_reset: OffsetReset | None = None
    """Start position without a committed offset; None takes the consumer's setting."""

    leaves_value_alone: ClassVar[bool] = True
    """The source decodes each value for itself."""
    is_stateless: ClassVar[bool] = True
    """Records are forwarded as they are."""

    @property
    def as_source(self) -> SourceNode:
        return self

    @property
    def reads_topics(self) -> tuple[str, ...]:
        return self.topics

    @property
    def topic_serdes(self) -> Serdes:
        return self.key, self.value

    def bound(self, binder: Binder) -> Node:
        """Return the source with bound serdes; several topics use the serdes of the first."""
        bound = binder.serdes(*self.topic_serdes, self.topics[0], internal=self.internal)
        return _with_serdes(self, bound)


@dataclass(frozen=True, slots=True)
class GlobalSource(Node):
    """Source of a global table's topic: read completely by each process, and by no task."""

    topic: str = ""
    key: AnySerde | None = None
    value: AnySerde | None = None

    is_global: ClassVar[bool] = True

    @property
    def reads_topics(self) -> tuple[str, ...]:
        return (self.topic,)

    @property
    def topic_serdes(self) -> Serdes:
        return self.key, self.value

    def bound(self, binder: Binder) -> Node:
        return _with_serdes(self, binder.serdes(*self.topic_serdes, self.topic, internal=False))


@dataclass(frozen=True, slots=True)
class Sink(Node):
    """Sink of records into `topic`, or into the topic that ``topic(key, value)`` returns."""

    topic: str | Callable[[Any, Any], str] = ""
    key: AnySerde | None = None
    value: AnySerde | None = None
    internal: bool = False
    partitioner: Function | None = None
    """Called as ``partitioner(topic, key, value, partitions)`` (see `compile.sink`)."""
    combines: Combining | None = None
    """Pre-aggregation of the records of a key until the next flush; None writes each record."""
    arguments: Arguments = field(default_factory=dict, compare=False, repr=False)
    """Arguments of the DSL call that added the sink."""

    @property
    def serde_arguments(self) -> Arguments:
        return self.arguments

    @property
    def as_sink(self) -> Sink:
        return self

    @property
    def writes_topic(self) -> str | None:
        return None if callable(self.topic) else self.topic

    @property
    def _asks_user(self) -> bool:
        return callable(self.topic) or self.partitioner is not None

    @property
    def reads_key(self) -> bool:
        """Whether a function chooses the topic or partition, or pre-aggregation reads the key."""
        return self._asks_user or (self.combines is not None and self.combines.fold.adds_with_key)

    @property
    def reads_value(self) -> bool:
        """Whether a function chooses the topic or partition, or pre-aggregation reads the value."""
        return self._asks_user or (self.combines is not None and self.combines.fold.reads_value)

    @property
    def is_pass_through(self) -> bool:
        """Whether no function chooses the topic or the partition.

        Pre-aggregation does not count, because it gets what the topic's bytes decode to.
        """
        return not self._asks_user

    @property
    def topic_serdes(self) -> Serdes:
        return self.key, self.value

    def bound(self, binder: Binder) -> Node:
        """Return the sink with bound serdes; unchanged if a function chooses the topic."""
        if callable(self.topic):
            return self
        bound = binder.serdes(*self.topic_serdes, self.topic, internal=self.internal)
        return _with_serdes(self._with_partials_bound(binder), bound)

    def _with_partials_bound(self, binder: Binder) -> Sink:
        combines = self.combines
        if combines is None:
            return self
        changelog = f"{combines.store}-changelog"
        _, value = binder.serdes(None, combines.value, changelog, internal=True)
        same = value is combines.value
        return self if same else replace(self, combines=replace(combines, value=value))


def _with_serdes(node: SourceNode | GlobalSource | Sink, bound: Serdes) -> Node:
    same = bound == (node.key, node.value)
    return node if same else replace(node, key=bound[0], value=bound[1])
