from __future__ import annotations

import os
import sys

from tests.chaos.options import parse
from tests.chaos.run import Run

# Nodes are started dozens of times: they should be up soon, and never get to run fast.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.setdefault("JAVA_TOOL_OPTIONS", _JAVA_OPTIONS)
    sys.exit(Run(parse(sys.argv[1:])).run())
