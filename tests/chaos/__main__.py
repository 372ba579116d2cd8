from __future__ import annotations

import os
import sys

from tests.chaos.options import keep, parse, summary_directory
from tests.chaos.report import read_parts, summary_lines
from tests.chaos.run import Run
from tests.chaos.verdict import KINDS

# Nodes are started dozens of times: they should be up soon, and never get to run fast.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(arguments: list[str]) -> int:
    """Run one part, or print the summary of all; returns the exit status."""
    directory = summary_directory(arguments)
    if directory is None:
        options = parse(arguments)
        run = Run(options)
        keep(options, arguments)
        code = run.run()
        if options.parts == 1:
            return code
        directory = options.directory
    parts = read_parts(directory)
    for line in summary_lines(parts, KINDS):
        print(line)
    return 1 if any(part.failed for part in parts) else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.setdefault("JAVA_TOOL_OPTIONS", _JAVA_OPTIONS)
    sys.exit(main(sys.argv[1:]))
