"""What would never run is noticed where its function could not be told from a good one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.errors import RecordError, StreamsError
from headrace.topology import TopologyError
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


TABLE_STEPS: list[Callable[[Any, Any], Any]] = [
    lambda t, f: t.filter(f, name="step"),
    lambda t, f: t.filter_not(f, name="step"),
    lambda t, f: t.filter(f, name="step", store="rows"),
]


@pytest.mark.parametrize("step", TABLE_STEPS)
@pytest.mark.parametrize(("called", "said"), [(check, "a coroutine"), (several, "a generator")])
def test_a_table_s_predicate_is_looked_at_too(
    step: Callable[[Any, Any], Any], called: Any, said: str
) -> None:
    driver = driver_of(lambda s: step(s.to_table(), lambda k, v: called(k, v)))
    with pytest.raises(RecordError, match=f"the function returned {said}, which would never run"):
        driver.input("in").send("a", 1)


def test_a_table_s_predicate_is_looked_at_with_every_row() -> None:
    driver = driver_of(lambda s: s.to_table().filter(lambda k, v: v < 3 or check(k, v)))
    driver.input("in").send("a", 1)
    with pytest.raises(RecordError, match="returned a coroutine, which would never run") as caught:
        driver.input("in").send("a", 5)
    assert "KTABLE-FILTER" in str(caught.value)


def test_a_table_s_predicate_may_return_anything_that_is_true_or_false() -> None:
    found = results(lambda s: s.to_table().filter(lambda k, v: v % 2), [("a", 1), ("a", 2)])
    assert found == [("a", 1), ("a", None)]


def test_what_a_function_for_a_processor_returns_is_looked_at() -> None:
    driver = driver_of(lambda s: s.process(lambda record, context: check("a", 1), name="step"))
    with pytest.raises(RecordError, match="returned a coroutine, which would never run") as caught:
        driver.input("in").send("a", 1)
    assert "step" in str(caught.value)


def test_what_a_punctuator_returns_is_looked_at() -> None:
    class Punctuated:
        def init(self, context: Any) -> None:
            every = timedelta(milliseconds=1)
            context.schedule(every, lambda now: check("a", now), kind="stream_time")

        def process(self, record: Any) -> None:
            pass

    driver = driver_of(lambda s: s.process(Punctuated, name="step"))
    with pytest.raises(StreamsError, match="returned a coroutine, which would never run") as caught:
        driver.input("in").send("a", 1, timestamp=5)
    assert "step" in str(caught.value)


class Awaited:
    async def process(self, record: Any) -> None:
        pass


class Yielding:
    def process(self, record: Any) -> Any:
        yield record


class AwaitedInit:
    async def init(self, context: Any) -> None:
        pass

    def process(self, record: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (Awaited, r"Awaited\.process\(\) would never run: it is a coroutine function"),
        (Yielding, r"Yielding\.process\(\) would never run: it is a generator"),
        (AwaitedInit, r"AwaitedInit\.init\(\) would never run: it is a coroutine function"),
    ],
)
def test_a_processor_s_methods_that_would_never_run_are_refused(processor: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        driver_of(lambda s: s.process(processor))
