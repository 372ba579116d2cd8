"""map_async: another value of each record, by calls that are made together."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams import TopologyTestDriver
from headrace.streams.errors import RecordError
from headrace.topology import Call, Retry, StreamsBuilder, TopologyError, serdes
from headrace.topology.errors import CallTimeoutError
from tests.spark_bridge.run.test_local_runs import compare
from tests.support.operators import driver_of, one, pairs, results

SECOND = timedelta(seconds=1)
DEAD = {"errors.dead.letter.queue.topic.name": "dead"}


async def doubled(value: int) -> int:
    await asyncio.sleep(3600)  # no time in a test
    return value * 2


def plainly_doubled(value: int) -> int:
    return value * 2


BOTH = pytest.mark.parametrize("function", [doubled, plainly_doubled])


@BOTH
def test_values_are_mapped_in_their_order(function: Callable[[int], Any]) -> None:
    sent = [(key, n) for n in range(100) for key in "abc"]
    hour = timedelta(hours=2)
    found = results(lambda s: s.map_async(function, concurrency=7, timeout=hour), sent)
    assert found == [(key, n * 2) for key, n in sent]


def test_headers_and_time_stay_and_nulls_are_handed_over() -> None:
    async def told(value: Any) -> list[Any]:
        return [value]

    record = one(lambda s: s.map_async(told), None, None, timestamp=7, headers=[("h", b"1")])
    assert (record.key, record.value, record.timestamp) == (None, [None], 7)
    assert list(record.headers) == [("h", b"1")]


def test_it_may_be_called_with_the_key() -> None:
    async def both(key: str, value: int) -> list[Any]:
        return [key, value]

    assert results(lambda s: s.map_async(both, with_key=True), [("a", 1)]) == [("a", ["a", 1])]


def test_a_function_that_asks_is_told_which_call_it_is() -> None:
    async def told(value: int, call: Call) -> list[Any]:
        return [value, call.key, call.topic, call.partition, call.offset, call.number]

    def step(stream: Any) -> Any:
        return stream.flat_map_values(lambda v: [v, v + 1]).map_async(told, name="ask")

    found = results(step, [("a", 1), ("a", 5)])
    assert [value for _, value in found] == [
        [1, "test/ask/in/0/0/0", "in", 0, 0, 0],
        [2, "test/ask/in/0/0/1", "in", 0, 0, 1],
        [5, "test/ask/in/0/1/0", "in", 0, 1, 0],
        [6, "test/ask/in/0/1/1", "in", 0, 1, 1],
    ]


def test_a_call_behind_a_cache_has_no_key_and_says_what_to_do() -> None:
    async def told(value: int, *, call: Call) -> int:
        assert call.topic is None
        call.key  # noqa: B018 - raises
        return value

    def step(stream: Any) -> Any:
        return stream.group_by_key().count(store="counts").to_stream().map_async(told, name="ask")

    driver = driver_of(step, commit="manual")
    driver.input("in").send("a", 1)
    with pytest.raises(RecordError) as raised:
        driver.commit()
    assert "cached=False" in str(raised.value.__cause__)


# -- attempts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
def test_what_fails_is_tried_again_with_the_same_key(is_async: bool) -> None:
    seen: list[Call] = []

    def fail_twice(value: int, call: Call) -> int:
        seen.append(call)
        if call.attempt < 3:
            raise OSError("refused")
        return value

    async def awaited(value: int, call: Call) -> int:
        return fail_twice(value, call)

    function = awaited if is_async else fail_twice
    retry = Retry(attempts=3, pause=SECOND)
    found = results(lambda s: s.map_async(function, retry=retry), [("a", 1)])
    assert found == [("a", 1)]
    assert [call.attempt for call in seen] == [1, 2, 3]
    assert len({call.key for call in seen}) == 1


def test_pauses_count_for_the_time_out_and_take_no_time_in_a_test() -> None:
    tried = []

    async def refused(value: int) -> int:
        tried.append(value)
        raise OSError("refused")

    retry = Retry(attempts=100, pause=SECOND, factor=1)
    step = driver_of(lambda s: s.map_async(refused, retry=retry, timeout=10.5 * SECOND, name="ask"))
    with pytest.raises(RecordError) as raised:
        step.input("in").send("a", 1)
    assert "longer than 10.5 s (11 attempts)" in str(raised.value)
    assert len(tried) == 11


def test_other_errors_than_those_named_are_not_tried_again() -> None:
    tried = []

    async def wrong(value: int) -> int:
        tried.append(value)
        raise ValueError("wrong")

    driver = driver_of(lambda s: s.map_async(wrong, retry=Retry(attempts=5, on=(OSError,))))
    with pytest.raises(RecordError):
        driver.input("in").send("a", 1)
    assert tried == [1]


# -- what fails ----------------------------------------------------------------------------------


async def refuse_odd(value: int) -> int:
    if value % 2:
        raise LookupError("odd")
    return value


def refuse_odd_plainly(value: int) -> int:
    if value % 2:
        raise LookupError("odd")
    return value


ODD = pytest.mark.parametrize("function", [refuse_odd, refuse_odd_plainly])
SENT = [("a", n) for n in range(5)]


@ODD
def test_a_failure_stops_and_names_record_node_and_function(
    function: Callable[[int], Any],
) -> None:
    driver = driver_of(lambda s: s.map_async(function, name="ask"))
    with pytest.raises(RecordError) as raised:
        driver.input("in").send_many(SENT)
    error = raised.value
    assert (error.topic, error.partition, error.offset, error.node) == ("in", 0, 1, "ask")
    assert [place.name for place in error.functions] == [function.__name__]
    assert isinstance(error.__cause__, LookupError)


def test_a_call_that_takes_too_long_names_record_node_and_function() -> None:
    driver = driver_of(lambda s: s.map_async(doubled, timeout=SECOND, name="ask"))
    with pytest.raises(RecordError) as raised:
        driver.input("in").send_many(SENT)
    error = raised.value
    assert (error.offset, error.node) == (0, "ask")
    assert "the call took longer than 1 s (1 attempt); give the operator a longer timeout=" in str(
        error
    )
    assert [place.name for place in error.functions] == ["doubled"]


@ODD
def test_a_record_that_fails_may_be_left_out(function: Callable[[int], Any]) -> None:
    assert results(lambda s: s.map_async(function, on_error="skip"), SENT) == [
        ("a", 0), ("a", 2), ("a", 4)
    ]  # fmt: skip


@ODD
def test_a_record_that_fails_may_become_a_dead_letter(function: Callable[[int], Any]) -> None:
    driver = driver_of(
        lambda s: s.map_async(function, on_error="dead_letter", name="ask"), settings=DEAD
    )
    driver.input("in").send_many(SENT)
    assert [value for _, value in pairs(driver)] == [0, 2, 4]
    letters = driver.output("dead", value=serdes.bytes).read_all()
    assert [letter.value for letter in letters] == [b"1", b"3"]
    headers = dict(letters[1].headers)
    assert headers["__streams.errors.offset"] == b"3"
    assert headers["__streams.errors.exception"] == b"LookupError"


def test_dead_letters_without_a_topic_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"ask.*dead\.letter\.queue\.topic\.name"):
        driver_of(lambda s: s.map_async(refuse_odd, on_error="dead_letter", name="ask"))


@ODD
def test_a_function_may_give_the_value_instead(function: Callable[[int], Any]) -> None:
    def instead(value: int, error: Exception) -> list[Any]:
        return [value, type(error).__name__]

    found = results(lambda s: s.map_async(function, on_error=instead), SENT)
    assert [v for _, v in found] == [0, [1, "LookupError"], 2, [3, "LookupError"], 4]


def test_a_function_that_fails_to_give_one_stops() -> None:
    def instead(value: int, error: Exception) -> int:
        raise ZeroDivisionError

    driver = driver_of(lambda s: s.map_async(refuse_odd, on_error=instead))
    with pytest.raises(RecordError) as raised:
        driver.input("in").send_many(SENT)
    assert raised.value.offset == 1
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


@ODD
def test_the_handler_is_asked_where_the_step_says_nothing(function: Callable[[int], Any]) -> None:
    seen = []

    def handler(failure: Any) -> str:
        seen.append((failure.node, failure.topic, failure.offset, failure.value))
        seen.append(failure.record.value)
        return "continue"

    settings = {"processing.exception.handler": handler}
    found = results(lambda s: s.map_async(function, name="ask"), SENT, settings=settings)
    assert [v for _, v in found] == [0, 2, 4]
    assert seen == [("ask", "in", 1, b"1"), 1, ("ask", "in", 3, b"3"), 3]


def test_what_fails_behind_it_is_told_with_its_own_record() -> None:
    def step(stream: Any) -> Any:
        return stream.map_async(plainly_doubled).map_values(lambda v: 1 / (v - 4), name="divide")

    driver = driver_of(step)
    with pytest.raises(RecordError) as raised:
        driver.input("in").send_many(SENT)
    assert (raised.value.offset, raised.value.node) == (2, "divide")


@pytest.mark.parametrize("is_async", [True, False])
def test_sys_exit_ends_the_application_and_asks_nobody(is_async: bool) -> None:
    def leave(value: int) -> None:
        sys.exit(3)

    async def awaited(value: int) -> None:
        leave(value)

    function = awaited if is_async else leave
    driver = driver_of(lambda s: s.map_async(function, on_error="skip"))
    with pytest.raises(RecordError, match="SystemExit, which ends the application") as raised:
        driver.input("in").send("a", 1)
    assert raised.value.offset == 0


def test_a_call_that_cancels_itself_is_an_error_of_its_record() -> None:
    async def cancel(value: int) -> None:
        raise asyncio.CancelledError

    driver = driver_of(lambda s: s.map_async(cancel))
    with pytest.raises(RecordError, match="the call was cancelled"):
        driver.input("in").send("a", 1)


def test_a_lambda_that_calls_a_coroutine_function_is_found_out() -> None:
    driver = driver_of(lambda s: s.map_async(lambda v: doubled(v)))
    with pytest.raises(RecordError, match="returned a coroutine, which would never run"):
        driver.input("in").send("a", 1)


# -- beside other ways ---------------------------------------------------------------------------


def test_what_meets_another_way_keeps_the_order_of_one_by_one() -> None:
    def written(function: Any) -> list[tuple[Any, Any]]:
        def step(stream: Any) -> Any:
            mapped = function(stream)
            return stream.filter(lambda _, v: v % 3).merge(mapped)

        return results(step, [("a", n) for n in range(20)])

    plainly = written(lambda s: s.map_values(plainly_doubled))
    assert written(lambda s: s.map_async(doubled, timeout=timedelta(hours=2))) == plainly


def test_any_order_lets_them_go_on_together() -> None:
    calls: list[int] = []

    class Watching:
        def __call__(self, value: int) -> int:
            calls.append(value)
            return value

    def step(stream: Any) -> Any:
        direct = stream.peek(lambda _, v: calls.append(-v))
        return direct.merge(stream.map_async(Watching(), order="any", concurrency=3))

    results(step, [("a", n) for n in range(1, 4)], commit="manual")
    assert calls == [-1, -2, -3, 1, 2, 3]


def test_a_test_that_is_a_coroutine_may_use_the_driver() -> None:
    async def test() -> list[tuple[Any, Any]]:
        return results(lambda s: s.map_async(doubled, timeout=timedelta(hours=2)), [("a", 2)])

    assert asyncio.run(test()) == [("a", 4)]


def test_work_in_an_executor_is_awaited() -> None:
    async def threaded(value: int) -> int:
        return await asyncio.to_thread(plainly_doubled, value)

    assert results(lambda s: s.map_async(threaded, timeout=SECOND), [("a", 2)]) == [("a", 4)]


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency must be an int of at least 1, not 0"),
        ({"timeout": 5}, "timeout must be a timedelta"),
        ({"timeout": timedelta(0)}, "timeout must be at least 1 ms"),
        ({"retry": 3}, r"retry must be Retry\(...\), not 3"),
        ({"order": "keep"}, "order must be 'kept' or 'any', not 'keep'"),
        ({"on_error": "drop"}, "on_error must be 'fail', 'skip' or 'dead_letter', not 'drop'"),
        ({"on_error": lambda: 1}, r"on_error is called as on_error\(value, error\)"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_given(options: dict[str, Any], said: str) -> None:
    stream = StreamsBuilder().stream("in")
    with pytest.raises(TopologyError, match=said):
        stream.map_async(doubled, **options)


def test_a_function_that_takes_other_values_is_refused() -> None:
    async def two(key: str, value: str) -> None: ...

    stream = StreamsBuilder().stream("in")
    with pytest.raises(TopologyError, match=r"fn is called as fn\(value\), and .*two"):
        stream.map_async(two)
    stream.map_async(two, with_key=True)


@pytest.mark.parametrize("given", [{"attempts": 0}, {"factor": 0.5}, {"pause": 3}])
def test_a_retry_that_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TopologyError):
        Retry(**given)


def test_a_time_out_is_one_of_pythons_too() -> None:
    assert isinstance(CallTimeoutError(5, 1), TimeoutError)


def test_an_aborted_run_is_called_for_again_with_the_same_keys() -> None:
    keys: list[str] = []

    def told(value: int, call: Call) -> int:
        keys.append(call.key)
        return value

    builder = StreamsBuilder()
    builder.stream("in").map_async(told, name="ask").to("out")
    with TopologyTestDriver(builder.build(), commit="manual") as driver:
        driver.input("in").send_many([("a", 1), ("b", 2)])
        driver.abort()
        driver.commit()
        assert driver.output("out").as_dict() == {"a": 1, "b": 2}
    assert keys[:2] == keys[2:]
    assert len(keys) == 4


def test_a_backfill_is_as_live() -> None:
    async def told(value: str, call: Call) -> str:
        return f"{value} {call.topic} {call.offset}"

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    asked = stream.map_async(told, name="ask", concurrency=3)
    scored = asked.map_batches(lambda values: [value.upper() for value in values])
    scored.group_by_key(key=serdes.string, value=serdes.string).reduce(
        lambda one, other: f"{one}, {other}", store="answers"
    ).to_stream().to("out", key=serdes.string, value=serdes.string)
    sent = [("in", "ab"[n % 2], f"{n}", 1_680_000_000_000 + n) for n in range(20)]
    compare(builder.build(), sent)
