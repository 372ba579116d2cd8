"""Where tests stand: what needs a real Kafka is in a folder ``live`` beside the others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).parents[1]
PACKAGES = ("state", "topology", "streams", "spark_bridge")


def outside_live(paths: Iterable[Path]) -> list[str]:
    """Which files of tests that need a broker stand in a package, and not in its ``live``."""
    within = {path.relative_to(TESTS) for path in paths if path.is_relative_to(TESTS)}
    return sorted(
        f"tests/{path.as_posix()}"
        for path in within
        if path.parts[0] in PACKAGES and path.parent.name != "live"
    )
