"""What must come out of the example topology, counted again from the input alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.simulation import SimulationResult
from tests.simulation.example import step

Rows = Sequence[tuple[Any, Any]]


def per_key(rows: Rows) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for key, value in rows:
        found.setdefault(key, []).append(value)
    return found


def expected(rows: Rows) -> dict[str, dict[Any, list[Any]]]:
    """The values of each key, in their order, in each output topic of the exactly-once run."""
    seen: dict[Any, list[Any]] = {}
    folded: dict[Any, list[Any]] = {}
    for key, value in rows:
        counts = seen.setdefault(key, [])
        counts.append(len(counts) + 1)
        states = folded.setdefault(f"r{key}", [])
        states.append(step(states[-1] if states else 0, value))
    return {"echo": per_key(rows), "seen": seen, "folded": folded}


def differences(result: SimulationResult, rows: Rows, *, exactly_once: bool = True) -> list[str]:
    """What is not as it must be, in words."""
    found = list(result.problems)
    for topic, wanted in expected(rows).items():
        got = per_key(result.outputs(topic))
        for key in sorted({*wanted, *got}):
            a, b = got.get(key, []), wanted.get(key, [])
            if exactly_once and a != b:
                found.append(f"{topic} {key}: {a} instead of {b}")
            if not exactly_once:
                found += _losses(topic, key, a, b)
    for store in ("seen", "folded"):
        last = {key: values[-1] for key, values in expected(rows)[store].items()}
        got_rows = result.store(store)
        if exactly_once and got_rows != last:
            found.append(f"store {store}: {got_rows} instead of {last}")
        if store == "seen" and any(got_rows.get(key, 0) < count for key, count in last.items()):
            found.append(f"store {store}: {got_rows} is less than {last}")
    return found


def _losses(topic: str, key: Any, got: list[Any], wanted: list[Any]) -> list[str]:
    """Under at-least-once values may come again, and what depends on their number may differ."""
    if topic == "echo" and not set(wanted) <= set(got):
        return [f"{topic} {key}: {sorted(set(wanted) - set(got))} are missing"]
    if topic == "seen" and max(got, default=0) < len(wanted):
        return [f"{topic} {key}: counts to {max(got, default=0)}, and there are {len(wanted)}"]
    if topic == "folded" and len(got) < len(wanted):
        return [f"{topic} {key}: {len(got)} values of {len(wanted)}"]
    return []
