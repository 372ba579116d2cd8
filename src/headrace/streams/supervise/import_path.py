"""Where an application is imported from: behind Python's own modules, before what is installed.

Python puts the current directory in front of all, so a user's ``token.py`` stands in for the
module of that name that Python's own parts need.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def add_import_path(directory: Path) -> None:
    """Let modules be imported from a directory, unless they can be already.

    Args:
        directory: its absolute path.
    """
    if str(directory) not in sys.path:
        sys.path.insert(_behind_standard_library(), str(directory))


def standard_module(name: str) -> bool:
    """Whether Python itself has a module of this name.

    Example:
        >>> standard_module("token"), standard_module("word_count")
        (True, False)
    """
    return name in sys.stdlib_module_names


def _behind_standard_library() -> int:
    own = {Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")}
    own |= {place / "lib-dynload" for place in own}
    last = [index for index, place in enumerate(sys.path) if Path(place) in own]
    return max(last, default=len(sys.path) - 1) + 1
