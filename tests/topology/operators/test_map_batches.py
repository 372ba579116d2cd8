"""map_batches: other values of many records, by one call."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.topology import StreamsBuilder, TopologyError, serdes
from tests.support.operators import driver_of, pairs, results

SENT = [("ab"[n % 2], n) for n in range(10)]


def test_values_are_mapped_in_batches_and_in_their_order() -> None:
    sizes: list[int] = []

    def score(values: list[int]) -> list[int]:
        sizes.append(len(values))
        return [value * 10 for value in values]

    found = results(lambda s: s.map_batches(score, max_records=4), SENT, commit="manual")
    assert found == [(key, n * 10) for key, n in SENT]
    assert sizes == [4, 4, 2]


def test_what_meets_another_way_is_called_for_by_itself() -> None:
    sizes: list[int] = []

    def score(values: list[int]) -> list[int]:
        sizes.append(len(values))
        return values

    found = results(lambda s: s.merge(s.map_batches(score)), SENT[:3])
    assert found == [pair for pair in SENT[:3] for _ in range(2)]
    assert sizes == [1, 1, 1]


def test_frames_of_pandas_come_and_go() -> None:
    def score(frame: Any) -> Any:
        return frame["n"] * 2 + frame["m"]

    sent = [("a", {"n": n, "m": 1}) for n in range(3)]
    assert results(lambda s: s.map_batches(score, as_="pandas"), sent) == [
        ("a", 1), ("a", 3), ("a", 5)
    ]  # fmt: skip


def test_a_frame_that_is_returned_gives_a_dict_for_each_row() -> None:
    def score(frame: Any) -> Any:
        return frame.assign(double=frame["n"] * 2)

    found = results(lambda s: s.map_batches(score, as_="pandas"), [("a", {"n": 1})])
    assert found == [("a", {"n": 1, "double": 2})]


def test_values_that_are_no_dicts_have_a_column_of_their_own() -> None:
    found = results(lambda s: s.map_batches(lambda f: f, as_="pandas"), SENT)
    assert found == SENT
    found = results(lambda s: s.map_batches(lambda t: t, as_="arrow"), SENT)
    assert found == SENT


def test_tables_of_arrow_come_and_go() -> None:
    import pyarrow.compute as pc

    def score(table: Any) -> Any:
        return pc.multiply(table["n"], 3)

    sent = [("a", {"n": n}) for n in range(3)]
    assert results(lambda s: s.map_batches(score, as_="arrow"), sent) == [
        ("a", 0), ("a", 3), ("a", 6)
    ]  # fmt: skip


def test_a_library_that_is_missing_is_named() -> None:
    stream = StreamsBuilder().stream("in")
    if _has("polars"):
        stream.map_batches(lambda f: f, as_="polars")
        return
    with pytest.raises(TopologyError, match="as_='polars' requires polars, which is not installed"):
        stream.map_batches(lambda f: f, as_="polars")


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def test_a_list_needs_no_library() -> None:
    code = (
        "import sys; from headrace import StreamsBuilder, TopologyTestDriver\n"
        "builder = StreamsBuilder()\n"
        "builder.stream('in').map_batches(lambda values: values).to('out')\n"
        "TopologyTestDriver(builder.build()).input('in').send('a', 1)\n"
        "print([m for m in ('pandas', 'pyarrow', 'polars') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1], "returned 1 values for a batch of 10 records that begins with this record"),
        (None, "returned None instead of a value for each record"),
        (7, "returned an int instead of a value for each record"),
        ((n for n in range(10)), "returned a generator, which would never run"),
    ],
)
def test_what_is_no_value_for_each_is_refused_with_names(returned: Any, said: str) -> None:
    driver = driver_of(lambda s: s.map_batches(lambda _: returned, name="score"), commit="manual")
    with pytest.raises(RecordError, match=said) as raised:
        driver.input("in").send_many(SENT)
    error = raised.value
    assert (error.topic, error.offset, error.node) == ("in", 0, "score")
    assert len(error.functions) == 1


def test_a_batch_that_fails_does_so_for_each_of_its_records() -> None:
    def score(values: list[int]) -> list[int]:
        if 5 in values:
            raise ValueError("five")
        return values

    settings = {
        "processing.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    driver = driver_of(
        lambda s: s.map_batches(score, max_records=4), settings=settings, commit="manual"
    )
    driver.input("in").send_many(SENT)
    assert [value for _, value in pairs(driver)] == [0, 1, 2, 3, 8, 9]
    letters = driver.output("dead", value=serdes.bytes).read_all()
    assert [letter.value for letter in letters] == [b"4", b"5", b"6", b"7"]


def test_values_may_wait_for_more_for_some_time() -> None:
    sizes: list[int] = []

    def score(values: list[int]) -> list[int]:
        sizes.append(len(values))
        return values

    driver = driver_of(lambda s: s.map_batches(score, max_records=4, max_ms=100), commit="manual")
    topic = driver.input("in")
    for n in range(3):
        topic.send("a", n)
    assert sizes == []
    driver.advance(timedelta(milliseconds=100))
    assert sizes == [3]
    for n in range(5):
        topic.send("a", n)
    assert sizes == [3, 4]
    driver.commit()  # nothing waits beyond a commit
    assert sizes == [3, 4, 1]
    assert [value for _, value in pairs(driver)] == [0, 1, 2, 0, 1, 2, 3, 4]


def test_what_fails_in_a_wait_names_its_record() -> None:
    def score(values: list[int]) -> list[int]:
        raise ValueError

    driver = driver_of(lambda s: s.map_batches(score, max_ms=100, name="score"), commit="manual")
    driver.input("in").send("a", 1)
    with pytest.raises(RecordError) as raised:
        driver.advance(timedelta(seconds=1))
    assert (raised.value.offset, raised.value.node) == (0, "score")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_records": 0}, "max_records must be an int of at least 1, not 0"),
        ({"max_ms": timedelta(seconds=1)}, "max_ms must be an int, not a timedelta"),
        ({"max_ms": 0}, "max_ms must be an int of at least 1"),
        ({"as_": "numpy"}, "as_ must be 'list', 'arrow', 'pandas' or 'polars', not 'numpy'"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_given(options: dict[str, Any], said: str) -> None:
    stream: Any = StreamsBuilder().stream("in")
    with pytest.raises(TopologyError, match=said):
        stream.map_batches(lambda values: values, **options)
