"""Deterministic simulation: production workers on a cluster that fails by a seed."""

from __future__ import annotations

from headrace.streams.simulation import (
    CALLS,
    CALM,
    FaultPlan,
    Simulation,
    SimulationError,
    SimulationResult,
    simulate,
)

__all__ = [
    "CALLS",
    "CALM",
    "FaultPlan",
    "Simulation",
    "SimulationError",
    "SimulationResult",
    "simulate",
]
