"""What cannot work is refused where it is written, and nothing that works is."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args

import pytest

from headrace.topology import (
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Topology,
    arguments,
    serdes,
)
from headrace.topology.errors import TopologyError
from headrace.topology.graph.graph import OffsetReset
from headrace.topology.operators.joins.stream_join import LateMatch
from headrace.topology.operators.windows.emission import Emit
from headrace.topology.processors.stores import Stores
from headrace.topology.serdes.schema_registry import MemoryRegistry

MINUTE = timedelta(minutes=1)


@dataclass
class Order:
    cents: int


class Adder:
    def __init__(self, more: int = 0) -> None:
        self.more = more

    def __call__(self, value: int) -> int:
        return value + self.more

    def method(self, key: str, value: int) -> int:
        return value

    @staticmethod
    def static(value: int) -> int:
        return value

    @classmethod
    def made(cls, value: int) -> int:
        return value


class AsyncCall:
    async def __call__(self, key: str, value: int) -> None: ...


class Meta(type):
    def __call__(cls, *values: Any) -> Any:
        return values


class WithMeta(metaclass=Meta):
    def __init__(self, one: int, two: int, three: int) -> None: ...


class New:
    def __new__(cls, *args: Any) -> New:
        return super().__new__(cls)

    def __init__(self, value: int) -> None: ...


def injected(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(value: Any) -> Any:
        return function(value, "a connection")

    return call


@injected
def with_connection(value: Any, connection: str) -> Any:
    return value


async def coroutine(key: str, value: int) -> None: ...
async def async_generator(key: str, value: int) -> Any:
    yield value


def generator(key: str, value: int) -> Any:
    yield value


def line() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def stream() -> Any:
    return StreamsBuilder().stream("in")


FILTER = (
    r"filter\(\) at .*: predicate is called as predicate\(key, value\), and "
    r".*<lambda> \(test_arguments.py:\d+\) takes \(value\); give it 2 parameters"
)


class Forgetful:
    """Changes what it is given, and says nothing of it."""

    def merge(self, key: str, one: dict[str, int], other: dict[str, int]) -> Any:
        if other:
            one.update(other)

    def __call__(self, key: str, value: int, total: dict[str, int]) -> None:
        for name in total:
            total[name] += value
        return


def forgetful(one: Any, other: Any, third: Any = None, fourth: Any = None) -> None:
    one.update(other)


def forgetful_merger(key: str, one: Any, other: Any) -> Any:
    one.update(other)


SESSIONS = SessionWindows(inactivity_gap=timedelta(minutes=1))

WORKS = [
    str, int, str.upper, len, repr, max, dict, Adder(1), Adder.static,
    Adder.made, functools.partial(pow, 2), functools.partial(lambda a, b: b, 1), with_connection,
    operator.itemgetter("a"), operator.attrgetter("x"), operator.methodcaller("upper"), WithMeta,
    New, Order, print, lambda *values: values, lambda value, more=1: value, [].append, {}.get,
    functools.lru_cache(str.lower),
    functools.singledispatch(lambda value: value), type("Bare", (), {"__call__": lambda s, v: v})(),
]  # fmt: skip


@pytest.mark.parametrize("function", WORKS, ids=lambda f: getattr(f, "__qualname__", repr(f))[:30])
def test_whatever_takes_a_value_is_taken(function: Callable[..., Any]) -> None:
    stream().map_values(function)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda s: s.filter(lambda value: True), FILTER),
        (lambda s: s.map_values(lambda key, value: value), "called with 1 argument, .*give it 1"),
        (lambda s: s.map_values(lambda value: value, with_key=True), "with 2 arguments, .* 2 p"),
        (lambda s: s.map_values(Adder().method), "Adder.method"),
        (lambda s: s.map_values(functools.partial(lambda a: a, 1)), "takes \\(\\)"),
        (lambda s: s.for_each(lambda: None), "for_each"),
        (lambda s: s.group_by_key().aggregate(lambda k: 0, lambda k, v, a: a), "initializer"),
        (lambda s: s.group_by_key().aggregate(lambda: 0, lambda v, a: a), r"aggregator\(key, val"),
        (lambda s: s.group_by_key().reduce(lambda v: v), "reducer"),
        (lambda s: s.to("out", partitioner=lambda key, value: 0), "partitioner"),
        (lambda s: s.to(lambda value: "out"), "topic"),
        (lambda s: s.split().branch(lambda v: True), "branch"),
        (lambda s: s.left_join(s.to_table(), lambda v: v), "joiner"),
        (lambda s: s.to_table().join(s.to_table(), lambda a, b: a, foreign_key=lambda k, v: v),
         "foreign_key"),
        (lambda s: s.to_table().map_values(lambda key, value: 1), "map_values"),
        (lambda s: s.to_table().join(s.to_table(), lambda a, b: a, foreign_key=lambda v: v,
                                     with_key=True), "joiner"),
        (lambda s: s.to_table().join(s.to_table(), lambda a, b: a, value="json"), "value= must"),
        (lambda s: s.map_values("upper"), "mapper must be a function, not a str"),
        (lambda s: s.filter(5), "predicate must be a function"),
        (lambda s: s.for_each(coroutine), "coroutine function, which would never run"),
        (lambda s: s.for_each(async_generator), "coroutine function"),
        (lambda s: s.for_each(functools.partial(coroutine, "k")), "coroutine function"),
        (lambda s: s.filter(AsyncCall()), "coroutine function"),
        (lambda s: s.process(coroutine), "coroutine function"),
        (lambda s: s.peek(generator), "generator function, which would never run"),
        (lambda s: s.group_by_key().reduce(forgetful), r"reducer forgetful \(test_arg.*returns N"),
        (lambda s: s.group_by_key().reduce(max, merger=Forgetful().merge), "merger Forgetful.m"),
        (lambda s: s.group_by_key().aggregate(dict, Forgetful()), "aggregator .*returns None"),
        (lambda s: s.group_by_key().cogroup(functools.partial(forgetful, 1)), "aggregator"),
        (lambda s: s.group_by(lambda k, v: v).windowed_by(SESSIONS).aggregate(
            dict, lambda k, v, a: a, forgetful_merger, store="visits"), "merger forgetful_merger"),
        (lambda s: s.to_table().group_by(lambda k, v: (k, v)).reduce(max, forgetful), "subtractor"),
        (lambda s: StreamsBuilder().stream("in", timestamps=lambda record: 0), "timestamps"),
        (lambda s: Topology().add_source("s", "in", timestamps=lambda: 0), "add_source"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_called_is_refused_at_once(
    refused: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(TopologyError, match=said):
        refused(stream())


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (Order, r"not the class Order; write serdes\.json_of\(Order\)"),
        (str, r"write serdes\.string"),
        (int, r"write serdes\.long"),
        (dict, r"write serdes\.json"),
        ("json", r"not 'json'; write serdes\.json$"),
        ("avro", r"write serdes\.string or "),
        (lambda data: data, r"serdes\.serde_from"),
        (type(serdes.string), r"write \w+\(\.\.\.\) instead of the class"),
    ],
)
def test_a_serde_that_is_none_is_refused_with_what_to_write(wrong: Any, advice: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: StreamsBuilder().stream("in", value=wrong),
        lambda: StreamsBuilder().table("in", key=wrong),
        lambda: stream().to("out", value=wrong),
        lambda: stream().group_by(lambda k, v: k, key=wrong),
        lambda: stream().group_by_key().aggregate(int, lambda k, v, a: a, value=wrong),
        lambda: stream().repartition(key=wrong),
        lambda: Stores.key_value("rows", value=wrong),
        lambda: Topology().add_source("s", "in", key=wrong),
    ]
    for call in calls:
        with pytest.raises(TopologyError, match=advice):
            call()


def test_a_serde_of_one_s_own_is_taken() -> None:
    class Reversed:
        name, immutable, canonical = "reversed", True, False

        def serialize(self, value: str) -> bytes:
            return value[::-1].encode()

        def deserialize(self, data: bytes) -> str:
            return data.decode()[::-1]

    StreamsBuilder().stream("in", value=Reversed()).to("out", value=None)


@pytest.mark.parametrize(
    "call",
    [
        lambda stream, _: stream.sample(),
        lambda stream, _: stream.deduplicate(),
        lambda stream, _: stream.join(),
        lambda stream, _: stream.filter(other=1),
        lambda _, table: table.left_join(),
    ],
)
def test_a_call_that_lacks_something_is_one_of_the_class_that_users_know(call: Any) -> None:
    builder = StreamsBuilder()
    with pytest.raises(TypeError, match=r"^K(Stream|Table)\.\w+\(\) "):
        call(builder.stream("in"), builder.table("rows", store="rows"))


def test_no_public_method_has_the_name_of_another_class() -> None:
    for face in (KStream, KTable):
        for name, method in inspect.getmembers(face, inspect.isfunction):
            if not name.startswith("_"):
                assert method.__qualname__ == f"{face.__qualname__}.{name}"


def test_an_error_names_the_line_of_the_call() -> None:
    with pytest.raises(TopologyError, match=rf"{__file__}:{line() + 1}: predicate is called as"):
        stream().filter(lambda value: True)


def test_a_store_of_one_s_own_has_one_parameter() -> None:
    Stores.custom("rows", lambda rows: rows, key=serdes.string)
    with pytest.raises(TopologyError, match=r"custom\(\) at .*: face"):
        Stores.custom("rows", lambda key, value: key)  # type: ignore[arg-type, misc]


def test_a_join_s_functions_may_take_the_key() -> None:
    builder = StreamsBuilder()
    table: Any = builder.table("rows")
    table.join(table, lambda k, a, b: a, foreign_key=lambda k, v: v, with_key=True)
    builder.stream("in").left_join(table, lambda k, a, b: a, with_key=True)


def test_a_table_s_own_options_are_let_through() -> None:
    stream().group_by_key().count(store=Materialized(store="rows", cached=False))


@pytest.mark.parametrize(
    "write",
    [
        lambda b: b.stream("a").to("a"),
        lambda b: b.stream(["a", "b"]).filter(lambda k, v: v).to("b"),
        lambda b: b.table("a").to_stream().to("a"),
        lambda b: (b.stream("a").to("b"), b.stream("b").to("c"), b.stream("c").to("a")),
        lambda b: b.stream("a").group_by(lambda k, v: v).count().to_stream().to("a"),
    ],
)
def test_a_sink_that_feeds_its_own_source_is_refused(write: Callable[[Any], Any]) -> None:
    builder = StreamsBuilder()
    write(builder)
    with pytest.raises(TopologyError, match=r"endlessly; .* to\(lambda key, value: '[abc]'\)"):
        builder.build()


@pytest.mark.parametrize(
    "write",
    [
        lambda b: (b.stream("a").to("b"), b.stream("b").to("c")),
        lambda b: (b.stream("a").to("c"), b.stream("b").to("c")),
        lambda b: b.stream("a").to(lambda key, value: "a"),
        lambda b: (b.stream("a").to("g"), b.global_table("g")),
    ],
)
def test_topics_that_lead_on_or_back_on_purpose_are_taken(write: Callable[[Any], Any]) -> None:
    builder = StreamsBuilder()
    write(builder)
    builder.build()


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (
            lambda s: StreamsBuilder().stream("in", offset_reset="newest"),
            "offset_reset must be 'earliest' or 'latest', not 'newest' .did you mean 'latest'",
        ),
        (lambda s: StreamsBuilder().table("in", offset_reset="Latest"), "did you mean 'latest'"),
        (lambda s: Topology().add_source("s", "in", offset_reset="none"), "offset_reset must be"),
        (
            lambda s: s.group_by_key().windowed_by(
                SessionWindows(inactivity_gap=MINUTE), emit="on_close"
            ),
            "did you mean 'on_window_close'",
        ),
        (
            lambda s: s.left_join(s, pow, JoinWindows(time_difference=MINUTE), late_match="emits"),
            "late_match must be 'emit' or 'drop', not 'emits' .did you mean 'emit'",
        ),
        (lambda s: MemoryRegistry("backward"), "did you mean 'BACKWARD'"),
    ],
)
def test_a_word_that_an_argument_does_not_take_is_refused(
    refused: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(TopologyError, match=said):
        refused(stream())


def test_the_words_are_those_that_types_tell() -> None:
    kinds = (OffsetReset, LateMatch, Emit)
    assert [get_args(kind) for kind in kinds] == list(arguments._CHOICES.values())


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda s: s.map_values(None), r"map_values\(\) at .*: mapper"),
        (lambda s: s.map(None), r"map\(\) at .*: mapper"),
        (lambda s: s.filter(None), "predicate"),
        (lambda s: s.for_each(None), r"for_each\(\)"),
        (lambda s: s.group_by(None), "group_by"),
        (lambda s: s.group_by_key().reduce(None), "reducer"),
        (lambda s: s.group_by_key().aggregate(None, lambda k, v, a: a), "initializer"),
        (lambda s: s.group_by_key().aggregate(int, None), "aggregator"),
        (lambda s: s.join(s.to_table(), None), "joiner"),
        (lambda s: s.to_table().filter(None), "predicate"),
        (lambda s: s.to_table().join(s.to_table(), None), "joiner"),
    ],
)
def test_none_is_no_function_where_one_has_to_be_given(
    refused: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(TopologyError, match=f"{said}.* must be a function, not None"):
        refused(stream())


def test_what_may_return_a_row_is_taken() -> None:
    """None deletes a row, which some records may do; and a function may have no end at all."""

    def none_for_some(one: Any, other: Any) -> Any:
        if other:
            return one
        return None

    def never_ends(one: Any, other: Any) -> Any:
        raise NotImplementedError

    taken: list[Any] = [
        none_for_some,
        never_ends,
        lambda one, other: other and None,
        lambda one, other: None if other else one,
        lambda one, other: one.update(other),
        lambda one, other: None,
        max,
        functools.partial(none_for_some),
    ]
    for number, reducer in enumerate(taken):
        stream().group_by_key().reduce(reducer, store=f"rows-{number}")
