"""Telling what is wrong with a sequence: something is missing, there twice, or out of order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tests.chaos.expectations import Expected
from tests.chaos.history import Log, Place
from tests.chaos.verdict import Findings, Kind

T = TypeVar("T", bound=Hashable)


class Seen(NamedTuple):
    """A value of a key, and where it was."""

    offset: int
    value: bytes | None
    timestamp: int


def by_key(log: Log) -> dict[bytes | None, list[Seen]]:
    """The committed records of a partition, by key, in their order."""
    found: dict[bytes | None, list[Seen]] = {}
    columns = zip(log.committed, log.keys, log.offsets, log.values, log.timestamps, strict=True)
    for committed, key, offset, value, timestamp in columns:
        if committed:
            seen = Seen(offset, value, timestamp)
            if key in found:
                found[key].append(seen)
            else:
                found[key] = [seen]
    return found


def is_subsequence(part: Iterable[object], whole: Iterable[object]) -> bool:
    """Whether `part` is in `whole` in the same order.

    >>> is_subsequence([1, 3], [1, 2, 3]), is_subsequence([3, 1], [1, 2, 3])
    (True, False)
    """
    rest = iter(whole)
    return all(one in rest for one in part)


@dataclass(frozen=True, slots=True)
class Differences:
    """How a sequence differs from the one that is expected.

    Args:
        missing: what is not there.
        again: what was there before, with its offset.
        unknown: what is not expected at all, with its offset.
        disordered: what comes after something that it should come before, with its offset.
    """

    missing: list[object]
    again: list[tuple[int, object]]
    unknown: list[tuple[int, object]]
    disordered: list[tuple[int, object]]


def compare(found: Sequence[tuple[int, T]], expected: Sequence[T], *, caches: bool) -> Differences:
    """Compare identities with those expected.

    Args:
        found: offset and identity.
        expected: in their order; one that is there twice is expected twice.
        caches: whether all but the last may be left out.
    """
    place = dict(_occurrences(expected))
    differences = Differences([], [], [], [])
    seen: set[tuple[T, int]] = set()
    highest = -1
    offsets = [offset for offset, _ in found]
    for (one, _), offset in zip(
        _occurrences([identity for _, identity in found]), offsets, strict=True
    ):
        identity = one[0]
        wanted = place.get(one)
        if (identity, 0) not in place:
            differences.unknown.append((offset, identity))
        elif wanted is None:
            differences.again.append((offset, identity))
        else:
            if wanted < highest:
                differences.disordered.append((offset, identity))
            highest = max(highest, wanted)
            seen.add(one)
    must = list(place)[-1:] if caches else place
    differences.missing.extend(one[0] for one in must if one not in seen)
    return differences


def _occurrences(identities: Iterable[T]) -> Iterator[tuple[tuple[T, int], int]]:
    """Yield each identity with how often it was there before, and its place in the sequence."""
    times: dict[T, int] = {}
    for number, identity in enumerate(identities):
        before = times.get(identity, 0)
        times[identity] = before + 1
        yield (identity, before), number


@dataclass(slots=True)
class OrderJudge:
    """Says what a difference means, knowing which orders there are."""

    expected: Expected
    findings: Findings
    missing: dict[int, set[str]] = field(default_factory=dict)
    """By number of an order: the outputs that lack it."""
    unread: set[int] = field(default_factory=set)
    """Orders that the second sub-topology has still before it."""
    sees_repartition: bool = False
    """Whether nothing of the repartition topic was deleted."""

    def judge(self, place: Place, differences: Differences, what: str = "") -> bool:
        """Note the faults of a sequence of numbers of orders; returns whether there are none."""
        add = self.findings.add
        for n in differences.missing:
            assert isinstance(n, int)
            order = self.expected.known[n]
            source = f"order {n} of orders-{order.partition}@{order.offset}"
            add("lost", f"{place}", f"{source} is not there{what}")
            self.missing.setdefault(n, set()).add(place.topic)
        for offset, n in differences.again:
            add("doubled", f"{place}@{offset}", f"order {n} is there again{what}")
        for offset, n in differences.unknown:
            kind, detail = self.unexpected(n)
            add(kind, f"{place}@{offset}", detail + what)
        for offset, n in differences.disordered:
            add("out_of_sequence", f"{place}@{offset}", f"order {n} comes too late{what}")
        return not any(
            (
                differences.missing,
                differences.again,
                differences.unknown,
                differences.disordered,
            )
        )

    def unexpected(self, n: object) -> tuple[Kind, str]:
        """What it means that something of an order is there."""
        if n in self.expected.aborted:
            return "aborted_read", f"order {n} was never committed"
        if n in self.expected.pending or n in self.unread:
            return "torn_transaction", f"order {n} is at or beyond the committed offset"
        return "doubled", f"there is one too many: {n!r} belongs to no order"


def each_key(
    found: Mapping[bytes | None, list[Seen]], expected: Mapping[bytes, Sequence[T]]
) -> Iterator[tuple[bytes | None, list[Seen], Sequence[T]]]:
    """Yield every key with what was found of it and what is expected of it."""
    for key, wanted in expected.items():
        yield key, found.get(key, []), wanted
    for other, seen in found.items():
        if other is None or other not in expected:
            yield other, seen, ()
