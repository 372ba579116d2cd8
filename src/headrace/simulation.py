"""Deterministic simulation: production workers on a cluster that fails by a seed.

`simulate` runs a topology once, `Simulation` many times; see docs/simulation.md.
"""

from __future__ import annotations

from headrace.streams.simulation.api import Simulation, SimulationError, SimulationResult, simulate
from headrace.streams.simulation.world.faults import CALLS, CALM, FaultPlan

__all__ = [
    "CALLS",
    "CALM",
    "FaultPlan",
    "Simulation",
    "SimulationError",
    "SimulationResult",
    "simulate",
]
