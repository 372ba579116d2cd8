"""Records that no serde reads, where others are folded before a repartition topic."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams import TopologyTestDriver
from headrace.streams.errors import RecordError
from headrace.topology import StreamsBuilder, Topology, serdes
from headrace.topology.serdes.partials import MARK, write_count

ON = "combine.before.repartition"
MOVED = "test-by-kind-repartition"


def read_short(data: bytes) -> str:
    """What others write without a word, it does not read."""
    if b"long" in data:
        raise ValueError("too long")
    return data.decode()


short = serdes.serde_from(serialize=str.encode, deserialize=read_short, name="short")


def joined(call: str, *, key: Any = serdes.string, value: Any = serdes.string) -> Topology:
    """Values are joined, or counted, by the first word of their keys."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    moved = stream.group_by(lambda k, _: k.split()[0], key=key, value=value, name="by-kind")
    if call == "count":
        table: Any = moved.count(store="folded")
    elif call == "reduce":
        table = moved.reduce(
            lambda a, b: a + b, merger=lambda _, a, b: a + b, store="folded", value=serdes.string
        )
    else:
        table = moved.aggregate(
            str, lambda _, v, s: s + v, merger=lambda _, a, b: a + b, store="folded",
            value=serdes.string,
        )  # fmt: skip
    table.to_stream().map_values(lambda k, v: f"{k} {v}", with_key=True).to("out")
    return builder.build()


def driver_of(topology: Topology, optimization: str = ON, **settings: Any) -> TopologyTestDriver:
    own = {
        "processing.guarantee": "exactly_once_v2",
        "topology.optimization": optimization,
        "deserialization.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": "dead",
        **settings,
    }
    return TopologyTestDriver(topology, own, commit="manual")


def outcome(driver: TopologyTestDriver) -> tuple[Any, Any, list[bytes | None]]:
    """The rows, the last results, and the values of dead letters."""
    rows = {key: (value, time) for key, value, time in driver.store("folded").rows()}
    dead = driver.output("dead", key=serdes.bytes, value=serdes.bytes).read_all()
    return rows, driver.output("out").as_dict(), [record.value for record in dead]


SENT = [("a", "1"), ("a", "long"), ("b", "2"), ("a", "3"), ("b", "long"), ("b", "4"), ("c", "5")]


@pytest.mark.parametrize("call", ["reduce", "aggregate"])
def test_a_value_that_is_not_read_back_is_let_go_by_itself(call: str) -> None:
    """The handler is asked about it behind the topic; the others are folded before it."""
    found, moved = [], []
    for optimization in ("none", ON):
        with driver_of(joined(call, value=short), optimization) as driver:
            driver.input("in").send_many(SENT)
            driver.commit()
            found.append(outcome(driver))
            log = driver.cluster
            places = log.partitions(MOVED)
            moved.append(sum(len(log.log(place).entries) for place in places))
    assert found[0] == found[1]
    rows, last, dead = found[1]
    assert {key: value for key, (value, _) in rows.items()} == {"a": "13", "b": "24", "c": "5"}
    assert sorted(dead) == [b"long", b"long"]
    assert last["a"] == "a 13"


@pytest.mark.parametrize("call", ["count", "reduce", "aggregate"])
def test_a_key_that_is_not_read_back_is_let_go_with_its_own_records(call: str) -> None:
    """Each of them is a dead letter, as without partial results."""
    found = []
    sent = [("long", "1"), ("a", "2"), ("long", "3"), ("a", "4")]
    for optimization in ("none", ON):
        with driver_of(joined(call, key=short), optimization) as driver:
            driver.input("in").send_many(sent)
            driver.commit()
            found.append(outcome(driver))
    assert found[0] == found[1]
    assert sorted(found[1][2]) == [b"1", b"3"]


@pytest.mark.parametrize("call", ["count", "reduce", "aggregate"])
def test_records_are_folded_where_a_handler_is_asked_what_cannot_be_read(call: str) -> None:
    with driver_of(joined(call)) as driver:
        driver.input("in").send_many([("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")])
        driver.commit()
        # A reduce's partial result of a single record is that record.
        folded = {"a"} if call == "reduce" else {"a", "b"}
        assert {r.key for r in driver.output(MOVED).read_all() if r.headers} == folded
        driver.cluster.append("in", b"\xff", b"a", 0, 0, None)
        driver.commit()
        assert len(outcome(driver)[2]) == 1


@pytest.mark.parametrize(
    ("call", "value", "key"),
    [
        ("count", b"three", b"a"),
        ("reduce", b"\xff", b"a"),
        ("aggregate", b"\xff", b"a"),
        ("count", write_count(3), b"long"),
        ("reduce", b"12", b"long"),
        ("reduce", None, b"a"),
    ],
)
def test_no_handler_is_asked_about_a_partial_result(
    call: str, value: bytes | None, key: bytes
) -> None:
    """It is of many records, of which none would be told."""
    with driver_of(joined(call, key=short)) as driver:
        driver.cluster.append(MOVED, value, key, 0, 0, [(MARK, call.encode())])
        with pytest.raises(RecordError, match=f"partial aggregate of '{call}'"):
            driver.run()


def test_a_single_record_that_is_not_read_is_the_handler_s_still() -> None:
    with driver_of(joined("reduce")) as driver:
        driver.cluster.append(MOVED, b"\xff", b"a", 0, 0, [("trace", b"1")])
        driver.commit()
        assert outcome(driver)[2] == [b"\xff"]
