"""The comparison of random topologies finds what it is for: each fault is put back, and is seen.

Every fault here lost matches without a word before anything looked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.streams.plan import plan
from headrace.topology.compile import operator_factory
from headrace.topology.context.context import raise_earlier
from headrace.topology.dsl import cogrouped
from headrace.topology.dsl.steps import join_nodes
from headrace.topology.graph.draft import Edge
from headrace.topology.operators.joins import stream_join
from tests.reference.__main__ import WAYS
from tests.reference.checking import check, program_of
from tests.reference.engine import Engine
from tests.reference.test_random_topologies import SEEDS

Patch = Callable[[pytest.MonkeyPatch], None]


def joins_take_the_default(patch: pytest.MonkeyPatch) -> None:
    """New keys take the default serde, whatever the other side has."""
    keyed = join_nodes._keyed
    patch.setattr(join_nodes, "_keyed", lambda edge, key, other, name: keyed(edge, key, None, name))


def joins_share_any_topic(patch: pytest.MonkeyPatch) -> None:
    """A second join without a name reads the first one's topic, whatever its serdes are."""
    repartitioned = Edge.repartitioned_for_join

    def shared(edge: Edge, name: str | None) -> Edge:
        made = edge.draft.for_joins(edge.node)
        if name is not None or not made:
            return repartitioned(edge, name)
        key, value = made[-1].serdes
        return repartitioned(replace(edge, key=key, value=value), None)

    patch.setattr(Edge, "repartitioned_for_join", shared)


def cogroups_take_the_default(patch: pytest.MonkeyPatch) -> None:
    """New keys take the default serde, whatever the other streams have."""

    def partitioned(group: Any, _: Any, store: str) -> Edge:
        edge: Edge = group._edge
        return edge.repartitioned(group._name or store) if edge.rekeyed else edge

    patch.setattr(cogrouped, "_partitioned", partitioned)


def nothing_is_refused(patch: pytest.MonkeyPatch) -> None:
    """Folds of merged topics and joins of tables begin, whatever the bytes of their keys are."""
    patch.setattr(plan, "require_matching_keys", lambda *_: None)


def nobody_expects_it(patch: pytest.MonkeyPatch) -> None:
    """Left is that all that is done with one key is done in one task."""
    patch.setattr(Engine, "meet", lambda *_: None)


def rows_are_read_unguarded(patch: pytest.MonkeyPatch) -> None:
    """A function that fails on a row fails again for each record that reads the row."""
    patch.setattr(operator_factory, "empty_row", raise_earlier)


def unmatched_results_fail_with_the_record_that_releases_them(patch: pytest.MonkeyPatch) -> None:
    """What a join lets go on fails within the record that has moved stream time."""

    def refused(error: Exception, _: int) -> Any:
        raise error

    patch.setattr(stream_join, "EarlierRecordError", refused)


FAULTS = [
    (joins_take_the_default,),
    (joins_take_the_default, nothing_is_refused),
    (joins_share_any_topic,),
    (joins_share_any_topic, nothing_is_refused),
    (cogroups_take_the_default,),
    (cogroups_take_the_default, nothing_is_refused),
    (nothing_is_refused,),
    (nothing_is_refused, nobody_expects_it),
]
FAULTS_OF_FAILING = [
    rows_are_read_unguarded,
    unmatched_results_fail_with_the_record_that_releases_them,
]

SHOWN_BY: dict[tuple[Patch, ...], int] = {
    (cogroups_take_the_default,): 188,
    (cogroups_take_the_default, nothing_is_refused): 188,
}
"""A seed that has shown a fault that few show: tried first, which spares a minute."""


@pytest.mark.parametrize(
    "faults", FAULTS, ids=lambda faults: " and ".join(f.__name__ for f in faults)
)
def test_a_fault_is_found_by_the_seeds_that_are_run_each_time(
    faults: tuple[Patch, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault in faults:
        fault(monkeypatch)
    first = SHOWN_BY.get(faults, 0)
    for seed in (*range(first, SEEDS), *range(first)):
        way = WAYS[seed % len(WAYS)]
        program = program_of(seed, way)
        try:
            check(program, way)
        except Exception as error:
            if len(faults) == 1 or "not refused" not in str(error):
                return
    pytest.fail(f"none of {SEEDS} random topologies shows it")


@pytest.mark.parametrize("fault", FAULTS_OF_FAILING)
def test_a_fault_is_found_by_functions_that_fail(
    fault: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    for seed in range(SEEDS):
        way = WAYS[seed % len(WAYS)]
        program = program_of(seed, way, failing=True)
        try:
            check(program, way)
        except Exception:
            return
    pytest.fail(f"none of {SEEDS} random topologies shows it")
