"""to_dead_letters: a step sends records to the dead letters, and says why."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import OutputRecord, TopologyTestDriver
from headrace.topology import KStream, StreamsBuilder, TopologyError, serdes
from tests.spark_bridge.run.test_local_runs import compare
from tests.support.operators import driver_of, pairs
from tests.support.topologies import EXACTLY_ONCE

DEAD: dict[str, object] = {"errors.dead.letter.queue.topic.name": "dead"}
Stream = KStream[Any, Any]


def refuse_odd(stream: Stream, reason: Any) -> Stream:
    stream.filter(lambda _, n: n % 2 == 1).to_dead_letters(reason, name="odd")
    return stream.filter(lambda _, n: n % 2 == 0)


def letters(driver: TopologyTestDriver) -> list[OutputRecord[bytes, bytes]]:
    return driver.output("dead", key=serdes.bytes, value=serdes.bytes).read_all()


@pytest.mark.parametrize(
    ("reason", "said"), [("is odd", b"is odd"), (lambda k, v: f"{k}: {v}", b"k: 3")]
)
def test_a_letter_has_its_record_and_the_reason(reason: Any, said: bytes) -> None:
    driver = driver_of(lambda s: refuse_odd(s, reason), settings=DEAD)
    driver.input("in").send("k", 2)
    driver.input("in").send("k", 3, headers=[("trace", b"7")], timestamp=5)
    (letter,) = letters(driver)
    assert (letter.key, letter.value, letter.timestamp) == (b"k", b"3", 5)
    assert list(letter.headers) == [
        ("trace", b"7"),
        ("__streams.errors.exception", b"headrace.topology.errors.DeadLetterRequested"),
        ("__streams.errors.message", said),
        ("__streams.errors.topic", b"in"),
        ("__streams.errors.partition", b"0"),
        ("__streams.errors.offset", b"1"),
        ("headrace.errors.node", b"odd"),
    ]
    assert pairs(driver) == [("k", 2)]
    assert driver.dropped == {("odd", "sent to the dead letters"): 1}


def test_each_record_that_steps_in_between_have_made_is_a_letter_of_the_input() -> None:
    def spread(stream: Stream) -> None:
        parts = stream.flat_map_values(lambda n: [n, n + 10]).select_key(lambda k, n: f"{k}{n}")
        parts.to_dead_letters(lambda k, n: f"{k} is {n}")

    driver = driver_of(spread, settings=DEAD)
    driver.input("in").send("k", 3)
    found = letters(driver)
    assert [(one.key, one.value) for one in found] == [(b"k", b"3")] * 2
    reasons = [dict(one.headers)["__streams.errors.message"] for one in found]
    assert reasons == [b"k3 is 3", b"k13 is 13"]


def test_behind_a_cache_a_letter_has_the_reason_alone() -> None:
    def counted(stream: Stream) -> None:
        counts = stream.group_by_key().count(store="counts").to_stream()
        counts.to_dead_letters(lambda k, n: f"{k}: {n}")

    driver = driver_of(counted, settings=DEAD, commit="manual")
    driver.input("in").send_many([("k", 1), ("k", 2)])
    driver.commit()
    (letter,) = letters(driver)
    assert (letter.key, letter.value) == (None, None)
    assert dict(letter.headers)["__streams.errors.message"] == b"k: 2"


def test_the_reason_is_not_logged() -> None:
    driver = driver_of(lambda s: refuse_odd(s, lambda k, v: f"secret {v}"), settings=DEAD)
    driver.input("in").send("k", 3)
    assert "secret" not in repr(driver.events)


def test_letters_are_in_the_transaction_of_their_records() -> None:
    settings: dict[str, object] = {**DEAD, **EXACTLY_ONCE}
    driver = driver_of(lambda s: refuse_odd(s, "odd"), settings=settings, commit="manual")
    driver.input("in").send_many([("a", 1), ("b", 2), ("c", 3)])
    driver.crash(at="offsets_sent")
    driver.commit()
    assert [letter.key for letter in letters(driver)] == [b"a", b"c"]


def test_keys_and_values_may_be_null_and_undecoded() -> None:
    driver = driver_of(lambda s: s.to_dead_letters("all of them"), settings=DEAD)
    driver.input("in").send(None, 1)
    driver.input("in").send_bytes(b"k", None)
    assert [(letter.key, letter.value) for letter in letters(driver)] == [
        (None, b"1"),
        (b"k", None),
    ]


@pytest.mark.parametrize("reason", [None, 5, "", b"odd"])
def test_what_is_no_reason_is_refused(reason: Any) -> None:
    with pytest.raises(TopologyError, match=r"to_dead_letters\(\).* reason"):
        StreamsBuilder().stream("in").to_dead_letters(reason)


def test_without_a_topic_the_application_does_not_start() -> None:
    with pytest.raises(TopologyError, match=r"odd writes dead letters.*queue\.topic\.name"):
        driver_of(lambda s: refuse_odd(s, "odd"))


@pytest.mark.parametrize("reason", [lambda *_: 5, lambda *_: None], ids=["int", "None"])
def test_a_function_that_returns_no_text_fails(reason: Any) -> None:
    driver = driver_of(lambda s: refuse_odd(s, reason), settings=DEAD)
    with pytest.raises(RecordError, match="instead of the reason of a dead letter"):
        driver.input("in").send("k", 3)


def test_a_function_that_fails_is_a_failure_of_the_step() -> None:
    settings = {**DEAD, "processing.exception.handler": "continue"}
    driver = driver_of(lambda s: refuse_odd(s, lambda k, v: v["no"]), settings=settings)
    driver.input("in").send("k", 3)
    (letter,) = letters(driver)
    assert dict(letter.headers)["__streams.errors.exception"] == b"TypeError"


def test_a_backfill_writes_the_same_letters() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.json)
    stream.group_by_key().count(store="counts")
    refuse_odd(stream, lambda k, v: f"{k} is {v}").to("out")
    sent = [("in", "k", str(n), 1_680_000_000_000 + n) for n in range(6)]
    settings = {**DEAD, "statestore.cache.max.bytes": 0}
    alone, both = compare(builder.build(), sent, settings=settings, outputs=("out", "dead"))
    found, expected = letters(both), letters(alone)
    assert [(one.key, one.value, one.headers) for one in found] == [
        (one.key, one.value, one.headers) for one in expected
    ]
