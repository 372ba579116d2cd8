"""Whatever the topology: it does what a slow interpreter does with the same records.

``python -m tests.reference --seeds 20000`` compares more of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from headrace.topology import serdes
from headrace.topology.serdes import Serde
from tests.reference.__main__ import WAYS
from tests.reference.checking import Way, check, program_of
from tests.reference.functions import KEYS
from tests.reference.programs import (
    FEWER_OPS,
    FINAL_OPS,
    LATE_OPS,
    NESTED_OPS,
    Event,
    Keys,
    Program,
    Step,
)

SEEDS = 300
LAST = 2_000
PARTS = 4
FEW = 2
"""Parts that are compared with all tests; `make faults` compares the others."""
_PARTS = [
    pytest.param(part, marks=[] if part < FEW else [pytest.mark.faults]) for part in range(PARTS)
]


@pytest.mark.parametrize("part", _PARTS)
def test_random_topologies_equal_the_interpreter(part: int) -> None:
    """Caches on and off, aborts and restarts between records, one partition and three."""
    outcomes = _outcomes(range(part, SEEDS, PARTS))
    assert outcomes["compared"] > SEEDS // PARTS * 0.75, outcomes
    assert outcomes["refused"] > 0, outcomes


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, LAST, 100))
def test_more_random_topologies_equal_the_interpreter(first: int) -> None:
    assert _outcomes(range(first, first + 100))["compared"] > 75


@pytest.mark.parametrize("part", _PARTS)
def test_random_topologies_whose_functions_fail_equal_the_interpreter(part: int) -> None:
    """A handler lets them continue; a row that a function fails on counts as deleted."""
    outcomes = _outcomes(range(part, SEEDS, PARTS), failing=True)
    assert outcomes["compared"] > SEEDS // PARTS * 0.75, outcomes


def _outcomes(seeds: range, *, failing: bool = False) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        way = WAYS[seed % len(WAYS)]
        try:
            outcomes[check(program_of(seed, way, failing=failing), way)] += 1
        except Exception as error:
            options = f"--first {seed} --seeds 1{' --failing' if failing else ''}"
            raise AssertionError(
                f"seed {seed} differs; python -m tests.reference {options} shows it"
            ) from error
    return outcomes


@pytest.mark.parametrize("seed", range(20))
def test_random_topologies_on_disk_equal_the_interpreter(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("state")
    way = Way(partitions=1 + seed % 3, interrupted=True, on_disk=str(path))
    assert check(program_of(10_000 + seed, way), way) != "unknown"


_FROM_ONE_TABLE = {
    "transformer": [Step("table_transform_values", 0, 0, 9)],
    "stored transformer": [Step("table_transform_values", 0, 1, 9)],
    "mapping": [Step("table_map_values", 0, 0, 9)],
    "stored filter": [Step("table_filter", 0, 1, 9)],
    "suppressed": [Step("table_suppress", 0, 0, 1)],
    "table of its stream": [Step("table_to_stream", 0, 0, 0), Step("to_table", 2, 0, 1)],
    "fold of its stream": [Step("table_to_stream", 0, 0, 0), Step("count", 2, 1, 0)],
    "behind a stream's join": [
        Step("table_to_stream", 0, 0, 0),
        Step("join_stream", 2, 1, 2),
        Step("reduce", 3, 1, 0),
    ],
    "behind a topic": [
        Step("table_to_stream", 0, 0, 0),
        Step("repartition", 2, 0, 0),
        Step("to_table", 3, 0, 1),
    ],
}
"""What a second table is made of from the first one, by the programs' steps."""


@pytest.mark.parametrize("between", _FROM_ONE_TABLE.values(), ids=_FROM_ONE_TABLE)
@pytest.mark.parametrize("kind", range(3), ids=["inner", "left", "outer"])
def test_a_table_is_joined_with_one_that_is_made_of_it(kind: int, between: list[Step]) -> None:
    """A change reaches the join from both sides and is one result, deletions too."""
    sent = [("a", 3), ("a", 3), ("a", 5), ("b", 7), ("a", None), ("a", 4)]
    events = tuple(Event("send", "in-0", k, v, 100 + n) for n, (k, v) in enumerate(sent))
    for table in (Step("to_table", 0, 0, 1), Step("reduce", 0, 1, 1)):
        for join in (Step("table_join", 0, 1, kind), Step("table_join", 1, 0, kind)):
            program = Program((table, *between, join), events, mutable=False)
            assert check(program, Way()) == "compared"


_OF_NO_ROW = {
    "filter": [Step("to_table", 1, 0, 1), Step("table_filter", 0, 0, 0)],
    "mapping": [Step("to_table", 1, 0, 1), Step("table_map_values", 0, 0, 2)],
    "join": [
        Step("to_table", 1, 0, 1),
        Step("filter", 1, 0, 2),
        Step("to_table", 2, 0, 1),
        Step("table_join", 0, 2, 0),
    ],
}
"""Tables that have no row of a key, though one is made of a row that is there."""


@pytest.mark.parametrize("between", _OF_NO_ROW.values(), ids=_OF_NO_ROW)
@pytest.mark.parametrize(
    ("is_first", "kind"),
    [(True, 2), (False, 1), (False, 2)],
    ids=["outer, nothing first", "left, nothing second", "outer, nothing second"],
)
def test_a_row_that_is_not_there_has_no_time(
    is_first: bool, kind: int, between: list[Step]
) -> None:
    """A join's result has the time of the other row, which is older."""
    nothing, other = sum("table" in step.op for step in between), 1
    sides = (nothing, other) if is_first else (other, nothing)
    steps = (Step("to_table", 0, 0, 1), *between, Step("table_join", *sides, kind))
    events = (Event("send", "in-0", "a", 2, 90), Event("send", "in-1", "a", 3, 20))
    assert check(Program(steps, events, mutable=False), Way()) == "compared"


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        ([Step("to_table", 2, 0, 0)], "compared"),
        ([Step("to_table", 2, 0, 1)], "refused"),
        ([Step("to_table", 2, 0, 0), Step("table_group", 0, 0, 0)], "refused"),
    ],
    ids=["not kept", "kept", "read"],
)
def test_a_table_of_keys_of_other_bytes_is_refused_where_it_is_kept(
    after: list[Step], outcome: str
) -> None:
    """Rows that nobody keeps meet nowhere."""
    keys = Keys(serdes.string, (serdes.json, serdes.string), (serdes.string,))
    program = Program((Step("merge", 0, 1, 0), *after), (), mutable=True, keys=keys)
    assert check(program, Way(partitions=3)) == outcome


_LATE = {
    "windows": Step("windows", 0, 1, 0, 0),
    "windows with new keys": Step("windows", 0, 0, 0, 0),
    "sessions": Step("sessions", 0, 1, 0, 0),
    "sessions with new keys": Step("sessions", 0, 0, 0, 0),
}
"""Folds that hand on late records: by the keys that are there, and by new ones."""


def _named(serde: Serde[str] | None) -> str:
    return "none" if serde is None else serde.name


@pytest.mark.parametrize("step", _LATE.values(), ids=_LATE)
@pytest.mark.parametrize("call", [None, serdes.string, serdes.json], ids=_named)
@pytest.mark.parametrize("source", [None, serdes.string, serdes.json], ids=_named)
@pytest.mark.parametrize("default", [serdes.string, serdes.json], ids=_named)
def test_late_records_have_the_serde_of_their_group(
    default: Serde[str], source: Serde[str] | None, call: Serde[str] | None, step: Step
) -> None:
    """The rows' one, which a repartition takes too; some keys' bytes choose other partitions."""
    times = (500, 100)
    events = tuple(
        Event("send", "in-0", key, value, time)
        for time in times
        for key in KEYS
        for value in range(4)
    )
    keys = Keys(default, (source, source), (call,))
    program = Program((step,), events, mutable=True, keys=keys)
    assert check(program, Way(partitions=3)) == "compared"


_AROUND = ("map", "select_key", "filter", "merge", "repartition", "count", "to_table")


def test_fewer_records_go_on_as_the_interpreter_says() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(80):
        way = WAYS[seed % len(WAYS)]
        program = program_of(seed, way, (*FEWER_OPS, *_AROUND))
        outcomes[check(program, way)] += 1
    assert outcomes["compared"] > 60, outcomes


def test_what_goes_on_from_late_records_is_as_the_interpreter_says() -> None:
    """They are folded, stored and partitioned anew; their serde and their place are the group's."""
    outcomes: Counter[str] = Counter()
    for seed in range(160):
        way = WAYS[seed % len(WAYS)]
        program = program_of(seed, way, (*LATE_OPS, *_AROUND))
        outcomes[check(program, way)] += 1
    assert outcomes["compared"] > 120, outcomes


@pytest.mark.parametrize("failing", [False, True])
def test_steps_on_windowed_keys_are_as_the_interpreter_says(failing: bool) -> None:
    """Tables, folds, windows in windows, cogroups and joins by keys that are windowed already."""
    outcomes: Counter[str] = Counter()
    for seed in range(160):
        way = replace(WAYS[seed % len(WAYS)], caching=False)
        program = program_of(seed, way, (*NESTED_OPS, *_AROUND), failing=failing)
        outcomes[check(program, way)] += 1
    assert outcomes["compared"] > 120, outcomes


@pytest.mark.parametrize("failing", [False, True])
def test_final_results_below_filters_are_as_the_interpreter_says(failing: bool) -> None:
    """They come with the record that closes their window, also if a filter drops its change."""
    outcomes: Counter[str] = Counter()
    for seed in range(160):
        way = replace(WAYS[seed % len(WAYS)], caching=False)
        ops = (*FINAL_OPS, *FINAL_OPS, *_AROUND)
        outcomes[check(program_of(seed, way, ops, failing=failing), way)] += 1
    assert outcomes["compared"] > 120, outcomes
