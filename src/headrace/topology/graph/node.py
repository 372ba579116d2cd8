"""A node of the logical graph, and those at its edges: what reads topics, and what writes them.

A node says of itself what others need to know: what it reads, keeps, changes and needs are
properties of its class. Who asks does not ask which class it is; only `topology/compile` does,
where each has its own lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from headrace.topology.context.operator_spec import Bind, RowKind
from headrace.topology.errors import Arguments
from headrace.topology.external_sink import ExternalSink
from headrace.topology.graph.fold import Combining, Fold
from headrace.topology.serdes import Serde

Function = Callable[..., Any]
AnySerde = Serde[Any]
Serdes = tuple[AnySerde | None, AnySerde | None]
OffsetReset = Literal["earliest", "latest"]


class Binder(Protocol):
    """Tells serdes the topics that they are used with (see `graph.binding`)."""

    @property
    def part(self) -> Bind:
        """Fills in a serde that an operator uses itself."""

    def serdes(
        self, key: AnySerde | None, value: AnySerde | None, topic: str, *, internal: bool
    ) -> Serdes:
        """The serdes of keys and values as they are used with a topic."""


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a topology: its unique name and the names of the nodes that feed it."""

    name: str
    parents: tuple[str, ...] = ()

    # The edges of the graph.

    @property
    def as_source(self) -> Source | None:
        """The node itself where it reads topics for its task."""
        return None

    @property
    def as_sink(self) -> Sink | None:
        """The node itself where it writes to a topic, and nothing follows it."""
        return None

    @property
    def reads_topics(self) -> tuple[str, ...]:
        """The topics that it reads."""
        return ()

    @property
    def writes_topic(self) -> str | None:
        """The topic that it writes to, where that is the same one for all records."""
        return None

    @property
    def topic_serdes(self) -> Serdes:
        """The serdes of those topics' keys and values, where they are named."""
        return (None, None)

    @property
    def internal(self) -> bool:
        """Whether those topics are of the topology's own making."""
        return False

    @property
    def is_global(self) -> bool:
        """Whether it is part of a global table, and of no task."""
        return False

    def bound(self, binder: Binder) -> Node:  # noqa: ARG002
        """The same with the serdes as they are used with its topics."""
        return self

    # What it reads of a record, and what it changes.

    @property
    def reads_key(self) -> bool:
        """Whether it hands the decoded key to a user function."""
        return False

    @property
    def reads_value(self) -> bool:
        """Whether it hands the decoded value to a user function, or keeps it."""
        return False

    @property
    def needs_old(self) -> bool:
        """Whether it reads the value that a table above it forwarded before."""
        return False

    @property
    def needs_record(self) -> bool:
        """Whether it asks for the record that is being processed."""
        return False

    @property
    def is_timed(self) -> bool:
        """Whether what it does depends on stream time, and so on when each record comes."""
        return False

    @property
    def gathers(self) -> bool:
        """Whether it gathers records, and lets their results go on together."""
        return False

    @property
    def gives_up_order(self) -> bool:
        """Whether it may gather records though their results meet what came another way."""
        return False

    @property
    def answer(self) -> str | None:
        """What it says of records that fail in it; None leaves it to the handler."""
        return None

    @property
    def changes_key(self) -> bool:
        """Whether records may have another key behind it than in front of it."""
        return False

    @property
    def changes_value(self) -> bool:
        """Whether records may have another value behind it than in front of it."""
        return False

    @property
    def partitioned_like(self) -> str | None:
        """The node above whose partitioning its results have, where it is not that of its input."""
        return None

    @property
    def passes_null_keys(self) -> bool:
        """Whether records without a key go through it, so that those above it decide."""
        return False

    @property
    def is_null_key_filter(self) -> bool:
        """Whether it is what lets no record without a key into a repartition topic."""
        return False

    def keeping_null_keys(self) -> Node:
        """The same where it lets records without a key pass after all."""
        return self

    @property
    def leaves_value_alone(self) -> bool:
        """Whether nobody can have got hold of a value that came through it alone."""
        return False

    @property
    def is_unseeing(self) -> bool:
        """Whether no user function gets to see a record in it."""
        return False

    # What it keeps.

    @property
    def keeps_nothing(self) -> bool:
        """Whether what becomes of a record in it depends on that record alone."""
        return False

    @property
    def stores(self) -> tuple[str, ...]:
        """The names of the stores that it reads or writes, its own ones first."""
        return ()

    @property
    def view_stores(self) -> tuple[str, ...]:
        """The stores that must be at hand to read the rows of the table that it makes."""
        return self.stores

    @property
    def is_table(self) -> bool:
        """Whether it makes a table, and not only computes with one."""
        return False

    @property
    def reads_as_table(self) -> bool:
        """Whether it makes a table of records: the last value of each key."""
        return False

    @property
    def tells_old(self) -> bool:
        """Whether it says with each change which value it forwarded before."""
        return False

    @property
    def is_versioned(self) -> bool:
        """Whether it is a table that may forward changes out of order."""
        return False

    @property
    def maps_table(self) -> bool:
        """Whether it computes the rows of a table from those of its parent, and stores none."""
        return False

    @property
    def copies_into(self) -> str | None:
        """The store whose rows are the last values of what it is fed, if it has one."""
        return None

    @property
    def counts(self) -> bool:
        """Whether it counts a grouped stream as a whole, so that partial counts may be added."""
        return False

    @property
    def folds(self) -> Fold | None:
        """What it does to a row of the table that it makes of a grouped stream, if it makes one."""
        return None

    @property
    def combinable(self) -> Fold | None:
        """The same, if partial results of it can be merged."""
        fold = self.folds
        return fold if fold is not None and fold.combines else None

    @property
    def makes_windows(self) -> bool:
        """Whether the rows of its table are windows."""
        return False

    @property
    def follows_windows(self) -> bool:
        """Whether its time is that of the windows above, also where their changes are dropped."""
        return False

    @property
    def close_wait_ms(self) -> int | None:
        """How far stream time is past a window's end when it is closed; None where it never is."""
        return None

    @property
    def word(self) -> str:
        """What fills its store, as it is kept with what is deployed; never changes."""
        return type(self).__name__

    @property
    def row_kind(self) -> RowKind:
        """What the rows of its store depend on, where its word alone does not say it."""
        return RowKind("")

    @property
    def is_processor(self) -> bool:
        """Whether it is the user's own code, which may be given stores."""
        return False

    @property
    def writes_outside(self) -> ExternalSink | None:
        """The table outside of Kafka that it writes, if any: then it is all that its task does."""
        return None

    @property
    def reads_directly(self) -> bool:
        """Whether it writes such a table and has no topic of its own in front."""
        return False

    def looks_anywhere(self, store: str) -> bool:  # noqa: ARG002
        """Whether it may look for any key in a store, and not for that of its record alone."""
        return False

    def fills(self, store: str) -> bool:  # noqa: ARG002
        """Whether it says what the rows of a store are, where several nodes use that."""
        return False

    def kept_in(self, store: str) -> Node:
        """A table with a store that it was not given at first."""
        raise AssertionError(f"{self!r} keeps no rows in {store!r}")

    # What is said of it.

    def store_advice(self, *, reads_topic: bool) -> str:  # noqa: ARG002
        """What to write so that its store has a name of its own.

        Args:
            reads_topic: whether it stands right behind a topic that is read.
        """
        return 'store="..." or name="..." at that step'

    @property
    def repartition_advice(self) -> str | None:
        """What to write so that a repartition topic in front of it has a name of its own."""
        return None

    @property
    def serde_arguments(self) -> Arguments:
        """Which arguments name its serdes, where they are not called ``key`` and ``value``."""
        return {}


@dataclass(frozen=True, slots=True)
class Source(Node):
    """Reads topics. An `internal` source reads a repartition topic that this topology writes."""

    topics: tuple[str, ...] = ()
    key: AnySerde | None = None
    value: AnySerde | None = None
    internal: bool = False
    partitions: int | None = None
    """The partition count asked for, for a repartition topic; None takes it from upstream."""
    timestamps: Function | None = None
    """A timestamp extractor (see `headrace.topology.timestamps`); None takes the setting's."""
    offset_reset: OffsetReset | None = None
    """Where to begin without a committed offset; None takes the consumer's setting."""

    @property
    def as_source(self) -> Source:
        """The node itself."""
        return self

    @property
    def reads_topics(self) -> tuple[str, ...]:
        """The topics."""
        return self.topics

    @property
    def leaves_value_alone(self) -> bool:
        """A value is decoded for it anew."""
        return True

    @property
    def keeps_nothing(self) -> bool:
        """Records come as they are."""
        return True

    @property
    def topic_serdes(self) -> Serdes:
        """Its own."""
        return self.key, self.value

    def bound(self, binder: Binder) -> Node:
        """The same; a source of several topics reads as the first."""
        told = binder.serdes(*self.topic_serdes, self.topics[0], internal=self.internal)
        return _with_serdes(self, told)


@dataclass(frozen=True, slots=True)
class GlobalSource(Node):
    """Reads the topic of a global table: all of it, in every process, and in no task."""

    topic: str = ""
    key: AnySerde | None = None
    value: AnySerde | None = None

    @property
    def reads_topics(self) -> tuple[str, ...]:
        """The topic."""
        return (self.topic,)

    @property
    def is_global(self) -> bool:
        """It is."""
        return True

    @property
    def topic_serdes(self) -> Serdes:
        """Its own."""
        return self.key, self.value

    def bound(self, binder: Binder) -> Node:
        """The same with its topic's serdes."""
        return _with_serdes(self, binder.serdes(*self.topic_serdes, self.topic, internal=False))


@dataclass(frozen=True, slots=True)
class Sink(Node):
    """Writes records to `topic`, or to the topic that ``topic(key, value)`` returns."""

    topic: str | Callable[[Any, Any], str] = ""
    key: AnySerde | None = None
    value: AnySerde | None = None
    internal: bool = False
    partitioner: Function | None = None
    """Called as ``partitioner(topic, key, value, partitions)`` (see `compile.sink`)."""
    combines: Combining | None = None
    """How it folds the records of a key until the next flush; None writes each of them."""
    arguments: Arguments = field(default_factory=dict, compare=False, repr=False)
    """Those of the step that it was added for."""

    @property
    def serde_arguments(self) -> Arguments:
        """As it was given."""
        return self.arguments

    @property
    def as_sink(self) -> Sink:
        """The node itself."""
        return self

    @property
    def writes_topic(self) -> str | None:
        """The topic; None where a function chooses it."""
        return None if callable(self.topic) else self.topic

    @property
    def _asks_user(self) -> bool:
        return callable(self.topic) or self.partitioner is not None

    @property
    def reads_key(self) -> bool:
        """Whether a function chooses the topic or the partition, or folds with it."""
        return self._asks_user or (self.combines is not None and self.combines.fold.adds_with_key)

    @property
    def reads_value(self) -> bool:
        """Whether a function chooses the topic or the partition, or folds it."""
        return self._asks_user or (self.combines is not None and self.combines.fold.reads_value)

    @property
    def is_unseeing(self) -> bool:
        """Whether no function chooses; what folds is given what the topic's bytes give back."""
        return not self._asks_user

    @property
    def topic_serdes(self) -> Serdes:
        """Its own."""
        return self.key, self.value

    def bound(self, binder: Binder) -> Node:
        """The same; one that chooses the topic for each record keeps its serdes."""
        if callable(self.topic):
            return self
        told = binder.serdes(*self.topic_serdes, self.topic, internal=self.internal)
        return _with_serdes(self._with_partials_bound(binder), told)

    def _with_partials_bound(self, binder: Binder) -> Sink:
        """Partial results have the bytes that the changelog has."""
        combines = self.combines
        if combines is None:
            return self
        changelog = f"{combines.store}-changelog"
        _, value = binder.serdes(None, combines.value, changelog, internal=True)
        same = value is combines.value
        return self if same else replace(self, combines=replace(combines, value=value))


def _with_serdes(node: Source | GlobalSource | Sink, told: Serdes) -> Node:
    same = told == (node.key, node.value)
    return node if same else replace(node, key=told[0], value=told[1])
