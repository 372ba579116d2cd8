"""Joins of two tables where a row of the one names the key of a row of the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, assert_type

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.dsl.ktable import KTable
from headrace.topology.errors import SerdeError, TopologyError
from headrace.topology.serdes.subscriptions import (
    CombinedKeySerde,
    ForeignKeySubscription,
    Instruction,
    Response,
    ResponseSerde,
    SubscriptionSerde,
    digest,
)
from headrace.topology.topology import Topology
from tests.support.examples import examples
from tests.support.operators import NO_CACHE

Kind = Literal["inner", "left"]
Table = KTable[str, Any]
Change = tuple[str, str, "str | None", int]
"""The side, the key, the value and the timestamp."""

REGISTRATIONS = "app-fk-subscription-registration-topic"
RESPONSES = "app-fk-subscription-response-topic"
SUBSCRIPTIONS = "fk-subscription-store"


def named(value: str) -> str | None:
    """The foreign key: the first letter, none for a value that begins with a dash."""
    return None if value.startswith("-") else value[:1]


def joined(value: str, other: str | None) -> str:
    return f"{value}+{other}"


def join(left: Table, right: Table, kind: Kind, **options: Any) -> Table:
    method: Any = left.join if kind == "inner" else left.left_join
    chosen: dict[str, Any] = {"store": "rows", "name": "fk", "foreign_key": named, **options}
    joiner = chosen.pop("joiner", joined)
    result: Table = method(right, joiner, value=serdes.string, **chosen)
    return result


def topology_of(
    kind: Kind = "inner",
    prepare: Callable[[Table], Table] = lambda table: table,
    right_key: Any = serdes.string,
    **options: Any,
) -> Topology:
    builder = StreamsBuilder()
    left = builder.table("left", key=serdes.string, value=serdes.string, store="l")
    right = builder.table("right", key=right_key, value=serdes.string, store="r")
    join(prepare(left), right, kind, **options).to_stream().to("out")
    return builder.build()


def driver_of(
    kind: Kind = "inner",
    *,
    topology: Topology | None = None,
    settings: Mapping[str, object] = NO_CACHE,
    **options: Any,
) -> TopologyTestDriver:
    config = {"application.id": "app", "processing.guarantee": "exactly_once", **settings}
    return TopologyTestDriver(topology or topology_of(kind), config, **options)


def results(driver: TopologyTestDriver, *changes: Change) -> list[list[Any]]:
    """What each change makes come out: values and timestamps of one key."""
    out, seen = driver.output("out"), []
    for side, key, value, time in changes:
        driver.input(side).send(key, value, timestamp=time)
        seen.append([(record.value, record.timestamp) for record in out.read_all()])
    return seen


def values(driver: TopologyTestDriver, *changes: Change) -> list[list[Any]]:
    return [[value for value, _ in found] for found in results(driver, *changes)]


def left(key: str, value: str | None, time: int = 0) -> Change:
    return ("left", key, value, time)


def right(key: str, value: str | None, time: int = 0) -> Change:
    return ("right", key, value, time)


# -- what comes out --------------------------------------------------------------------------


def test_a_row_is_joined_with_the_row_that_it_names_whichever_comes_first() -> None:
    assert values(driver_of(), left("k", "a1"), right("a", "A")) == [[], ["a1+A"]]
    assert values(driver_of(), right("a", "A"), left("k", "a1")) == [[], ["a1+A"]]


def test_a_changed_right_row_reaches_all_rows_that_name_it_and_no_others() -> None:
    driver = driver_of()
    for change in (left("k1", "a1"), left("k2", "a2"), left("k3", "ab"), left("k4", "b")):
        results(driver, change)
    driver.input("right").send("a", "A")
    found = [(record.key, record.value) for record in driver.output("out").read_all()]
    assert sorted(found) == [("k1", "a1+A"), ("k2", "a2+A"), ("k3", "ab+A")]


def test_the_time_of_a_result_is_the_later_one_of_its_two_rows() -> None:
    """Trap 6: also where the right row changes, which Kafka Streams gives its own time alone."""
    steps = (left("k", "a1", 10), right("a", "A", 5), left("k", "a2", 3), right("a", "B", 20))
    found = results(driver_of(), *steps)
    assert found == [[], [("a1+A", 10)], [("a2+A", 5)], [("a2+B", 20)]]


def test_a_left_row_that_goes_takes_its_result_with_it() -> None:
    for kind in ("inner", "left"):
        changes = (right("a", "A"), left("k", "a1"), left("k", None, 7))
        assert results(driver_of(kind), *changes)[-1] == [(None, 7)]


def test_a_right_row_that_goes_leaves_nothing_or_none() -> None:
    """Trap 18."""
    changes = (left("k", "a1"), right("a", "A"), right("a", None))
    assert values(driver_of("inner"), *changes) == [[], ["a1+A"], [None]]
    assert values(driver_of("left"), *changes) == [["a1+None"], ["a1+A"], ["a1+None"]]


def test_a_row_may_come_to_name_another_row() -> None:
    """Trap 18: an inner join says None when the new one is not there, a left join joins None."""
    changes = (right("a", "A"), right("c", "C"), left("k", "a1"), left("k", "b1"), left("k", "c1"))
    assert values(driver_of("inner"), *changes)[2:] == [["a1+A"], [None], ["c1+C"]]
    assert values(driver_of("left"), *changes)[2:] == [["a1+A"], ["b1+None"], ["c1+C"]]


def test_the_row_that_was_named_before_is_not_heard_any_more() -> None:
    changes = (left("k", "a1"), left("k", "b1"), right("a", "A"), right("b", "B"))
    assert values(driver_of(), *changes) == [[], [], [], ["b1+B"]]


def test_no_row_goes_that_was_never_there() -> None:
    """Trap 18: Kafka Streams writes a tombstone for each of these changes but the first."""
    changes = (left("k", "a1"), left("k", "b1"), left("k", "c1"), right("c", None), left("k", None))
    assert values(driver_of(), *changes) == [[], [], [], [], []]


def test_a_change_that_changes_no_result_is_not_told() -> None:
    topology = topology_of(joiner=lambda value, other: f"{value[:1]}+{other}")
    changes = (right("a", "A"), left("k", "a1"), left("k", "a2"))
    assert values(driver_of(topology=topology), *changes) == [[], ["a+A"], []]


def test_a_row_that_names_none_is_left_out_of_an_inner_join() -> None:
    """Kafka Streams before 4.0 keeps the old result, and takes no later change of the row."""
    changes = (right("a", "A"), left("k", "-x"), left("k", "a1"), left("k", "-y"), left("k", "a2"))
    assert values(driver_of(), *changes) == [[], [], ["a1+A"], [None], ["a2+A"]]


def test_a_row_that_names_none_is_joined_with_none_in_a_left_join() -> None:
    changes = (left("k", "-x"), right("-", "A"), left("k", "-y"), left("k", None))
    assert values(driver_of("left"), *changes) == [["-x+None"], [], ["-y+None"], [None]]


def test_an_empty_string_is_a_row() -> None:
    """Kafka Streams takes it for none, as both are the same bytes in its answers."""
    assert values(driver_of(), left("k", "a1"), right("a", "")) == [[], ["a1+"]]
    assert values(driver_of(), right("a", ""), left("k", "a1")) == [[], ["a1+"]]


def test_functions_may_take_the_key() -> None:
    topology = topology_of(
        with_key=True,
        foreign_key=lambda key, value: key[:1],
        joiner=lambda key, value, other: f"{key}:{value}+{other}",
    )
    changes = (right("k", "K"), left("k1", "x"))
    assert values(driver_of(topology=topology), *changes) == [[], ["k1:x+K"]]


def test_rows_that_name_keys_with_the_same_beginning_are_told_apart() -> None:
    topology = topology_of(foreign_key=lambda value: value)
    driver = driver_of(topology=topology)
    for change in (left("1", "a"), left("2", "ab"), left("b1", "a"), left("", "ab")):
        results(driver, change)
    driver.input("right").send("a", "A")
    assert [r.key for r in driver.output("out").read_all()] == ["1", "b1"]


@pytest.mark.parametrize("foreign", [-1, 255, 0])
def test_rows_hear_of_a_change_whatever_bytes_their_keys_begin_with(foreign: int) -> None:
    """Negative numbers begin with 0xff."""
    builder = StreamsBuilder()
    left_table = builder.table("left", key=serdes.long, value=serdes.long, store="l")
    right_table = builder.table("right", key=serdes.long, value=serdes.string, store="r")
    joined_rows = left_table.join(
        right_table, "{}+{}".format, foreign_key=lambda v: v, value=serdes.string, name="fk"
    )
    joined_rows.to_stream().to("out")
    driver = driver_of(topology=builder.build())
    keys = (-1, -(1 << 56), 0, (1 << 63) - 1)
    for key in keys:
        driver.input("left").send(key, foreign)
    driver.input("right").send(foreign, "A")
    found = {record.key: record.value for record in driver.output("out").read_all()}
    assert found == dict.fromkeys(keys, f"{foreign}+A")


def test_a_row_whose_foreign_key_fails_may_be_let_go_and_come_back() -> None:
    """It counts as deleted, and its next change is joined."""

    def failing(value: str) -> str | None:
        if value == "bad":
            raise ValueError(value)
        return named(value)

    driver = driver_of(
        topology=topology_of(foreign_key=failing),
        settings={"processing.exception.handler": "continue", **NO_CACHE},
    )
    changes = (right("a", "A"), right("b", "B"), left("k", "a1"), left("k", "bad"))
    later = (right("a", "AA"), left("k", "b1"), right("a", "AAA"), left("k", "a1"), left("k", None))
    assert values(driver, *changes, *later)[2:] == [
        ["a1+A"], [None], [], ["b1+B"], [], ["a1+AAA"], [None],
    ]  # fmt: skip


def test_headers_of_the_change_go_to_the_result() -> None:
    driver = driver_of()
    driver.input("left").send("k", "a1", headers=[("of", b"left")])
    driver.input("right").send("a", "A", headers=[("of", b"right")])
    driver.input("left").send("k", "a2", headers=[("of", b"left")])
    found = [record.headers for record in driver.output("out").read_all()]
    assert [list(headers) for headers in found] == [[("of", b"right")], [("of", b"left")]]


# -- what it can be built from -----------------------------------------------------------------


def test_a_table_may_be_joined_with_itself() -> None:
    builder = StreamsBuilder()
    staff = builder.table("staff", key=serdes.string)
    staff.left_join(
        staff,
        lambda person, boss: {"boss": None if boss is None else boss["name"]},
        foreign_key=lambda person: person["boss"],
    ).to_stream().to("out")
    driver = driver_of(topology=builder.build(), partitions=3)
    driver.input("staff").send("1", {"name": "Ann", "boss": "2"})
    driver.input("staff").send("2", {"name": "Bo", "boss": None})
    assert driver.output("out").as_dict() == {"1": {"boss": "Bo"}, "2": {"boss": None}}
    driver.input("staff").send("2", None)
    assert driver.output("out").as_dict() == {"1": {"boss": None}}


def test_tables_may_be_filtered_and_mapped_before() -> None:
    topology = topology_of(prepare=lambda table: table.filter(lambda k, v: v != "a0"))
    changes = (right("a", "A"), left("k", "a1"), left("k", "a0"), left("k", "a2"))
    assert values(driver_of(topology=topology), *changes) == [[], ["a1+A"], [None], ["a2+A"]]


def test_results_may_be_joined_again() -> None:
    builder = StreamsBuilder()
    names = ("orders", "customers", "cities")
    orders, customers, cities = (builder.table(n, key=serdes.string) for n in names)
    placed = orders.join(
        customers, lambda order, customer: {**order, **customer}, foreign_key=lambda o: o["who"]
    )
    placed.join(
        cities, lambda order, city: f"{order['what']} to {city}", foreign_key=lambda o: o["where"]
    ).to_stream().to("out")
    driver = driver_of(topology=builder.build(), partitions={"orders": 3, "cities": 2})
    driver.input("orders").send("o", {"who": "c", "what": "tea"})
    driver.input("customers").send("c", {"where": "x"})
    driver.input("cities").send("x", "Oslo")
    driver.input("cities").send("y", "Rome")
    driver.input("customers").send("c", {"where": "y"})
    found = [record.value for record in driver.output("out").read_all()]
    assert found[0] == "tea to Oslo"
    assert found[-1] == "tea to Rome"


def test_the_tables_may_have_unequal_partition_counts() -> None:
    """Trap 22: each topic in between has as many as the table behind it."""
    driver = driver_of(partitions={"left": 3, "right": 5})
    for letter in "abcdefgh":
        driver.input("left").send(f"k{letter}", f"{letter}1")
        driver.input("right").send(letter, letter.upper())
    found = driver.output("out").as_dict()
    assert found == {f"k{c}": f"{c}1+{c.upper()}" for c in "abcdefgh"}
    counts = {name: len(topic.logs) for name, topic in driver.cluster.topics.items()}
    assert (counts[REGISTRATIONS], counts[RESPONSES]) == (5, 3)
    assert (counts["app-fk-subscription-store-changelog"], counts["app-rows-changelog"]) == (5, 3)


def test_answers_go_to_the_partition_that_asked() -> None:
    """A left table may be partitioned by anything."""
    topology = topology_of()
    driver = driver_of(topology=topology, partitions=3)
    for partition in range(3):
        driver.input("left").send(f"k{partition}", "a1", partition=partition)
    driver.input("right").send("a", "A")
    assert driver.output("out").as_dict() == {f"k{p}": "a1+A" for p in range(3)}


def test_partitioners_find_the_rows_of_topics_that_are_partitioned_by_others() -> None:
    def last(topic: str, key: str, value: None, partitions: int) -> int:
        assert value is None
        return partitions - 1

    topology = topology_of(other_partitioner=last, partitioner=last)
    driver = driver_of(topology=topology, partitions=3)
    driver.input("right").send("a", "A", partition=2)
    driver.input("left").send("k", "a1", partition=2)
    assert driver.output("out").as_dict() == {"k": "a1+A"}


def test_tables_of_two_builders_are_refused() -> None:
    one, two = StreamsBuilder().table("a"), StreamsBuilder().table("b")
    with pytest.raises(TopologyError, match="two builders"):
        one.join(two, joined, foreign_key=named)


def test_default_serdes_serve_where_none_is_given() -> None:
    builder = StreamsBuilder()
    orders, customers = builder.table("orders"), builder.table("customers")
    orders.join(customers, lambda o, c: [o, c], foreign_key=lambda o: o["by"]).to_stream().to("out")
    driver = driver_of(topology=builder.build(), partitions=3)
    driver.input("orders").send({"id": 1}, {"by": {"id": 2}})
    driver.input("customers").send({"id": 2}, "Ann")
    (record,) = driver.output("out").read_all()
    assert (record.key, record.value) == ({"id": 1}, [{"by": {"id": 2}}, "Ann"])


def test_a_type_checker_knows_keys_and_values() -> None:
    def price_of(what: str, price: float) -> list[float]:
        return [price] * len(what)

    def price_or_none(order: str, what: str, price: float | None) -> tuple[str, float | None]:
        return what, price

    def with_order(order: str, what: str) -> int | None:
        return len(order) + len(what)

    builder = StreamsBuilder()
    orders = builder.table("orders", key=serdes.string, value=serdes.string)
    prices = builder.table("prices", key=serdes.long, value=serdes.double)
    assert_type(orders.join(prices, price_of, foreign_key=len), KTable[str, list[float]])
    priced = orders.left_join(prices, price_or_none, foreign_key=with_order, with_key=True)
    assert_type(priced, KTable[str, tuple[str, float | None]])


# -- topics and bytes ---------------------------------------------------------------------------


def bytes_of(driver: TopologyTestDriver, topic: str) -> list[tuple[str, str]]:
    found = driver.output(topic, key=serdes.bytes, value=serdes.bytes).read_all()
    return [
        ("" if r.key is None else r.key.hex(), "" if r.value is None else r.value.hex())
        for r in found
    ]


def test_subscriptions_are_written_as_by_kafka_streams() -> None:
    """As 4.3.1 writes them for the same changes; its first one asks for an answer "if there"."""
    driver = driver_of()
    results(driver, left("k", "a1"), right("a", "A"), left("k", "b1"), left("k", None))
    hashes = "353e0e4f3af5ce6b8fb80c06f3fdc584", "ade097ab9272c6b676fdd9269c53f114"
    assert bytes_of(driver, REGISTRATIONS) == [
        ("61", f"0102{hashes[0]}6b00000000"),
        ("61", f"0100{hashes[1]}6b00000000"),
        ("62", f"0102{hashes[1]}6b00000000"),
        ("62", "81006b00000000"),
    ]
    assert bytes_of(driver, RESPONSES) == [
        ("6b", f"00{hashes[0]}"),
        ("6b", f"00{hashes[0]}41"),
        ("6b", f"00{hashes[1]}"),
    ]
    assert bytes_of(driver, "app-fk-subscription-store-changelog") == [
        ("00000001616b", f"0102{hashes[0]}6b00000000"),
        ("00000001616b", ""),
        ("00000001626b", f"0102{hashes[1]}6b00000000"),
        ("00000001626b", ""),
    ]


@pytest.mark.parametrize(
    ("value", "hashed"),
    [
        ("", "9d2764a018e329428c3cf3b035938518"),
        ("abc", "8cc66bdf24a3b65ee942bed9d38bee40"),
        ("0123456789abcdef", "1a6e941ec6a76967d7d82808f505d6b1"),
        ("0123456789abcdefXYZ", "bb31fe14c8ec1d0e325aa157c895f535"),
    ],
)
def test_the_hash_is_that_of_kafka_streams(value: str, hashed: str) -> None:
    """As `Murmur3.hash128` of 4.3.1 gives it."""
    assert digest(value.encode()).hex() == hashed


@given(
    st.none() | st.binary(min_size=16, max_size=16),
    st.sampled_from(Instruction),
    st.binary(max_size=5),
    st.none() | st.integers(0, 2**31 - 1),
)
def test_subscriptions_read_back(
    hashed: bytes | None, instruction: Instruction, key: bytes, partition: int | None
) -> None:
    subscription = ForeignKeySubscription(hashed, instruction, key, partition)
    serde = SubscriptionSerde()
    assert serde.deserialize(serde.serialize(subscription)) == subscription


@given(st.none() | st.binary(min_size=16, max_size=16), st.none() | st.binary(max_size=5))
def test_responses_read_back(hashed: bytes | None, value: bytes | None) -> None:
    response, serde = Response(hashed, value), ResponseSerde()
    assert serde.deserialize(serde.serialize(response)) == response


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x02\x00", b"\x00\x04", b"\x00\x01abc"])
def test_bytes_of_somebody_else_are_refused(data: bytes) -> None:
    with pytest.raises(SerdeError, match="reset the application"):
        SubscriptionSerde().deserialize(data)
    with pytest.raises(SerdeError, match="reset the application"):
        ResponseSerde().deserialize(b"\x02" + bytes(20))
    with pytest.raises(SerdeError, match="reset the application"):
        ResponseSerde().deserialize(data[:1])


def test_the_store_of_subscriptions_reads_as_pairs_of_keys() -> None:
    driver = driver_of()
    results(driver, left("k", "a1"), left("j", "b1"))
    assert [key for key, _, _ in driver.store(SUBSCRIPTIONS).rows()] == [("a", "k"), ("b", "j")]
    serde = CombinedKeySerde(serdes.string, serdes.string)
    assert serde.deserialize(serde.serialize(("a", "k"))) == ("a", "k")


HASHED = "353e0e4f3af5ce6b8fb80c06f3fdc584"


@pytest.mark.parametrize(
    ("key", "data", "answers"),
    [
        (None, f"0102{HASHED}6b00000000", [("6b", f"00{HASHED}")]),
        ("61", f"0103{HASHED}6b00000000", [("6b", f"00{HASHED}41")]),
        ("62", f"0103{HASHED}6b00000000", []),
        ("61", f"0101{HASHED}6b00000000", [("6b", f"00{HASHED}")]),
        ("61", "81016b00000000", [("6b", "80")]),
        ("61", f"0002{HASHED}6b", [("6b", f"00{HASHED}41")]),
    ],
    ids=["names none", "if there", "not there", "ends", "is gone", "old version"],
)
def test_subscriptions_that_kafka_streams_left_in_the_topic_are_answered(
    key: str | None, data: str, answers: list[tuple[str, str]]
) -> None:
    driver = driver_of()
    driver.input("right").send("a", "A")
    encoded = None if key is None else bytes.fromhex(key)
    driver.cluster.append(REGISTRATIONS, bytes.fromhex(data), encoded, 0, 1, None)
    driver.run()
    assert bytes_of(driver, RESPONSES) == answers


# -- in the end all is right, whatever happened in between ----------------------------------------

Step = tuple[str, ...]


def expected(rows: Mapping[str, Mapping[str, str]], kind: Kind) -> dict[str, str]:
    """The join, computed from scratch."""
    found = {}
    for key, value in rows["left"].items():
        name = named(value)
        other = None if name is None else rows["right"].get(name)
        if other is not None or kind == "left":
            found[key] = joined(value, other)
    return found


changes = st.one_of(
    st.tuples(
        st.just("left"),
        st.sampled_from("kj"),
        st.sampled_from([None, "a1", "a2", "b1", "b2", "c1", "-x", "-y"]),
    ),
    st.tuples(st.just("right"), st.sampled_from("ab"), st.sampled_from([None, "A", "B", ""])),
)
events = st.sampled_from(
    [
        ("round",),
        ("round",),
        ("abort",),
        ("crash", "caches_flushed"),
        ("crash", "changelogs_written"),
        ("crash", "transaction_committed"),
        ("crash", "state_written"),
        ("lost", "transaction_committed"),
    ]
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(changes | events, max_size=30),
    st.sampled_from(["inner", "left"]),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.integers(0, 3),
)
@example(  # a row that comes back while the answer to what it was is under way
    [("left", "k", "a1"), ("round",), ("left", "k", None), ("left", "k", "b1")], "inner", True, 1, 0
)
@example(  # the end of a result is told to a row that has changed meanwhile
    [("right", "a", "A"), ("left", "k", "a1"), ("round",), ("round",), ("round",),
     ("left", "k", "-x"), ("round",), ("left", "k", "-y")], "inner", False, 1, 0,
)  # fmt: skip
@example(  # an answer to what a row was comes when it names no row any more
    [("right", "a", "A"), ("round",), ("left", "k", "a1"), ("round",), ("left", "k", "-x")],
    "inner", False, 1, 0,
)  # fmt: skip
@example(  # a cache holds back that a row went and came back, and the right row changes meanwhile
    [("left", "k", "a1"), ("right", "a", "A"), ("round",), ("round",), ("round",),
     ("right", "a", "B"), ("round",), ("left", "k", "a2"), ("left", "k", "a1")],
    "inner", True, 1, 0,
)  # fmt: skip
def test_the_result_is_the_join_of_the_tables_whatever_overtakes_whatever(
    steps: Sequence[Any], kind: Kind, caching: bool, partitions: int, seed: int
) -> None:
    """Also after aborts and crashes at any step, with and without caches and local state."""
    # Without it a task waits for answers that are on their way: few would come too late.
    chosen = {"max.task.idle.ms": -1, **({} if caching else NO_CACHE)}
    driver = driver_of(kind, settings=chosen, partitions=partitions, commit="manual", seed=seed)
    rows: dict[str, dict[str, str]] = {"left": {}, "right": {}}
    for step in steps:
        if step[0] in rows:
            side, key, value = step
            driver.input(side).send(key, value)
            if value is None:
                rows[side].pop(key, None)
            else:
                rows[side][key] = value
        elif step[0] == "round":
            driver.commit(rounds=1)
        elif step[0] == "abort":
            driver.abort()
        else:
            driver.crash(at=step[1], keep=step[0] == "crash")
    driver.commit()
    wanted = expected(rows, kind)
    assert dict(driver.store("rows").items()) == wanted
    assert driver.output("out").as_dict() == wanted
    named_now = {(named(value), key) for key, value in rows["left"].items()}
    kept = {key for key, _, _ in driver.store(SUBSCRIPTIONS).rows()}
    assert kept == {pair for pair in named_now if pair[0] is not None}


def test_answers_that_match_no_row_are_counted() -> None:
    """Such as of a serde that writes the same value as other bytes each time."""
    numbers = iter(range(1000))
    restless = serdes.serde_from(
        name="restless",
        serialize=lambda value: f"{value}#{next(numbers)}".encode(),
        deserialize=lambda data: data.decode().partition("#")[0],
    )
    builder = StreamsBuilder()
    left: Table = builder.table("left", key=serdes.string, value=restless)
    right: Table = builder.table("right", key=serdes.string, value=serdes.string)
    join(left, right, "inner").to_stream().to("out", value=serdes.string)
    with TopologyTestDriver(builder.build(), NO_CACHE) as driver:
        driver.input("right").send("a", "there")
        driver.input("left").send("k", "apple")
        assert list(driver.output("out").read_all()) == []
        ((node, reason),) = driver.dropped
        assert reason == "response to a former row; another response follows"
        assert "FK-JOIN" in node or node.startswith("fk")
