"""What a run has to say: faults by kind, times of recovery, the verdict, and what passed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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


def leader_times(diary: Diary) -> list[float]:
    """Seconds from each new leader to the next commit of a worker that depends on it."""
    return [e["commit_after_leader_s"] for e in diary.of("fault") if "commit_after_leader_s" in e]
