"""What a run reports: faults by kind, times of recovery, what passed, and the sum of its parts."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.chaos.diary import Diary
from tests.chaos.nemesis import Tally


@dataclass
class Score:
    """What passed and what failed, each said in a line."""

    say: Callable[[str], None] = print
    passed: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)

    def judge(self, ok: bool, what: str, detail: str = "") -> None:
        """Count one thing that must hold."""
        self.say(f"{'passed' if ok else 'FAILED'}  {what}{': ' + detail if detail else ''}")
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            self.failures.append(what)

    def last_line(self) -> str:
        return f"{self.passed} passed, {self.failed} failed"


def fault_table(kinds: Sequence[str], tally: Tally) -> list[str]:
    """Faults by kind, how many hit an open transaction, and how long it took to go on."""
    width = max(map(len, kinds), default=0)
    lines = [f"{'fault':{width}}  total  in transaction  next commit after: median   most"]
    for kind in kinds:
        times = tally.recovery_s.get(kind, [])
        shown = f"{statistics.median(times):8.2f} s {max(times):6.2f} s" if times else ""
        lines.append(
            f"{kind:{width}}  {tally.total[kind]:5}  {tally.mid_transaction[kind]:14}  "
            f"{'':19}{shown}"
        )
    lines.append(f"{'all':{width}}  {tally.total.total():5}  {tally.mid_transaction.total():14}")
    return lines


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """A partition that got a new leader, and how soon its worker committed then.

    Args:
        at_s: when the fault was over, in seconds of its part.
        role: which partition it was, and of which kind.
        new_leader_s: from the end of the old leader to the new one.
        commit_s: from the new leader to the worker's next commit.
        alone: whether nothing else was struck at that time.
        happened: what the worker logged meanwhile, where it took long.
    """

    at_s: float
    role: str
    new_leader_s: float
    commit_s: float
    alone: bool
    worker: str = ""
    happened: tuple[str, ...] = ()


def leader_changes(diary: Diary) -> list[LeaderChange]:
    """Every leader change after which a worker could commit."""
    return [
        LeaderChange(
            at_s=e["at_s"],
            role=e["role"],
            new_leader_s=e["new_leader_s"],
            commit_s=e["commit_after_leader_s"],
            alone=bool(e.get("alone")),
            worker=e.get("worker", ""),
            happened=tuple(e.get("happened", ())),
        )
        for e in diary.of("fault")
        if "commit_after_leader_s" in e
    ]


def times_line(times: Sequence[float]) -> str:
    """Count, median, 99th percentile and maximum of some times.

    >>> times_line([1.0, 3.0, 2.0])
    '3 times: median 2.00 s, p99 3.00 s, max 3.00 s'
    """
    if not times:
        return "0 times"
    p99 = sorted(times)[math.ceil(0.99 * len(times)) - 1]
    return (
        f"{len(times)} times: median {statistics.median(times):.2f} s, p99 {p99:.2f} s, "
        f"max {max(times):.2f} s"
    )


def leader_lines(changes: Sequence[LeaderChange]) -> list[str]:
    """The times from new leaders to commits, and the worst with what its worker logged."""
    lines = []
    for what, found in (
        ("nothing else struck", [one for one in changes if one.alone]),
        ("beside other faults", [one for one in changes if not one.alone]),
    ):
        times = times_line([one.commit_s for one in found])
        lines.append(f"commit after a new leader, {what}: {times}")
        worst = max(found, key=lambda one: one.commit_s, default=None)
        if worst is not None and worst.happened:
            lines.append(
                f"  the worst at {worst.at_s:.0f} s: {worst.commit_s:.1f} s of {worst.worker}, "
                f"after {worst.role} was without a leader for {worst.new_leader_s:.1f} s"
            )
            lines += [f"    {event}" for event in worst.happened]
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSummary:
    """What one part of a run leaves for the summary of all.

    Args:
        struck: how many faults of each kind there were.
        in_transaction: how many of them hit an open transaction.
        problems: of each kind, as the checker counted them over all parts so far.
        crashed: workers that a library ended.
        lives: what each worker process counted, for the figures of later parts.
    """

    part: int
    seconds: float
    passed: int
    failed: int
    failures: tuple[str, ...]
    records: int
    struck: Mapping[str, int]
    in_transaction: Mapping[str, int]
    problems: Mapping[str, int]
    leaders: tuple[LeaderChange, ...]
    crashed: tuple[str, ...]
    gave_up: int
    lives: tuple[Mapping[str, int], ...] = ()

    def write(self, directory: Path) -> None:
        """Keep it in the part's directory."""
        draft = directory / "summary.new"
        draft.write_bytes(msgspec.json.encode(self))
        draft.replace(directory / "summary.json")


def read_parts(directory: Path) -> list[PartSummary]:
    """The parts of a run that came to their end, in their order."""
    found = [
        msgspec.json.decode(path.read_bytes(), type=PartSummary)
        for path in directory.glob("part-*/summary.json")
    ]
    return sorted(found, key=lambda one: one.part)


def summary_lines(parts: Sequence[PartSummary], kinds: Sequence[str]) -> list[str]:
    """The faults, the problems and the times of all parts together.

    Args:
        kinds: of problems, in the order in which they are shown.
    """
    struck, hit = Counter[str](), Counter[str]()
    for part in parts:
        struck.update(part.struck)
        hit.update(part.in_transaction)
    last = parts[-1].problems if parts else {}
    lines = [
        f"part {part.part}: {part.seconds:.0f} s, {sum(part.struck.values())} faults, "
        f"{part.records:,} records, {part.passed} passed, {part.failed} failed"
        + (f" ({'; '.join(part.failures)})" if part.failures else "")
        for part in parts
    ]
    width = max(map(len, struck), default=0)
    lines += [f"  {kind:{width}}  {struck[kind]:5}, {hit[kind]:5} in a transaction"
              for kind in sorted(struck)]  # fmt: skip
    lines.append(
        f"all parts: {struck.total()} faults, {hit.total()} in a transaction, "
        f"{sum(part.records for part in parts):,} records, "
        f"{sum(part.seconds for part in parts) / 3600:.1f} h"
    )
    lines.append(", ".join(f"{kind}: {last.get(kind, 0)}" for kind in kinds))
    lines += leader_lines([one for part in parts for one in part.leaders])
    crashed = [one for part in parts for one in part.crashed]
    lines.append(f"workers ended by a library: {len(crashed)}")
    lines += [f"  {one}" for one in crashed]
    lines.append(f"workers whose client gave up on the brokers: {sum(p.gave_up for p in parts)}")
    lines.append(
        f"{sum(part.passed for part in parts)} passed, {sum(part.failed for part in parts)} failed"
    )
    return lines
