"""Base classes of nodes and operator specs: the properties by which other modules treat them.

A spec is frozen, compared by value and shared by all tasks. Other modules read these properties
only, so a new operator overrides the properties that differ and needs no entry in any list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from headrace.topology.context.context import Operator, OperatorContext, TableView
from headrace.topology.context.environment import FailureReaction
from headrace.topology.errors import Arguments
from headrace.topology.external_sink import ExternalSink
from headrace.topology.serdes import Serde

Bind = Callable[..., Serde[Any]]
"""Function ``bind(serde, topic, is_key=...)`` that returns the serde to use for that topic."""


@dataclass(frozen=True, slots=True)
class RowKind:
    """Properties of an operator that determine the meaning of its stored rows, besides the serdes.

    It is stored with the deployed topology, so the name of a kind never changes.

    Args:
        kind: Kind of the operator.
        spans: Durations such as the window size, in milliseconds, by name.
        fixed: Names of the spans that cannot change without making stored rows invalid.
        unrecorded: Values of spans that older versions did not record: for a span that is added to
            a deployed kind, the value that preserves its behavior.
    """

    kind: str
    spans: Mapping[str, int] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    unrecorded: Mapping[str, int] = field(default_factory=dict)


class NodeProperties:
    """Properties of a node, and of the operator that it runs; the defaults suit a stream."""

    __slots__ = ()

    # Inputs.

    @property
    def needs_old(self) -> bool:
        """Whether it reads the old values that an upstream table forwards."""
        return False

    needs_record: ClassVar[bool] = False
    """Whether it reads the record that is being processed, from `OperatorContext.task`."""
    batches_records: ClassVar[bool] = False
    """Whether it collects records and forwards their results together."""

    @property
    def allows_reordering(self) -> bool:
        """Whether it may collect records even if their results meet records from another path."""
        return False

    @property
    def failure_reaction(self) -> FailureReaction | None:
        """Reaction to failed records; None leaves it to the handler."""
        return None

    # Results.

    @property
    def is_table(self) -> bool:
        """Whether it makes a table, rather than only reading a table."""
        return False

    reads_as_table: ClassVar[bool] = False
    """Whether it makes a table from records: the last value of each key."""
    is_versioned: ClassVar[bool] = False
    """Whether its table may forward changes out of order (see `operators.versioned`)."""

    @property
    def makes_windows(self) -> bool:
        """Whether the rows of its table are windows."""
        return False

    @property
    def follows_windows(self) -> bool:
        """Whether it uses the time of the upstream windows even if their changes are dropped."""
        return False

    @property
    def close_wait_ms(self) -> int | None:
        """Delay from a window's end to its close, in stream time; None if it never closes."""
        return None

    @property
    def changes_key(self) -> bool:
        """Whether its results may have other keys than their input records."""
        return False

    @property
    def partitioned_like(self) -> str | None:
        """Upstream node whose partitioning its results have; None for the input's."""
        return None

    # State.

    is_processor: ClassVar[bool] = False
    """Whether it runs a user's processor, which can be connected with stores."""

    @property
    def external_sink(self) -> ExternalSink | None:
        """External sink that it writes to, in a separate sub-topology; None if it has none."""
        return None

    @property
    def reads_directly(self) -> bool:
        """Whether the sub-topology of its external sink reads no repartition topic."""
        return False

    def reads_any_key(self, store: str, /) -> bool:  # noqa: ARG002
        """Whether it may read any key of a store, not only the key of its record."""
        return False

    def fills(self, store: str, /) -> bool:  # noqa: ARG002
        """Whether it determines the row format of a store that several nodes use."""
        return False

    # Advice in messages.

    store_call: ClassVar[str] = 'store="..." or name="..." at that step'
    """DSL call of the operator, with the argument that names its store."""

    def store_advice(self, *, reads_topic: bool) -> str:  # noqa: ARG002
        """Return the code that names its store; `reads_topic` if it directly follows a source."""
        return self.store_call

    @property
    def serde_arguments(self) -> Arguments:
        """Names of the call's arguments that contain serdes, if not ``key`` and ``value``."""
        return {}

    repartition_advice: ClassVar[str | None] = None
    """Advice on how to name the repartition topic before it, or None."""


class OperatorSpec(NodeProperties):
    """Inputs, state, results and requirements of an operator."""

    __slots__ = ()

    def make(self, context: OperatorContext, /) -> Operator:
        raise NotImplementedError(f"{type(self).__name__} must define make(context)")

    def view(self, context: OperatorContext, /) -> TableView | None:  # noqa: ARG002
        """Return the rows of the operator's table, or None if it has no table."""
        return None

    def bound(self, bind: Bind, /) -> Self:  # noqa: ARG002
        """Return a copy that has all of its serdes."""
        return self

    @property
    def is_timed(self) -> bool:
        """Whether it depends on stream time, and therefore on the order of records."""
        return True

    @property
    def row_kind(self) -> RowKind:
        """Kind of the rows in its store."""
        return RowKind(type(self).__name__)

    rows_have_its_keys: ClassVar[bool] = False
    """Whether its store has the keys of its input records, apart from windows."""

    def with_store(self, store: str, /) -> Self:
        """Return a copy whose table is stored in another store."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows in {store!r}")
