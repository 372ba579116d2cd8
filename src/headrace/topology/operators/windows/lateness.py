"""Late records of an operator, which a program can receive as a stream.

That stream is a child of the operator's node with a reserved name; results are forwarded to the
other children.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.topology.context.context import Receive
from headrace.topology.operators.record_cache import to_all

_SUFFIX = "-late"


def late_name(node: str) -> str:
    """Return the name of the child that receives the late records of a node.

    >>> late_name("hourly")
    'hourly-late'
    """
    return node + _SUFFIX


def split_late(node: str, children: Mapping[str, Receive]) -> tuple[Receive | None, Receive | None]:
    """Split children into a receiver of results and a receiver of late records, None without any.

    >>> results, late = split_late("hourly", {"hourly-late": print})
    >>> results is None, late is print
    (True, True)
    """
    late = children.get(late_name(node))
    results = tuple(take for name, take in children.items() if name != late_name(node))
    return (to_all(results) if results else None), late
