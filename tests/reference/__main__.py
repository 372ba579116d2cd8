"""Compares random topologies with the interpreter: ``python -m tests.reference --seeds 20000``."""

from __future__ import annotations

import argparse
import traceback
from collections import Counter
from collections.abc import Iterator

from tests.reference.checking import Way, check, program_of, shrunk
from tests.reference.disturbed import compare
from tests.reference.programs import OPS

WAYS = (
    Way(),
    Way(partitions=3),
    Way(caching=True),
    Way(interrupted=True),
    Way(partitions=3, interrupted=True),
    Way(partitions=3, caching=True, interrupted=True),
    Way(exactly_once=False, caching=True),
    Way(partitions=3, exactly_once=False),
)


def main() -> None:
    """Run seeds, and show the first that fails, made small."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ops", default="")
    parser.add_argument("--restarts", action="store_true", help="with disturbances and without")
    parser.add_argument("--failing", action="store_true", help="with functions that fail")
    options = parser.parse_args()
    if options.restarts:
        _compare_restarts(range(options.first, options.first + options.seeds))
        return
    ops = tuple(options.ops.split()) or OPS
    outcomes: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        way = WAYS[seed % len(WAYS)]
        program = program_of(seed, way, ops, failing=options.failing)
        try:
            outcomes[check(program, way)] += 1
        except Exception:
            smaller = shrunk(program, way)
            print(f"seed {seed} failed, {way}")
            print(*_lines(smaller), sep="\n")
            try:
                check(smaller, way)
            except Exception:
                traceback.print_exc()
            raise SystemExit(1) from None
    compared, refused = outcomes["compared"], outcomes["refused"]
    unknown = outcomes["unknown"]
    print(f"{compared} topologies compared, {refused} refused by both, {unknown} are none")


def _compare_restarts(seeds: range) -> None:
    compared = sum(compare(seed) is not None for seed in seeds)
    print(f"{compared} programs compared, {len(seeds) - compared} are none")


def _lines(program: object) -> Iterator[str]:
    for part in ("steps", "events", "mutable", "keys", "values"):
        found = getattr(program, part)
        yield f"{part}:"
        yield from (f"    {item}" for item in (found if isinstance(found, tuple) else (found,)))


if __name__ == "__main__":
    main()
