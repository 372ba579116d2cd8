"""Names of tests after their parameters."""

from __future__ import annotations

import re


def shown(value: object) -> str:
    """Say what a parameter is, in the same words in every process: without its address."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
