from __future__ import annotations

import sys

from tests.chaos.options import parse
from tests.chaos.run import Run

if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(Run(parse(sys.argv[1:])).run())
