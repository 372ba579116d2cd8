"""Where an operator hands records that came too late, if the program takes them as a stream.

Such a stream is one more child of the operator's node, known by its name; results go to the others.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.topology.context.context import Receive
from headrace.topology.operators.stored_rows import to_all

_SUFFIX = "-late"


def late_name(node: str) -> str:
    """The name of the child that takes the late records of a node.

    Example:
        >>> late_name("hourly")
        'hourly-late'
    """
    return node + _SUFFIX


def split_late(node: str, children: Mapping[str, Receive]) -> tuple[Receive | None, Receive | None]:
    """Tell the children that take results from the one that takes late records.

    Args:
        children: what follows it, as the operator's context has it.

    Returns:
        What takes a result, and what takes a late record; each None where nothing follows.

    Example:
        >>> results, late = split_late("hourly", {"hourly-late": print})
        >>> results is None, late is print
        (True, True)
    """
    late = children.get(late_name(node))
    results = tuple(take for name, take in children.items() if name != late_name(node))
    return (to_all(results) if results else None), late
