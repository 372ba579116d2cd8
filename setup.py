"""Refuses to build a package without its rooms; everything else is in pyproject.toml.

The rooms stand at the top and are links in src/headrace. Where links were lost, as in a copy on a
file system without them, the wheel would be hollow.
"""

from pathlib import Path

from setuptools import setup

ROOMS = ("state", "topology", "streams", "streams_web", "spark_bridge")
SOURCE = Path(__file__).parent / "src" / "headrace"

missing = [room for room in ROOMS if not (SOURCE / room / "__init__.py").is_file()]
if missing:
    raise SystemExit(
        f"{SOURCE} has no {', '.join(missing)}: links of this tree are lost. Clone it with "
        "symbolic links (git config core.symlinks true), or unpack it with a tool that keeps them."
    )
setup()
