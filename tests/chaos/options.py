"""The options of a run: long or quick, by which seed, under which guarantee, in how many parts."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.chaos.verdict import Guarantee

T = TypeVar("T")

_KEPT = "run.json"
"""The options of a run in its directory, by which later parts go on."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one part of a run; most runs have one part.

    Args:
        seed: of faults and input.
        guarantee: of the application.
        each: how often each kind of fault is to hit an open transaction.
        faults: how many are to happen at least.
        records: how many records are to be written to the inputs at least.
        rate: input records a second.
        fault_s: after which no new fault begins.
        drain_s: how long the application may take to catch up.
        directory: for data and logs of all parts.
        complete: whether the run fails where a kind hit less often than it was to.
        kinds: parts of the names of the kinds to strike with; none for all.
        caches: whether the application has the default caches, or none.
        part: number of this part, from 1.
        parts: number of all parts; what ends the application is tried in the last one.
        soak_s: how long to run under constant load and watch for growth; 0 for a chaos run.
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
    part: int = 1
    parts: int = 1
    soak_s: float = 0.0

    @property
    def part_directory(self) -> Path:
        """For what belongs to this part alone."""
        return self.directory / f"part-{self.part}"

    @property
    def is_last(self) -> bool:
        """Whether no other part goes on with the cluster and the state."""
        return self.part == self.parts

    @property
    def part_seed(self) -> str:
        """The seed of this part's faults and input."""
        return f"{self.seed}" if self.part == 1 else f"{self.seed}-part-{self.part}"


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        SystemExit: it is wrong, or there is no part to go on with.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    part, directory, resumed = 1, given.directory, given.resume
    if resumed is not None:
        try:
            kept = json.loads((resumed / _KEPT).read_text())
        except (OSError, ValueError) as error:
            parser.error(f"there is no run to continue in {resumed}: {error}")
        part, directory = 1 + len(list(resumed.glob("part-*/summary.json"))), resumed
        given = parser.parse_args([*kept, *arguments])
        if part > given.parts:
            parser.error(f"all {given.parts} parts of the run in {resumed} are done")
        if (resumed / f"part-{part}").exists():
            parser.error(f"part {part} in {resumed} was stopped before its end; start a new run")
    quick, soak_s = given.quick, 3_600.0 * (given.soak or 0.0)
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    directory = directory or Path(tempfile.mkdtemp(prefix="headrace-chaos-")) / "run"
    return Options(
        seed=seed,
        guarantee=given.guarantee,
        each=_or(given.each, 1 if quick else 8),
        faults=_or(given.faults, 0 if soak_s else 8 if quick else 150),
        records=_or(given.records, 0 if soak_s else 20_000 if quick else 1_000_000),
        rate=_or(given.rate, 250 if quick or soak_s else 700),
        fault_s=_or(given.fault_seconds, soak_s or (115.0 if quick else 2_400.0)),
        drain_s=90.0 if quick else 180.0,
        directory=directory.absolute(),
        # How many fit into two minutes depends on the machine and what else runs there.
        complete=not quick and not soak_s,
        kinds=tuple(given.kind),
        caches=_or(given.caches, bool(seed % 2)),
        part=part,
        parts=given.parts,
        soak_s=soak_s,
    )


def keep(options: Options, arguments: Sequence[str]) -> None:
    """Keep the options of the first part for the later ones."""
    if options.part == 1:
        kept = [*arguments, "--seed", str(options.seed)]
        (options.directory / _KEPT).write_text(json.dumps(kept))


def _parser() -> argparse.ArgumentParser:
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
    parser.add_argument("--parts", type=int, default=1, help="parts of the run; this is the first")
    parser.add_argument(
        "--continue", type=Path, dest="resume", metavar="DIRECTORY",
        help="run the next part of the run in this directory, with its options",
    )  # fmt: skip
    parser.add_argument(
        "--summary", type=Path, metavar="DIRECTORY", help="print the summary of a run's parts"
    )
    parser.add_argument(
        "--soak", type=float, metavar="HOURS",
        help="constant load without faults, or with those of --kind; memory, files and lag into "
        "a CSV file and plots",
    )  # fmt: skip
    return parser


def summary_directory(arguments: Sequence[str]) -> Path | None:
    """The directory whose summary is asked for, if that is all."""
    found: Path | None = _parser().parse_args(arguments).summary
    return found


def _or(given: T | None, default: T) -> T:
    return default if given is None else given
