"""What code loads, in a process that has loaded nothing before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping

_ASKED = """
import json, sys
loaded = {}
for name, code in json.loads(sys.argv[1]).items():
    exec(code, {})
    loaded[name] = [module for module in sys.argv[2:] if module in sys.modules]
print(json.dumps(loaded))
"""


def loaded_after(codes: Mapping[str, str], heavy: Iterable[str]) -> dict[str, list[str]]:
    """Run one code after the other in one process: nothing is unloaded, so each counts.

    Returns:
        By the name of each code, which of the heavy modules were there after it.
    """
    command = [sys.executable, "-c", _ASKED, json.dumps(codes), *heavy]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found
