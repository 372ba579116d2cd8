"""What is measured of a worker from outside of its loop: a seam, and silent but on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Usage(NamedTuple):
    """What the worker's process has used; None where the system does not tell."""

    cpu_s: float | None = None
    memory_bytes: int | None = None


class NodeKey(NamedTuple):
    """Where a worker's thread was seen: in a node, or in a function of the user that it called."""

    sub_topology: int
    node: str
    is_user: bool


@dataclass(frozen=True, slots=True)
class Times:
    """About how long the worker's thread was where, in seconds.

    Args:
        nodes: in nodes of the topology.
        busy: by what it did, nodes included as "process".
    """

    nodes: Mapping[NodeKey, float] = field(default_factory=dict)
    busy: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measures:
    """See the module."""

    usage: Callable[[], Usage] = Usage
    times: Callable[[], Times] = Times


NOTHING_MEASURED = Measures()
