"""What a run is asked for: long or quick, by which seed, under which guarantee."""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.chaos.verdict import Guarantee

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """Of a run.

    Args:
        seed: of faults and input.
        guarantee: of the application.
        each: how often each kind of fault is to hit an open transaction.
        faults: how many are to happen at least.
        records: how many records are to be in the inputs at least.
        rate: input records a second.
        fault_s: after which no new fault begins.
        drain_s: how long the application may take to catch up.
        directory: for data, logs and the diary.
        complete: whether the run fails where a kind hit less often than it was to.
        kinds: parts of the names of the kinds to strike with; none for all.
        caches: whether the application has the default caches, or none.
    """

    seed: int
    guarantee: Guarantee
    each: int
    faults: int
    records: int
    rate: int
    fault_s: float
    drain_s: float
    directory: Path
    complete: bool
    kinds: tuple[str, ...] = ()
    caches: bool = False


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four minutes instead of forty")
    parser.add_argument("--seed", type=int, help="of faults and input; random without")
    parser.add_argument(
        "--guarantee", choices=("exactly_once_v2", "at_least_once"), default="exactly_once_v2"
    )
    parser.add_argument("--each", type=int, help="hits of each kind of fault in a transaction")
    parser.add_argument("--faults", type=int, help="faults at least")
    parser.add_argument("--records", type=int, help="input records at least")
    parser.add_argument("--rate", type=int, help="input records a second")
    parser.add_argument("--fault-seconds", type=float, help="no fault begins later")
    parser.add_argument("--directory", type=Path, help="for data and logs; must not exist")
    parser.add_argument(
        "--kind", action="append", default=[], help="part of the name of a kind to strike with"
    )
    parser.add_argument(
        "--caches",
        action=argparse.BooleanOptionalAction,
        help="with the default caches, or with none; an odd seed has them",
    )
    given = parser.parse_args(arguments)
    quick = given.quick
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    directory = given.directory or Path(tempfile.mkdtemp(prefix="headrace-chaos-")) / "run"
    return Options(
        seed=seed,
        guarantee=given.guarantee,
        each=_or(given.each, 1 if quick else 8),
        faults=_or(given.faults, 8 if quick else 150),
        records=_or(given.records, 20_000 if quick else 1_000_000),
        rate=_or(given.rate, 250 if quick else 700),
        fault_s=_or(given.fault_seconds, 115.0 if quick else 2_400.0),
        drain_s=90.0 if quick else 180.0,
        directory=directory.absolute(),
        # How many fit into two minutes depends on the machine and what else runs there.
        complete=not quick,
        kinds=tuple(given.kind),
        caches=_or(given.caches, bool(seed % 2)),
    )


def _or(given: T | None, default: T) -> T:
    return default if given is None else given
