"""What is reduced and aggregated before a repartition topic is what it would be behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from headrace.streams import TopologyTestDriver
from headrace.streams.errors import RecordError, StreamsError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.topology import StreamsBuilder, Topology, serdes
from headrace.topology.serdes.partials import MARK

ON = "combine.before.repartition"
MOVED = "test-by-kind-repartition"
EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2"}

Fold = Callable[[Any], Any]
"""Adds a fold with the store ``folded`` to a grouped stream; returns the table."""
Rows = dict[Any, tuple[Any, int]]


@dataclass(frozen=True)
class Amount:
    """A value of an immutable class."""

    units: int
    parts: tuple[int, ...] = ()


@dataclass
class Basket:
    """A value that anybody can change."""

    items: list[int]


def folded(fold: Fold, value: Any = serdes.long, key: Any = serdes.string) -> Topology:
    """Values are folded by the first letters of their keys."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=value)
    fold(stream.group_by(lambda k, _: k[0], key=key, name="by-kind")).to_stream().to("out")
    return builder.build()


def driver_of(
    topology: Topology, optimization: str = ON, partitions: int = 3, **settings: Any
) -> TopologyTestDriver:
    """A driver that commits when it is told to."""
    own = {**EXACTLY_ONCE, "topology.optimization": optimization, **settings}
    return TopologyTestDriver(topology, own, partitions=partitions, commit="manual")


def moved(driver: TopologyTestDriver) -> list[Any]:
    """What the repartition topic has."""
    log = driver.cluster
    return [m for place in log.partitions(MOVED) for m in log.log(place).entries if m is not None]


def rows(driver: TopologyTestDriver) -> Rows:
    """The committed rows with their times."""
    found = driver.store("folded", committed=True).rows()
    return {key: (value, timestamp) for key, value, timestamp in found}


def send(driver: TopologyTestDriver, values: Sequence[Any], keys: str = "ab") -> None:
    """Write values under keys in turn; the times go back and forth."""
    for number, value in enumerate(values):
        key = f"{keys[number % len(keys)]}{number % 3}"
        driver.input("in").send(key, value, timestamp=1000 + number * 7 % 50)


def run(topology: Topology, values: Sequence[Any], optimization: str, **options: Any) -> Any:
    """The rows, and the last result of each key, of commits now and then."""
    with driver_of(topology, optimization, **options) as driver:
        for start in range(0, len(values), 5):
            send(driver, values[start : start + 5])
            driver.commit()
        count = len(moved(driver))
        return rows(driver), driver.output("out").as_dict(), count


def plus(_: Any, one: Any, other: Any) -> Any:
    return one + other


def append(_: Any, value: Any, values: list[Any]) -> list[Any]:
    """Changes its aggregate in place, as functions do."""
    values.append(value)
    return values


def extend(_: Any, one: list[Any], other: list[Any]) -> list[Any]:
    one.extend(other)
    return one


def total(_: Any, value: Any, so_far: dict[str, Any]) -> dict[str, Any]:
    return {"n": so_far["n"] + 1, "sum": so_far["sum"] + value["amount"]}


def add_totals(_: Any, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: one[name] + other[name] for name in one}


def ends(one: int, other: int) -> int:
    """The tens of the one and the ones of the other: in any groups, and in no other order."""
    return one // 10 * 10 + other % 10


CASES: dict[str, tuple[Any, Fold, Sequence[Any]]] = {
    "sums": (
        serdes.long,
        lambda on: on.reduce(lambda one, other: one + other, merger=plus, store="folded"),
        range(30),
    ),
    "the first and the last": (
        serdes.long,
        lambda on: on.reduce(ends, merger=lambda _, a, b: ends(a, b), store="folded"),
        range(11, 99, 3),
    ),
    "sums in a store of doubles": (
        serdes.long,
        lambda on: on.aggregate(
            float, lambda _, n, x: x + n / 4, merger=plus, store="folded", value=serdes.double
        ),
        range(30),
    ),
    "strings": (
        serdes.string,
        lambda on: on.reduce(lambda one, other: one + other, merger=plus, store="folded"),
        "abcdefghijklmnopqrstuvwxyz",
    ),
    "floats in JSON": (
        serdes.json,
        lambda on: on.reduce(lambda one, other: one + other, merger=plus, store="folded"),
        [n / 8 for n in range(30)],
    ),
    "lists that are changed in place": (
        serdes.json,
        lambda on: on.aggregate(list, append, merger=extend, store="folded", value=serdes.json),
        [*range(9), "text", 2.5, True, {"b": 1, "a": [2]}, [[1]], *range(9)],
    ),
    "totals of documents": (
        serdes.json,
        lambda on: on.aggregate(
            lambda: {"n": 0, "sum": 0}, total, merger=add_totals, store="folded", value=serdes.json
        ),
        [{"amount": n, "currency": "EUR"} for n in range(30)],
    ),
    "frozen classes": (
        serdes.json_of(Amount),
        lambda on: on.reduce(
            lambda a, b: Amount(a.units + b.units, a.parts + b.parts),
            merger=lambda _, a, b: Amount(a.units + b.units, a.parts + b.parts),
            store="folded",
        ),
        [Amount(n, (n,)) for n in range(30)],
    ),
    "classes that can be changed": (
        serdes.json_of(Basket),
        lambda on: on.aggregate(
            lambda: Basket([]),
            lambda _, one, all: (all.items.extend(one.items), all)[1],  # noqa: A006
            merger=lambda _, one, other: (one.items.extend(other.items), one)[1],
            store="folded",
            value=serdes.json_of(Basket),
        ),
        [Basket([n]) for n in range(30)],
    ),
    "with the key": (
        serdes.long,
        lambda on: on.aggregate(
            str, lambda k, n, s: f"{s}{k}{n}", merger=plus, store="folded", value=serdes.string
        ),
        range(30),
    ),
    "nothing for some values": (
        serdes.long,
        lambda on: on.aggregate(
            int,
            lambda _, n, so_far: None if n == 7 else so_far + n,
            merger=plus,
            store="folded",
            value=serdes.long,
        ),
        [*range(20), 7, *range(20), 7, 7],
    ),
    "nothing behind a change in place": (
        serdes.json,
        lambda on: on.aggregate(
            list,
            lambda _, n, ns: append(_, n, ns) if n % 6 else ns.clear(),
            merger=extend,
            store="folded",
            value=serdes.json,
        ),
        range(1, 40),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_rows_times_and_last_results_are_those_without_it(case: Any, guarantee: str) -> None:
    """In one partition a key's records have one order, however they are folded."""
    value, fold, values = case
    options = {"partitions": 1, "processing.guarantee": guarantee}
    apart = run(folded(fold, value), values, "none", **options)
    found = run(folded(fold, value), values, ON, **options)
    assert found[:2] == apart[:2]
    assert repr(found[:2]) == repr(apart[:2]), "1 == 1.0 == True"
    if guarantee == "exactly_once_v2":
        assert found[2] < apart[2]


@pytest.mark.parametrize("fold", ["sums", "the first and the last"])
def test_a_commit_writes_one_record_a_task_and_key(fold: str) -> None:
    value, add, _ = CASES[fold]
    with driver_of(folded(add, value)) as driver:
        send(driver, range(10, 40))
        assert moved(driver) == []
        driver.commit()
        assert 2 <= len(moved(driver)) <= 3 * 2
        assert all(m.headers() == [(MARK, b"reduce")] for m in moved(driver))
        shown = [record.value for record in driver.output(MOVED).read_all()]
        assert fold != "sums" or sum(shown) == sum(range(10, 40))


def test_a_partial_aggregate_is_shown_as_what_it_is() -> None:
    _, add, _ = CASES["lists that are changed in place"]
    with driver_of(folded(add, serdes.json), partitions=1) as driver:
        send(driver, [1, 2, 3], keys="a")
        driver.commit()
        (record,) = driver.output(MOVED).read_all()
        assert (record.key, record.value) == ("a", [1, 2, 3])


# -- what the functions are given ------------------------------------------------------------------


@pytest.mark.parametrize("optimization", ["none", ON])
def test_functions_are_given_what_bytes_give_back(optimization: str) -> None:
    """Of a tuple a list, of a key of another class the serde's, and no object of others'."""
    seen: list[Any] = []
    mine = {"n": (1, 2)}

    def collect(key: Any, value: Any, values: list[Any]) -> list[Any]:
        seen.append((type(key), value, values))
        value["n"].append(3)
        return [*values, value]

    class Word(str):
        __slots__ = ()

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.json).map(
        lambda k, _: (Word(k), mine)
    )
    kept = {"merger": plus, "store": "folded", "value": serdes.json}
    words = serdes.serde_from(
        serialize=lambda word: str(word).encode(), deserialize=bytes.decode, name="words"
    )
    grouped = stream.group_by(lambda k, _: Word(k[0]), key=words, name="by-kind")
    grouped.aggregate(list, collect, **kept).to_stream().to("out")
    with driver_of(builder.build(), optimization, partitions=1) as driver:
        send(driver, [None, None], keys="a")
        driver.commit()
        assert rows(driver)["a"][0] == [{"n": [1, 2, 3]}, {"n": [1, 2, 3]}]
    assert mine == {"n": (1, 2)}
    assert [one[0] for one in seen] == [str, str]
    assert seen[1][2] == [{"n": [1, 2, 3]}]


def test_a_reduced_value_is_what_its_store_gives_back() -> None:
    """The store has another serde than the topic."""
    seen: list[Any] = []

    def either(one: Any, other: Any) -> Any:
        seen.append((one, other))
        return max(one, other)

    def add(on: Any) -> Any:
        return on.reduce(
            either, merger=lambda _, a, b: max(a, b), store="folded", value=serdes.double
        )

    found = []
    for optimization in ("none", ON):
        seen.clear()
        found.append((run(folded(add), [1, 2, 3], optimization, partitions=1)[:2], repr(seen)))
    assert found[0] == found[1]
    assert found[0][0][0]["a"][0] == 3.0


# -- order -----------------------------------------------------------------------------------------


def test_records_of_a_key_keep_their_order_around_one_that_is_written_by_itself() -> None:
    """Partial result, single record, partial result."""
    _, add, _ = CASES["nothing for some values"]
    with driver_of(folded(add), partitions=1) as driver:
        send(driver, [1, 2, 7, 3, 4], keys="a")
        driver.commit()
        shown = [(r.value, bool(r.headers)) for r in driver.output(MOVED).read_all()]
        assert shown == [(3, True), (7, False), (7, True)]
        assert rows(driver) == {"a": (7, 1028)}


def test_a_row_that_goes_for_what_comes_together_has_the_value_that_it_would_have() -> None:
    """Its time may be that of a record from before it went, as nobody has seen it go."""

    def add(on: Any) -> Any:
        def plus_or_nothing(one: int, other: int) -> int | None:
            return one + other or None

        return on.reduce(
            plus_or_nothing, merger=lambda _, a, b: plus_or_nothing(a, b), store="folded"
        )

    values = [5, 1, 3, -5, -1, -3, 4, -4, 2, 2, -2, -2, 1, -1, 6, 3, -6, -3, 2, 8]
    found = []
    for optimization in ("none", ON):
        kept, last, _ = run(folded(add), values, optimization, partitions=1)
        found.append(({key: value for key, (value, _) in kept.items()}, last))
    assert found[0] == found[1]


def test_what_is_changed_in_place_and_then_gone_was_what_it_was() -> None:
    """A partial result goes ahead of the record that took it away, as it was before."""

    def add_up(_: Any, n: int, total: dict[str, int]) -> dict[str, int] | None:
        total["n"] += n
        return total if total["n"] else None

    def both(_: Any, one: dict[str, int], other: dict[str, int]) -> dict[str, int] | None:
        return add_up(None, other["n"], one)

    def add(on: Any) -> Any:
        return on.aggregate(
            lambda: {"n": 0}, add_up, merger=both, store="folded", value=serdes.json
        )

    found = []
    for optimization in ("none", ON):
        with driver_of(folded(add), optimization, partitions=1) as driver:
            for values in ([7], [5, -5, 3]):
                send(driver, values, keys="a")
                driver.commit()
            found.append(rows(driver))
    assert found[0] == found[1] == {"a": ({"n": 10}, 1014)}


# -- where nothing is saved ------------------------------------------------------------------------


def test_keys_that_do_not_come_again_are_written_as_they_are_for_a_while() -> None:
    """And folded again once they come again, in the same order."""

    def add(on: Any) -> Any:
        return on.reduce(ends, merger=lambda _, a, b: ends(a, b), store="folded")

    def topology() -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in", key=serdes.string, value=serdes.long)
        grouped = stream.group_by(lambda k, _: k, key=serdes.string, name="by-kind")
        add(grouped).to_stream().to("out")
        return builder.build()

    def forms(driver: TopologyTestDriver, seen: int) -> tuple[int, int]:
        """How many partial results and single records there are behind the first ones."""
        written = moved(driver)[seen:]
        marks = sum(bool(m.headers()) for m in written)
        return marks, len(written) - marks

    with driver_of(topology(), partitions=1) as driver, driver_of(topology(), "none") as apart:
        steps = [
            ([(f"k{n}", n % 90 + 10) for n in range(1200)], (0, 1200)),
            ([(f"k{n % 3}", n % 80 + 11) for n in range(12_000)], (0, 12_000)),
            ([(f"k{n % 3}", n % 70 + 12) for n in range(1200)], (3, 0)),
            ([(f"k{n}", n % 60 + 13) for n in range(1200)], (0, 1200)),
        ]
        for sent, expected in steps:
            seen = len(moved(driver))
            for one in (driver, apart):
                one.input("in").send_many(sent)
                one.commit()
            assert forms(driver, seen) == expected
        assert rows(driver) == rows(apart)


# -- aborts and upgrades ---------------------------------------------------------------------------


def test_an_abort_leaves_nothing_of_them() -> None:
    _, add, _ = CASES["sums"]
    with driver_of(folded(add)) as driver:
        send(driver, range(30))
        driver.abort()
        driver.crash(at="caches_flushed")
        driver.commit()
        assert sum(value for value, _ in rows(driver).values()) == sum(range(30))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("first", ["none", ON])
def test_it_is_switched_while_records_of_the_other_form_wait(case: Any, first: str) -> None:
    """An upgrade either way: whoever reads the topic takes both forms."""
    value, fold, values = case
    topology, then = folded(fold, value), ON if first == "none" else "none"
    with driver_of(topology, first, partitions=1) as driver:
        send(driver, values)
        driver.commit()
        waiting = moved(driver)
    with driver_of(topology, then, partitions=1) as driver:
        for m in waiting:
            time = m.timestamp()[1]
            driver.cluster.append(MOVED, m.value(), m.key(), -1, time, m.headers())
        send(driver, values)
        driver.commit()
        found = rows(driver)
    with driver_of(topology, "none", partitions=1) as driver:
        send(driver, values)
        driver.commit()
        send(driver, values)
        driver.commit()
        assert found == rows(driver)


def test_without_a_merger_a_partial_result_is_refused() -> None:
    """A version that has lost its merger says so, and folds nothing wrongly."""
    with driver_of(folded(lambda on: on.reduce(max, store="folded"))) as driver:
        driver.cluster.append(MOVED, bytes(8), b"a", -1, 0, [(MARK, b"reduce")])
        with pytest.raises(RecordError, match="partial aggregate of 'reduce'"):
            driver.run()


@pytest.mark.parametrize(("call", "value"), [("count", bytes(8)), ("reduce", b"short")])
def test_what_is_no_partial_result_of_it_is_refused(call: str, value: bytes) -> None:
    _, add, _ = CASES["sums"]
    with driver_of(folded(add)) as driver:
        driver.cluster.append(MOVED, value, b"a", -1, 0, [(MARK, call.encode())])
        with pytest.raises(RecordError, match=f"partial aggregate of '{call}'"):
            driver.run()


def test_a_header_from_elsewhere_makes_no_partial_result() -> None:
    _, add, _ = CASES["sums"]
    for optimization in ("none", ON):
        with driver_of(folded(add), optimization) as driver:
            for mark in (b"reduce", b"count"):
                driver.input("in").send("a", 5, headers=[(MARK, mark), ("trace", mark)])
            driver.commit()
            assert rows(driver)["a"][0] == 10
            assert list(driver.output("out").read().headers) == [("trace", b"count")]


def test_nulls_are_left_out() -> None:
    _, add, _ = CASES["sums"]
    with driver_of(folded(add)) as driver:
        send(driver, [1, None, 2], keys="a")
        driver.commit()
        assert rows(driver)["a"][0] == 3


# -- errors ----------------------------------------------------------------------------------------


def failing(*values: Any) -> Any:
    """Fails on 13."""
    if 13 in values:
        raise LookupError("secret")
    return values[-2] + values[-1]


def test_a_function_that_fails_is_named_with_its_node_and_the_record_of_the_input() -> None:
    def add(on: Any) -> Any:
        return on.reduce(failing, merger=plus, store="folded", name="sum-up")

    with driver_of(folded(add), partitions=1) as driver:
        with pytest.raises(RecordError) as caught:
            send(driver, [1, 2, 13], keys="a")
        text = str(caught.value)
        assert "sum-up" in text
        assert "LookupError" in text
        assert "test_combined_folds.py" in text
        assert "failing" in text
        assert "secret" not in text
        assert (caught.value.topic, caught.value.offset) == ("in", 2)


def send_and_commit(driver: TopologyTestDriver, values: Sequence[Any]) -> None:
    send(driver, values, keys="a")
    driver.commit()


@pytest.mark.parametrize("values", [[13, 1, 2, 3], [1, 13, 2], [5, 13], [13, 5]])
def test_the_record_that_a_reduce_fails_on_is_named_although_others_are_folded(
    values: list[int],
) -> None:
    """A first record is held as it is, so that the function fails with the next one beside it."""

    def add(on: Any) -> Any:
        return on.reduce(failing, merger=plus, store="folded", name="sum-up")

    with driver_of(folded(add), partitions=1) as driver:
        send(driver, [100, 200], keys="a")
        driver.commit()
        with pytest.raises(RecordError) as caught:
            send_and_commit(driver, values)
        place = TopicPartition(caught.value.topic, 0)
        named = driver.cluster.log(place).entries[caught.value.offset]
        assert serdes.long.deserialize(named.value()) == 13


def test_a_merger_that_fails_is_named_with_its_node_and_the_partial_result() -> None:
    def add(on: Any) -> Any:
        return on.reduce(
            lambda one, other: one + other, merger=failing, store="folded", name="sum-up"
        )

    with driver_of(folded(add), partitions=1) as driver:
        send(driver, [13], keys="a")
        driver.commit()
        send(driver, [1, 2], keys="a")
        with pytest.raises(RecordError) as caught:
            driver.commit()
        text = str(caught.value)
        assert "sum-up" in text
        assert "LookupError" in text
        assert "failing" in text
        assert (
            "the record is a partial aggregate of 'reduce', of an unknown number of records" in text
        )
        assert (caught.value.topic, caught.value.offset) == (MOVED, moved(driver)[-1].offset())


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_partial_result_that_cannot_be_written_is_told_with_the_records_it_may_be_of(
    guarantee: str,
) -> None:
    _, add, _ = CASES["sums"]
    options = {"processing.guarantee": guarantee}
    with driver_of(folded(add), partitions=1, **options) as driver:
        if guarantee == "exactly_once_v2":
            driver.input("in").send_many([("a", 2**62), ("a", 2**62)])
            tell: Callable[[], None] = driver.commit
        else:
            tell = partial(driver.input("in").send_many, [("a", 2**62), ("a", 2**62)])
        with pytest.raises(StreamsError, match="64 bits") as caught:
            tell()
        assert "in-0 offsets 0 to 1, node by-kind-repartition-sink" in str(caught.value)
        assert "set topology.optimization=none to find the record" in str(caught.value)


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lists that are changed in place", "strings", "frozen classes"])
def test_partial_results_that_grow_are_written_before_they_take_more_than_a_cache(
    name: str,
) -> None:
    """In the transaction of the commit: an abort leaves nothing of them."""
    value, add, _ = CASES[name]
    text = "x" * 300
    # Few numbers that are long: each record makes all of them anew.
    sent: Any = Amount(1, (2**62,) * 5) if name == "frozen classes" else text
    with driver_of(
        folded(add, value), partitions=1, **{"statestore.cache.max.bytes": 100_000}
    ) as driver:
        for _ in range(2):
            driver.input("in").send_many([("a", sent)] * 1100)
        assert len(moved(driver)) >= 2
        driver.abort()
        driver.commit()
        (found,) = rows(driver).values()
        length = len(found[0].parts) // 5 if name == "frozen classes" else len(found[0])
        assert length == 2200 * (300 if name == "strings" else 1)
