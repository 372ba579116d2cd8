"""What a step says of itself: the class that every operator's spec derives from.

A spec is frozen, compared by value and shared by all tasks. All that others ask of a step they ask
here, so a new operator overrides what is not so for it, and is entered in no list elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from headrace.topology.context.context import Operator, OperatorContext, TableView
from headrace.topology.context.environment import Answered
from headrace.topology.errors import Arguments
from headrace.topology.external_sink import ExternalSink
from headrace.topology.serdes import Serde

Bind = Callable[..., Serde[Any]]
"""Called as ``bind(serde, topic, is_key=...)``: the serde that is meant, told its topic."""


@dataclass(frozen=True, slots=True)
class RowKind:
    """What the rows of a step's store depend on besides their serdes.

    It is kept with what is deployed, so a kind never changes its name.

    Args:
        kind: of the step.
        spans: of its windows and their kin, in milliseconds, by name.
        fixed: the spans with which rows are misread once they are others.
        unsaid: what a span was in versions that did not say it: a span that comes to a kind that
            is deployed already, with the value by which nothing changes.
    """

    kind: str
    spans: Mapping[str, int] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    unsaid: Mapping[str, int] = field(default_factory=dict)


class OperatorSpec:
    """What a step reads, keeps, changes and needs; the defaults are those of a step of a stream."""

    __slots__ = ()

    def make(self, context: OperatorContext, /) -> Operator:
        """Make the operator of one task."""
        raise NotImplementedError(f"{type(self).__name__} must say what runs: def make(context)")

    def view(self, context: OperatorContext, /) -> TableView | None:  # noqa: ARG002
        """The rows of the table that it makes, or None where it makes none."""
        return None

    def bound(self, bind: Bind, /) -> Self:  # noqa: ARG002
        """The same with the serdes that it uses itself filled in."""
        return self

    # What it reads.

    @property
    def needs_old(self) -> bool:
        """Whether it reads the old values that a table above it forwards."""
        return False

    @property
    def needs_record(self) -> bool:
        """Whether it asks `OperatorContext.task` for the record that is being processed."""
        return False

    @property
    def is_timed(self) -> bool:
        """Whether what it does depends on stream time, and so on when each record comes."""
        return True

    @property
    def gathers(self) -> bool:
        """Whether it gathers records, and lets their results go on together."""
        return False

    @property
    def gives_up_order(self) -> bool:
        """Whether it may gather records though their results meet what came another way."""
        return False

    @property
    def answer(self) -> Answered | None:
        """What it says of records that fail in it; None leaves it to the handler."""
        return None

    # What it makes.

    @property
    def is_table(self) -> bool:
        """Whether its results are changes of a table, with old values."""
        return False

    @property
    def reads_as_table(self) -> bool:
        """Whether it makes a table of records: the last value of each key."""
        return False

    @property
    def is_versioned(self) -> bool:
        """Whether that table may forward changes out of order (see `operators.versioned`)."""
        return False

    @property
    def makes_windows(self) -> bool:
        """Whether the rows of that table are windows."""
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
    def changes_key(self) -> bool:
        """Whether its results may have other keys than the records that they are made of."""
        return False

    @property
    def partitioned_like(self) -> str | None:
        """The node above whose partitioning its results have, where it is not that of its input."""
        return None

    # What it keeps.

    @property
    def row_kind(self) -> RowKind:
        """What the rows of its store depend on."""
        return RowKind(type(self).__name__)

    @property
    def rows_have_its_keys(self) -> bool:
        """Whether its store has the keys of the records that it is given, windows aside."""
        return False

    @property
    def is_processor(self) -> bool:
        """Whether it is the user's own code, which may be given stores."""
        return False

    @property
    def writes_outside(self) -> ExternalSink | None:
        """The table outside of Kafka that it writes, which has a sub-topology of its own then."""
        return None

    @property
    def reads_directly(self) -> bool:
        """Whether that sub-topology has no topic of its own, and reads one of the input."""
        return False

    def looks_anywhere(self, store: str, /) -> bool:  # noqa: ARG002
        """Whether it may look for any key in a store, and not for that of its record alone."""
        return False

    def fills(self, store: str, /) -> bool:  # noqa: ARG002
        """Whether it says what the rows of a store are, where several steps use that."""
        return False

    def kept_in(self, store: str, /) -> Self:
        """The same with the rows of its table kept in a store that it was not given at first."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows in {store!r}")

    # What is said of it.

    store_call: ClassVar[str] = 'store="..." or name="..." at that step'
    """The call that it comes from, with the argument that gives its store a name of its own."""

    def store_advice(self, *, reads_topic: bool) -> str:  # noqa: ARG002
        """The same, of a step that stands right behind a topic that is read, or does not."""
        return self.store_call

    @property
    def serde_arguments(self) -> Arguments:
        """Which arguments of its call name its serdes, where not ``key`` and ``value``."""
        return {}

    @property
    def repartition_advice(self) -> str | None:
        """What to write so that a repartition topic in front of it has a name of its own."""
        return None
