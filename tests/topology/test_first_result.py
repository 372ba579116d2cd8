"""What would never run is noticed where its function could not be told from a good one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from streams.errors import RecordError
from tests.support.operators import driver_of, results


async def check(key: str, value: int) -> bool:
    return False


def several(key: str, value: int) -> Any:
    yield value


STEPS: list[Callable[[Any, Any], Any]] = [
    lambda s, f: s.filter(f, name="step"),
    lambda s, f: s.filter_not(f, name="step"),
    lambda s, f: s.peek(f, name="step"),
    lambda s, f: s.for_each(f, name="step"),
    lambda s, f: s.split(name="step").branch(f).no_default_branch() and None,
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("called", "said"), [(check, "a coroutine"), (several, "a generator")])
def test_what_a_lambda_calls_and_nobody_runs_is_an_error_of_the_first_record(
    step: Callable[[Any, Any], Any], called: Any, said: str
) -> None:
    driver = driver_of(lambda s: step(s, lambda k, v: called(k, v)))
    with pytest.raises(RecordError, match=f"the function returned {said}, which would never run"):
        driver.input("in").send("a", 1)


def test_later_calls_are_the_function_s_own() -> None:
    callers: list[str] = []

    def odd(key: str, value: int) -> bool:
        callers.append(sys._getframe(1).f_code.co_name)
        return value % 2 == 1

    found = results(lambda s: s.filter(odd), [("a", n) for n in range(4)])
    assert found == [("a", 1), ("a", 3)]
    assert callers[0] == "call"
    assert set(callers[1:]) == {"process_0"}
