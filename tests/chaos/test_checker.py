from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import answer_damages, window_damages
from tests.chaos.check_outputs import check_changes
from tests.chaos.checker import check
from tests.chaos.damages import CASES, Case, a_record_is_written_again
from tests.chaos.expectations import Change, recount
from tests.chaos.history import Committed, History, Log, Place, Record
from tests.chaos.inputs import InputPlan
from tests.chaos.perfect import Draft, PerfectRun
from tests.chaos.sequences import OrderJudge
from tests.chaos.verdict import KINDS, Findings, Kind

pytestmark = [pytest.mark.slow, pytest.mark.faults]

assert answer_damages.__doc__, "its cases are in CASES once it is imported"
assert window_damages.__doc__, "its cases are in CASES once it is imported"
HISTORIES = 20
seeds = st.integers(0, 1 << 32)
examples = settings(max_examples=4, deadline=None)


def perfect(seed: int, *, caches: bool) -> Draft:
    """One of some histories: what is damaged in it is up to all of the seed."""
    return _finished(seed % HISTORIES, caches).copy()


@cache
def _finished(seed: int, caches: bool) -> Draft:
    return perfect_run(seed, caches=caches).finish()


def perfect_run(seed: int, *, caches: bool) -> PerfectRun:
    plan = InputPlan(seed=seed, orders=200, accounts=12, regions=5, batch=10, aborted=0.4)
    return PerfectRun(plan.batches(), seed=seed, caches=caches)


@given(seeds)
@examples
@pytest.mark.parametrize("caches", [False, True])
def test_a_correct_history_has_no_problem(caches: bool, seed: int) -> None:
    history = perfect_run(seed, caches=caches).finish().history()
    for guarantee in ("exactly_once_v2", "at_least_once"):
        verdict = check(history, guarantee=guarantee, caches=caches)
        assert verdict.ok, verdict.report()
        assert not verdict.duplicates
        assert verdict.figures["orders"] == 200
        assert verdict.figures["orders of aborted transactions"] > 0


@pytest.mark.parametrize(
    ("case", "caches"),
    [pytest.param(c, on, id=f"{c.name}-{'caches' if on else 'no-caches'}")
     for c in CASES for on in c.caches],
)  # fmt: skip
@given(seeds)
@examples
def test_a_damage_is_called_by_its_name(case: Case, caches: bool, seed: int) -> None:
    draft = perfect(seed, caches=caches)
    case.damage(draft, random.Random(seed))
    verdict = check(draft.history(), guarantee="exactly_once_v2", caches=caches)
    assert case.kinds <= verdict.kinds, verdict.report()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.name)
        for c in CASES
        if len(c.kinds) == 1
        and c.name.startswith(("a_marker", "a_transaction", "a_reader", "a_local"))
        and c.name != "a_reader_got_what_was_aborted"
    ],
)
@given(seeds)
@examples
def test_a_damage_of_one_thing_is_called_by_no_other_name(case: Case, seed: int) -> None:
    draft = perfect(seed, caches=False)
    case.damage(draft, random.Random(seed))
    verdict = check(draft.history(), guarantee="exactly_once_v2", caches=False)
    assert verdict.kinds == case.kinds, verdict.report()


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name) for c in CASES if c.name.endswith("missing")]
)
@given(seeds)
@examples
def test_what_is_missing_is_not_called_doubled(case: Case, seed: int) -> None:
    draft = perfect(seed, caches=False)
    case.damage(draft, random.Random(seed))
    verdict = check(draft.history(), guarantee="exactly_once_v2", caches=False)
    assert "doubled" not in verdict.kinds, verdict.report()


def test_there_is_a_damage_of_each_kind() -> None:
    assert {kind for case in CASES for kind in case.kinds} == set(KINDS)


def _losses() -> list[Case]:
    """What is lost at at-least-once too: an output, and a row that counts less than its input."""
    names = {
        "an_order_is_not_copied": "lost",
        "a_tenth_order_is_not_among_the_changes": "lost",
        "a_total_is_missing": "lost",
        "an_order_is_not_in_its_region": "lost",
        "the_last_count_of_a_key_is_missing": "lost",
        "a_change_of_the_table_is_missing": "lost",
        "input_is_left_over": "lost",
        "an_offset_is_ahead_of_its_output": "lost",
        "an_aborted_order_is_copied": "aborted_read",
        "a_change_was_aborted_after_all": "aborted_read",
        "an_order_was_aborted_after_all": "aborted_read",
        "a_local_row_is_wrong": "store_mismatch",
        "a_marker_is_not_read_back": "hanging_transaction",
        "a_reader_was_not_given_a_record": "non_monotonic_read",
        "a_key_is_in_no_changelog": "changelog_mismatch",
        "the_last_count_of_a_window_is_missing": "lost",
        "a_closed_window_is_missing": "lost",
        "a_closed_window_lacks_an_order": "lost",
        "an_order_is_not_joined_with_its_account": "lost",
        "an_order_is_not_joined_with_a_payment": "lost",
    }
    return [
        replace(case, kinds=frozenset({names[case.name]}))  # type: ignore[arg-type]
        for case in CASES
        if case.name in names
    ]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in _losses()])
@given(seeds)
@examples
def test_at_least_once_forgives_no_loss(case: Case, seed: int) -> None:
    draft = perfect(seed, caches=False)
    case.damage(draft, random.Random(seed))
    verdict = check(draft.history(), guarantee="at_least_once", caches=False)
    assert case.kinds <= verdict.kinds, verdict.report()


@given(seeds)
@examples
def test_at_least_once_counts_what_is_there_again(seed: int) -> None:
    draft, rng = perfect(seed, caches=False), random.Random(seed)
    a_record_is_written_again(draft, rng)
    verdict = check(draft.history(), guarantee="at_least_once", caches=False)
    # A count that is there again is told by its key's last count alone, which is no higher.
    assert verdict.ok, verdict.report()
    exactly = check(draft.history(), guarantee="exactly_once_v2", caches=False)
    again = {problem.where.rpartition("-")[0] for problem in exactly.problems}
    assert set(verdict.duplicates) >= again - {"account-counts"} - _state_topics(again)


def _state_topics(topics: set[str]) -> set[str]:
    return {topic for topic in topics if topic.endswith("-changelog")}


@given(seeds)
@examples
@pytest.mark.parametrize("caches", [False, True])
def test_a_history_in_the_middle_of_a_run_is_judged_by_its_offsets(caches: bool, seed: int) -> None:
    run = perfect_run(seed, caches=caches)
    draft = run.turns(random.Random(seed).randrange(1, 30))
    history = draft.history()
    verdict = check(history, guarantee="exactly_once_v2", caches=caches, drained=False)
    assert verdict.ok, verdict.report()
    if verdict.figures["orders not processed"]:
        verdict = check(history, guarantee="exactly_once_v2", caches=caches)
        assert verdict.kinds == {"lost"}, verdict.report()


@given(seeds)
@examples
def test_what_compaction_and_purging_remove_is_not_missed(seed: int) -> None:
    draft, rng = perfect(seed, caches=False), random.Random(seed)
    draft.asked = None  # what was told of records that are gone cannot be judged
    for place, log in draft.changelogs.items():
        newest = {record.key: record.offset for record in log if record.committed}
        upto = rng.randrange(draft.ends[Place(f"{place.topic}-changelog", place.partition)] + 1)
        draft.changelogs[place] = [
            record for record in log if record.offset >= upto or newest[record.key] == record.offset
        ]
    for place in [place for place in draft.logs if place.topic == "by-region"]:
        draft.purge(place, rng.randrange(draft.ends[place] + 1))
    verdict = check(draft.history(), guarantee="exactly_once_v2", caches=False)
    assert verdict.ok, verdict.report()


def row(number: int, timestamp: int) -> Change:
    return Change(b'{"change":%d}' % number, timestamp)


def deletion(timestamp: int) -> Change:
    return Change(None, timestamp)


def log_of(changes: Sequence[Change]) -> Log:
    records = (Record(o, b"key", c.value, c.timestamp) for o, c in enumerate(changes))
    return Log(records)


DELETED_TWICE = (row(1, 1), deletion(5), row(2, 5), row(3, 5), deletion(5))
"""Changes of an account with two equal deletions."""


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        pytest.param(DELETED_TWICE, set(), id="all"),
        pytest.param([row(1, 1), deletion(5), row(2, 5), deletion(5)], set(), id="a-row-cached"),
        pytest.param([row(1, 1), row(3, 5), deletion(5)], set(), id="a-deletion-cached"),
        pytest.param([row(1, 1), deletion(5)], set(), id="the-last-rows-cached"),
        pytest.param(
            [row(1, 1), deletion(5), row(2, 5), row(2, 5), deletion(5)], {"doubled"}, id="row-again"
        ),
        pytest.param([*DELETED_TWICE, deletion(5)], {"doubled"}, id="deletion-again"),
        pytest.param(
            [row(1, 1), deletion(5), row(4, 5), deletion(5)], {"doubled"}, id="row-of-no-input"
        ),
        pytest.param(
            [row(1, 1), deletion(4), row(2, 5), deletion(5)], {"doubled"}, id="deletion-of-no-input"
        ),
        pytest.param(
            [row(1, 1), row(3, 5), row(2, 5), deletion(5)], {"out_of_sequence"}, id="rows-swapped"
        ),
        pytest.param(
            [row(1, 1), deletion(5), deletion(5), row(2, 5)],
            {"out_of_sequence"},
            id="row-after-its-deletion",
        ),
        pytest.param(
            [row(1, 1), deletion(5), row(3, 5)],
            {"lost", "offset_without_output"},
            id="deletion-missing",
        ),
    ],
)
@pytest.mark.parametrize("topic", ["account-changes", "order-limits"])
def test_equal_deletions_of_an_account_are_no_fault_and_hide_none(
    topic: str, found: Sequence[Change], kinds: set[Kind]
) -> None:
    accounts = Place("accounts", 0)
    history = History(
        logs={accounts: log_of(DELETED_TWICE), Place(topic, 0): log_of(found)},
        changelogs={},
        committed={accounts: Committed(len(DELETED_TWICE))},
    )
    findings = Findings("exactly_once_v2")
    check_changes(history, OrderJudge(recount(history), findings), topic, caches=True)
    verdict = findings.verdict()
    assert verdict.ok == (not kinds), verdict.report()
    assert kinds <= verdict.kinds, verdict.report()


def test_a_store_that_is_behind_is_judged_by_its_position() -> None:
    draft = perfect(1, caches=False)
    counts = [(place, log) for place, log in draft.changelogs.items() if place.topic == "counts"]
    place, log = max(counts, key=lambda one: len(one[1]))
    middle = log[len(log) // 2].offset
    draft.positions[place] = middle
    draft.rows[place] = {
        record.key: (record.timestamp, record.value)
        for record in log
        if record.offset < middle and record.committed and record.key and record.value
    }
    verdict = check(draft.history(), guarantee="exactly_once_v2", caches=False)
    assert verdict.ok, verdict.report()
    assert verdict.figures["stores behind their changelogs"] == 1


def test_a_report_names_the_first_faults_and_counts_the_rest() -> None:
    draft = perfect(1, caches=False)
    place = max(draft.logs, key=lambda p: len(draft.logs[p]) if p.topic == "echo" else 0)
    removed = draft.logs[place][:]
    draft.logs[place].clear()
    draft.observed[place].clear()
    verdict = check(draft.history(), guarantee="exactly_once_v2", caches=False)
    lost = sum(record.committed for record in removed)
    assert verdict.counts["lost"] == lost
    report = verdict.report()
    assert f"lost: {lost}, doubled: 0" in report
    assert f"lost: and {lost - 5} more" in report
    assert f"{place}: order" in report
    assert report.endswith("FAULTS WERE FOUND")


def test_the_same_plan_makes_the_same_input() -> None:
    plan = InputPlan(seed=3, orders=300, batch=5, open=0.1)
    batches = list(plan.batches())
    assert batches == list(plan.batches())
    assert {batch.outcome for batch in batches} == {"committed", "aborted", "open"}
    assert batches != list(replace(plan, seed=5).batches())
