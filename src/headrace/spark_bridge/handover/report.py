"""What a hand-over says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headrace.spark_bridge.handover.units import UnitCounts


@dataclass(frozen=True, slots=True)
class HandOverReport:
    """What was handed over.

    Args:
        how: by the driver in one transaction, or in parts.
        counts: the records that were written by this attempt.
        units: how many transactions with records there are.
        found: how many of them an earlier attempt had committed.
        seconds: how long it took.
    """

    how: Literal["driver", "partitioned"]
    counts: UnitCounts = field(default_factory=UnitCounts)
    units: int = 1
    found: int = 0
    seconds: float = 0.0
