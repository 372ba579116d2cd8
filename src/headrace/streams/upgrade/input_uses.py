"""What each input of an application fills: tables, other stores, repartition topics.

A reset deletes all stores and repartition topics, so an input that is not read again from its
beginning is missing in what it filled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from headrace.streams.plan.plan import SubPlan
from headrace.streams.seams.group_facts import Target
from headrace.streams.start_errors import ResetRefusedError
from headrace.topology.graph.graph import Node


@dataclass(frozen=True, slots=True)
class InputUse:
    """What an input fills.

    Args:
        tables: the stores and repartition topics that get its records as changes of a table.
        streamed: those that get them as records of a stream.
        is_streamed: whether its records are used as records of a stream at all.
    """

    tables: tuple[str, ...] = ()
    streamed: tuple[str, ...] = ()
    is_streamed: bool = False

    @property
    def is_table(self) -> bool:
        """Whether it is read as a table that is stored, and only as a table."""
        return bool(self.tables) and not self.is_streamed


def input_uses(plans: Sequence[SubPlan]) -> Mapping[str, InputUse]:
    """Find out what the inputs fill, by topic; through repartition topics too."""
    nodes = {n.name: n for plan in plans for n in plan.program.sub_topology.nodes}
    edges = _edges(nodes.values())
    owners = _owners(nodes.values())
    uses = {}
    sources = [n for n in nodes.values() if n.as_source is not None and not n.internal]
    for topic in dict.fromkeys(t for source in sources for t in source.reads_topics):
        starts = [source for source in sources if topic in source.reads_topics]
        uses[topic] = _use(starts, edges, owners)
    return uses


def _edges(nodes: Iterable[Node]) -> Mapping[str, Sequence[Node]]:
    """The nodes that each node feeds; a repartition topic is an edge too."""
    nodes = tuple(nodes)
    readers = {t: n for n in nodes if n.as_source and n.internal for t in n.reads_topics}
    found: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for parent in node.parents:
            found[parent].append(node)
        if node.internal and node.writes_topic in readers:
            found[node.name].append(readers[node.writes_topic])
    return found


def _owners(nodes: Iterable[Node]) -> Mapping[str, str]:
    """The table that each store holds, by the store: other nodes only read it."""
    owners: dict[str, str] = {}
    for node in nodes:
        if node.is_table:
            for store in node.stores:
                owners.setdefault(store, node.name)
    return owners


def _filled(node: Node, owners: Mapping[str, str]) -> Iterable[str]:
    """The stores and the repartition topic that a node writes."""
    if node.internal and node.as_sink is not None and node.writes_topic is not None:
        yield node.writes_topic
    for store in node.stores:
        if node.is_processor or owners.get(store, node.name) == node.name:
            yield store


def _use(
    starts: Iterable[Node], edges: Mapping[str, Sequence[Node]], owners: Mapping[str, str]
) -> InputUse:
    filled: dict[bool, dict[str, None]] = {True: {}, False: {}}
    is_streamed = False
    seen: set[tuple[str, bool]] = set()
    left = [(node, False) for node in starts]
    between: dict[str, None] = {}
    while left:
        node, as_table = left.pop()
        as_table = as_table or node.reads_as_table
        if (node.name, as_table) in seen:
            continue
        seen.add((node.name, as_table))
        stores = dict.fromkeys(_filled(node, owners))
        is_internal_sink = node.internal and node.as_sink is not None
        if not as_table and is_internal_sink:
            between |= stores  # whether a table follows is seen later
        else:
            filled[as_table] |= stores
        following = edges.get(node.name, ())
        if not as_table and ((stores and not is_internal_sink) or not following):
            is_streamed = True
        left += [(child, as_table) for child in following]
    # A repartition topic in front of tables alone has changes of tables.
    filled[not is_streamed] |= between
    return InputUse(tuple(filled[True]), tuple(filled[False]), is_streamed)


def refuse_missing_rows(
    uses: Mapping[str, InputUse], chosen: AbstractSet[str], target: Target
) -> None:
    """Check that a reset leaves no store without rows of an input that it does not read again.

    Args:
        uses: what each input fills.
        chosen: the inputs that are set; others stay at their offsets.
        target: where those are set to.

    Raises:
        ResetRefusedError: it would.
    """
    for topic, use in uses.items():
        if topic not in chosen and use.streamed and not use.is_table:
            raise ResetRefusedError(
                f"a reset empties {', '.join(use.streamed)}, which {topic} fills, and {topic} "
                "would stay at its offset: its earlier records would be missing there. Add --topic "
                f"{topic}, or leave --topic out to reset all inputs; headrace offsets set moves an "
                "offset afterwards, where they are to be missing. Nothing was done"
            )
        if not use.tables or use.is_table:
            continue
        if topic not in chosen:
            raise ResetRefusedError(
                f"a reset empties {', '.join(use.tables)}, which is filled from {topic}, and "
                f"{topic} is read as a stream too, so it is not set unasked. Add --topic "
                f"{topic}, which processes its records again, or leave --topic out. Nothing was "
                "done"
            )
        if target.kind != "earliest":
            raise ResetRefusedError(
                f"{topic} is read as a table ({', '.join(use.tables)}) and as a stream: set to "
                "another offset than the beginning the table would lack rows. Reset it with --to "
                "beginning, or write the stream to a topic of its own. Nothing was done"
            )
