"""The stores of joins of two streams: their names say the kind of join, and begin with its name.

Another kind of join has other stores, so no name that one gives a join keeps the rows of another
kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.streams.deployed.deployment import DeployedStore

_STEPS = frozenset({"KeepSide", "join of streams"})
_GIVEN = re.compile(r"(.+?)(?:-(outer|left))?-(this|other|shared)-join-store")
_GENERATED = re.compile(r"KSTREAM-(JOIN|OUTER)(THIS|OTHER|SHARED)-([0-9]{10})-store")


@dataclass(frozen=True, slots=True)
class JoinStores:
    """A join and the names of its stores.

    Args:
        base: what the names begin with; None where they are generated.
        number: of the join where they are generated.
    """

    base: str | None
    number: int
    names: frozenset[str]

    @property
    def kind(self) -> str:
        """What it is called: an inner, a left or an outer join."""
        if any(re.search("-outer-this-join-store$|-OUTERTHIS-", name) for name in self.names):
            return "an outer"
        if any(re.search("-outer-other-join-store$|-OUTEROTHER-", name) for name in self.names):
            return "a left"
        return "an inner"


def join_of(store: DeployedStore) -> tuple[str | None, int] | None:
    """The name or the number of the join that a store is of; None where it is of none.

    >>> kept = DeployedStore("op-this-join-store", 0, "", "", "", "", True, (), step="KeepSide")
    >>> join_of(kept)
    ('op', 0)
    """
    if store.step not in _STEPS:
        return None
    generated = _GENERATED.fullmatch(store.name)
    if generated:
        # Both sides of a join have a number, one behind the other.
        return None, int(generated[3]) - (generated[2] == "OTHER")
    given = _GIVEN.fullmatch(store.name)
    return (given[1], 0) if given else None


def changed_joins(
    before: Sequence[DeployedStore], after: Sequence[DeployedStore]
) -> Iterator[tuple[JoinStores, JoinStores]]:
    """The joins that are of another kind under the name or number that they had."""
    old, new = _joins(before), _joins(after)
    for join, was in old.items():
        now = new.get(join)
        if now is not None and now.kind != was.kind:
            yield was, now


def _joins(stores: Sequence[DeployedStore]) -> dict[tuple[str | None, int], JoinStores]:
    names: dict[tuple[str | None, int], set[str]] = {}
    for store in stores:
        join = join_of(store)
        if join is not None:
            names.setdefault(join, set()).add(store.name)
    return {join: JoinStores(*join, frozenset(found)) for join, found in names.items()}
