"""Show the history of one seed of the tests: ``python -m tests.simulation SEED``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.simulation.seeds import problems_of, simulation_of

if __name__ == "__main__":
    seed, on_rocksdb = int(sys.argv[1]), sys.argv[2:] == ["rocksdb"]
    with tempfile.TemporaryDirectory() as directory:
        result = simulation_of(seed).run(seed, state_dir=Path(directory) if on_rocksdb else None)
    print(result.history)
    for problem in problems_of(seed, result) or ["no problems"]:
        print(problem)
