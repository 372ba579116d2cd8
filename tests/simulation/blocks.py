"""Running some seeds of a family one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

RunSeed = Callable[[int, Path | None], tuple[list[str], Mapping[tuple[str, str], int]]]


def run_each(
    run_seed: RunSeed, first: int, last: int, state_dir: Path | None = None
) -> tuple[dict[int, list[str]], Counter[tuple[str, str]]]:
    """Run some seeds; returns what was wrong by seed, and all faults."""
    failed: dict[int, list[str]] = {}
    faults: Counter[tuple[str, str]] = Counter()
    for seed in range(first, last):
        own = None if state_dir is None else state_dir / str(seed)
        problems, counts = run_seed(seed, own)
        faults.update(counts)
        if problems:
            failed[seed] = problems
    return failed, faults
