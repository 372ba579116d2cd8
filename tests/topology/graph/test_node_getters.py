"""Getters of nodes can be created on each Python; 3.14 reads the code of those of dataclasses."""

from __future__ import annotations

import pytest

from headrace.topology.graph import graph


@pytest.mark.parametrize("name", sorted(vars(graph)))
def test_getters_of_dataclasses_are_functions(name: str) -> None:
    """`@dataclass(slots=True)` of Python 3.14 fails on a getter without `__code__`."""
    members = vars(found) if isinstance(found := getattr(graph, name), type) else {}
    getters = [member.fget for member in members.values() if isinstance(member, property)]
    assert [getter for getter in getters if not hasattr(getter, "__code__")] == []
