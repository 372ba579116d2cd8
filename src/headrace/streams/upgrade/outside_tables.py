"""What becomes of the tables outside of Kafka where an application's inputs are set anew.

Their positions are theirs: no offset of the group moves one. What is to be done about that, only
who resets the application can say, so each table is named before anything is asked or done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.streams.plan.plan import SubPlan
from headrace.topology.external_sink import ExternalSink


@dataclass(frozen=True, slots=True)
class OutsideTable:
    """A table that a step writes to.

    Args:
        step: the step's name.
        sink: what is shown of the sink.
        name: what its positions are kept under.
        keyed: whether a row takes the place of the one with its key.
        source: the topic that it reads itself; None where there is one in front, which is deleted.
    """

    step: str
    sink: str
    name: str
    keyed: bool = False
    source: str | None = None

    @classmethod
    def all_of(cls, application_id: str, plans: Sequence[SubPlan]) -> tuple[OutsideTable, ...]:
        """Those of an application."""
        found = []
        for plan in plans:
            node = plan.outside
            if node is None or node.writes_outside is None:
                continue
            sink = node.writes_outside
            source = plan.topics.all_sources[0] if node.reads_directly else None
            name = f"{application_id}/{node.name}"
            found.append(cls(node.name, _shown(sink), name, sink.keyed, source))
        return tuple(found)

    def __str__(self) -> str:
        if self.source is not None:
            return (
                f"{self.step}: {self.sink}: its position in {self.source} stays, and what is "
                "before it is NOT written again. For that, empty the table and delete its "
                f"positions (those named '{self.name}') before the next start; files and tables of "
                "a lake have them in themselves, and take another path or step"
            )
        if self.keyed:
            return (
                f"{self.step}: {self.sink}: results are written again under their keys; rows whose "
                "keys do not come again stay: empty it before the next start where they are not to"
            )
        return (
            f"{self.step}: {self.sink}: results are written again, behind the rows that are there: "
            "each that comes again is there TWICE, unless it is emptied before the next start"
        )


def _shown(sink: ExternalSink) -> str:
    kind = type(sink)
    return kind.__name__ if kind.__repr__ is object.__repr__ else repr(sink)


def table_lines(tables: Sequence[OutsideTable]) -> Iterator[str]:
    """Say what becomes of them; nothing where there are none.

    Example:
        >>> for line in table_lines([OutsideTable("keep", "SqliteSink('a.db', 't')", "shop/keep")]):
        ...     print(line[:70])
        Tables outside of Kafka, which are not touched now:
          keep: SqliteSink('a.db', 't'): results are written again, behind the
    """
    if tables:
        yield "Tables outside of Kafka, which are not touched now:"
        yield from (f"  {table}" for table in tables)
