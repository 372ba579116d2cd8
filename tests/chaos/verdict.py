"""What the checker says: problems by kind, duplicates, and what was compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Guarantee = Literal["exactly_once_v2", "at_least_once"]

Kind = Literal[
    "lost",
    "doubled",
    "out_of_sequence",
    "aborted_read",
    "torn_transaction",
    "offset_without_output",
    "changelog_mismatch",
    "store_mismatch",
    "hanging_transaction",
    "non_monotonic_read",
    "wrong_answer",
    "answer_went_back",
    "wrong_host",
    "change_mistold",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

_KEPT_PER_KIND = 200
_SHOWN_PER_KIND = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Args:
        kind: what sort of fault.
        where: topic, partition and offset, as ``echo-3@17``; or as much of it as there is.
        detail: what was found, and what should have been.
    """

    kind: Kind
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.where}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a history was found to be.

    Args:
        guarantee: what it was judged by.
        problems: the first ones of each kind.
        counts: how many there are of each kind.
        duplicates: by topic, how often something was there again; at-least-once alone has them.
        figures: what was compared.
    """

    guarantee: Guarantee
    problems: tuple[Problem, ...]
    counts: Mapping[Kind, int]
    duplicates: Mapping[str, int]
    figures: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of faults."""
        return {problem.kind for problem in self.problems}

    def report(self) -> str:
        """Everything in lines for a reader."""
        lines = [f"checked as {self.guarantee}"]
        lines += [f"  {number:>12,}  {name}" for name, number in self.figures.items()]
        for name, number in self.duplicates.items():
            lines.append(f"  {number:>12,}  duplicates in {name}")
        lines.append(", ".join(f"{kind}: {self.counts.get(kind, 0)}" for kind in KINDS))
        for kind in KINDS:
            of_kind = [problem for problem in self.problems if problem.kind == kind]
            lines += [f"  {problem}" for problem in of_kind[:_SHOWN_PER_KIND]]
            more = self.counts.get(kind, 0) - _SHOWN_PER_KIND
            if more > 0:
                lines.append(f"  {kind}: and {more} more")
        lines.append("nothing is wrong" if self.ok else "FAULTS WERE FOUND")
        return "\n".join(lines)


@dataclass(slots=True)
class Findings:
    """Collects what the checks find; the only thing that they change."""

    guarantee: Guarantee
    figures: dict[str, int] = field(default_factory=dict)
    _problems: dict[Kind, list[Problem]] = field(default_factory=lambda: defaultdict(list))
    _counts: Counter[Kind] = field(default_factory=Counter)
    _duplicates: Counter[str] = field(default_factory=Counter)

    def add(self, kind: Kind, where: str, detail: str) -> None:
        """Note a fault; of very many the first ones are kept."""
        self._counts[kind] += 1
        if len(self._problems[kind]) < _KEPT_PER_KIND:
            self._problems[kind].append(Problem(kind, where, detail))

    def duplicate(self, topic: str, count: int = 1) -> None:
        """Note what at-least-once may repeat."""
        self._duplicates[topic] += count

    def verdict(self) -> Verdict:
        """Everything that was found."""
        problems = tuple(problem for kind in KINDS for problem in self._problems[kind])
        duplicates = {topic: count for topic, count in self._duplicates.items() if count}
        counts = dict(self._counts)
        return Verdict(self.guarantee, problems, counts, duplicates, dict(self.figures))
