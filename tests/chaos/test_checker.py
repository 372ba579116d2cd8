from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.checker import check
from tests.chaos.damages import CASES, Case
from tests.chaos.inputs import InputPlan
from tests.chaos.perfect import Draft, PerfectRun
from tests.chaos.verdict import KINDS

seeds = st.integers(0, 1 << 32)
examples = settings(max_examples=8, deadline=None)


def perfect(seed: int, *, caches: bool) -> Draft:
    plan = InputPlan(seed=seed, orders=200, accounts=12, regions=5, batch=10, aborted=0.4)
    return PerfectRun(plan.batches(), seed=seed, caches=caches).finish()


@given(seeds)
@examples
@pytest.mark.parametrize("caches", [False, True])
def test_a_correct_history_has_no_problem(caches: bool, seed: int) -> None:
    history = perfect(seed, caches=caches).history()
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


def test_there_is_a_damage_of_each_kind() -> None:
    assert {kind for case in CASES for kind in case.kinds} == set(KINDS)
