"""What users' functions are called, and where they stand."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.topology import Processor, StreamsBuilder, serdes
from headrace.topology.functions import SourceLocation, functions_in, location_of
from headrace.topology.timestamps import wallclock_timestamp

HERE = f"{__name__.replace('.', '/')}.py"
SECRET = "hunter2"


def double(n: int) -> int:
    return 2 * n


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*values: Any) -> Any:
        return function(*values)

    return wrapper


def decorated(n: int) -> int:
    return n


@functools.lru_cache
def cached(n: int) -> int:
    return n


class Scale:
    def __init__(self, by: object) -> None:
        self.by = by

    def times(self, n: int) -> int:
        return n

    @classmethod
    def of(cls, n: int) -> int:
        return n

    @staticmethod
    def plain(n: int) -> int:
        return n

    def __call__(self, n: int) -> int:
        return n

    def __repr__(self) -> str:
        return SECRET


@dataclass
class Point:
    x: int


class Count(Processor[str, int, str, int]):
    def process(self, record: Any) -> None:
        pass


def line_of(function: Any) -> int:
    line: int = function.__code__.co_firstlineno
    return line


def local() -> Callable[[int], int]:
    def inside(n: int) -> int:
        return n

    return inside


FOUND: list[tuple[Any, int | None, str]] = [
    (double, line_of(double), "double"),
    (local(), line_of(local()), "inside"),
    (noted(decorated), line_of(decorated), "decorated"),
    (cached, line_of(cached.__wrapped__), "cached"),
    (functools.partial(double, SECRET), line_of(double), "double"),
    (Scale(SECRET).times, line_of(Scale.times), "Scale.times"),
    (Scale.of, line_of(Scale.of), "Scale.of"),
    (Scale.plain, line_of(Scale.plain), "Scale.plain"),
    (Scale(SECRET), line_of(Scale.__call__), "Scale.__call__"),
    (Count, line_of(Count.process), "Count.process"),
    (str.upper, None, "str.upper"),
    (SECRET.join, None, "str.join"),
    (len, None, "len"),
    (int, None, "int"),
    (operator.add, None, "operator.add"),
    (operator.itemgetter(SECRET), None, "operator.itemgetter"),
    (functools.partial(int, base=2), None, "int"),
    (Point, None, f"{__name__}.Point"),
]


@pytest.mark.parametrize(("function", "line", "name"), FOUND, ids=lambda v: str(v)[:20])
def test_a_function_is_called_by_its_name_and_its_place(
    function: Any, line: int | None, name: str
) -> None:
    place = location_of(function)
    assert str(place) == (name if line is None else f"{HERE}:{line} {name}")
    assert place is not None
    assert place.absolute == (None if line is None else f"{__file__}:{line} {name}")


def test_a_lambda_has_a_place_and_no_name() -> None:
    function = lambda n: n  # noqa: E731
    assert str(location_of(function)) == f"{HERE}:{line_of(function)} <lambda>"


def test_what_is_ours_or_no_function_has_none() -> None:
    for given in (wallclock_timestamp, serdes.long.serialize, None, 1, "text", SECRET):
        assert location_of(given) is None


def test_a_name_is_on_one_line_whatever_it_is() -> None:
    def named(n: int) -> int:
        return n

    named.__qualname__ = "a\nimport os\r\x0c\u2028b"
    assert str(location_of(named)) == f"{HERE}:{line_of(named)} a?import os???b"
    named.__qualname__ = "é 字"
    assert str(location_of(named)) == f"{HERE}:{line_of(named)} é 字"


class Anything:
    """Answers whatever it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *values: Any) -> None:
        pass


def test_an_object_that_has_every_attribute_is_placed_at_its_call() -> None:
    place = location_of(Anything())
    assert str(place) == f"{HERE}:{line_of(Anything.__call__)} Anything.__call__"


@pytest.mark.parametrize(
    ("file", "module", "shown"),
    [
        ("/home/ann/app/examples/word_count.py", "examples.word_count", "examples/word_count.py"),
        ("/home/ann/app/shop.py", "shop", "shop.py"),
        ("/home/ann/app/shop.py", "__main__", "shop.py"),
        ("/home/ann/app/shop/__init__.py", "shop", "shop/__init__.py"),
        ("/tmp/ipykernel_17/42.py", "__main__", "42.py"),
        ("<stdin>", "__main__", "<stdin>"),
        ("/tmp/files.zip/examples/demo.py", "examples.demo", "examples/demo.py"),
        ("relative/other.py", "a.b.c", "other.py"),
    ],
)
def test_a_path_is_its_end_that_tells_the_module(file: str, module: str, shown: str) -> None:
    assert str(SourceLocation("f", file, 3, module)) == f"{shown}:3 f"


def test_the_functions_of_a_node_are_found_and_those_of_serdes_are_not() -> None:
    def keep(key: Any, value: Any) -> bool:
        return True

    own = serdes.serde_from(name="own", serialize=str.encode, deserialize=bytes.decode)
    builder = StreamsBuilder()
    rows = builder.table("t", key=own, value=own)
    rows.filter(keep, name="kept").filter_not(keep, name="left", store="left")
    rows.map_values(double, name="mapped")  # type: ignore[arg-type]
    rows.to_stream().process(Count, name="processor")  # type: ignore[arg-type]
    rows.to_stream().process(lambda record, context: None, name="function")
    nodes = {node.name: node for sub in builder.build().sub_topologies for node in sub.nodes}
    named = {
        name: [str(location_of(function)).rpartition(" ")[2] for function in functions_in(node)]
        for name, node in nodes.items()
    }
    assert {name: found for name, found in named.items() if found} == {
        "kept": ["keep"],
        "left": ["keep"],
        "mapped": ["double"],
        "processor": ["Count.process"],
        "function": ["<lambda>"],
    }
