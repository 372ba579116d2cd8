"""Bugs that the simulation has found in the workers, each with what leads to it.

A seed shows a bug only as long as nothing in the simulation draws another number, so each bug is
looked for with a plan of its own that makes little else happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.simulation import FaultPlan, Simulation
from tests.simulation.example import example_inputs, example_topology
from tests.simulation.recount import differences

pytestmark = [pytest.mark.slow, pytest.mark.faults]

BROKEN_FILES = FaultPlan(
    rate=0.15,
    crashes=2,
    stalls=0,
    lost_state=1.0,
    calls=frozenset({"store.restore", "store.write", "store.end_restore"}),
)
ABORTS = FaultPlan(
    rate=0.1,
    crashes=0.5,
    restarts=0.5,
    stalls=1,
    calls=frozenset({"delivery", "send_offsets_to_transaction", "commit_transaction"}),
    kinds=frozenset({"abortable", "retriable", "expire"}),
)
ZOMBIES = FaultPlan(rate=0.0, crashes=0, stalls=4, restarts=3)
KILLED_IN_REBALANCES = FaultPlan(rate=0.0, crashes=4, stalls=0, restarts=4)

FOUND: Mapping[str, tuple[FaultPlan, dict[str, Any]]] = {
    # Records of other tasks in the poll of a restore whose task had broken files were dropped, and
    # those tasks went on without them; tasks whose restore had just ended were never run.
    "broken_files_of_one_task_cost_others_their_restore": (BROKEN_FILES, {}),
    # A delivery report of an aborted transaction gave the next commit the end of its changelog.
    "reports_of_an_aborted_transaction_move_a_position_back": (ABORTS, {}),
    # What a successor had purged looked to a zombie like lost offsets, and its commits like state
    # without offsets.
    "a_zombie_takes_what_its_successor_did_for_damage": (
        ZOMBIES,
        {"repartition.purge.interval.ms": 500},
    ),
    # A partition on its way from a static member that was killed and came back was nobody's.
    "a_partition_on_its_way_is_left_to_nobody": (KILLED_IN_REBALANCES, {"on.stop": "stay"}),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_bug_that_was_found_is_not_found_again(name: str) -> None:
    plan, settings = FOUND[name]
    for seed in range(30):
        inputs = example_inputs(seed)
        simulation = Simulation(
            example_topology(), inputs=inputs, settings=settings, workers=2, faults=plan
        )
        result = simulation.run(seed).check()
        assert differences(result, inputs["rows"]) == []
