"""sample: a share of the records goes on, the same ones each time."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.topology import StreamsBuilder, TopologyError, serdes
from tests.spark_bridge.run.test_local_runs import Sent, compare
from tests.support.operators import HEADERS, Stream, driver_of, one, results

KEYS = [f"key-{n}" for n in range(400)]


def _goes_on(data: bytes, fraction: float) -> bool:
    found = hashlib.blake2b(data, digest_size=8, person=b"headrace-sample").hexdigest()
    return int(found, 16) / 2**64 < fraction


def _taken(fraction: float, **options: Any) -> list[str]:
    found = results(lambda s: s.sample(fraction, **options), [(key, 0) for key in KEYS])
    return [key for key, _ in found]


@pytest.mark.parametrize("fraction", [0, 0.01, 0.25, 0.5, 0.99, 1])
def test_the_hash_that_is_documented_decides(fraction: float) -> None:
    assert _taken(fraction) == [key for key in KEYS if _goes_on(key.encode(), fraction)]


def test_nothing_all_and_about_the_share_go_on() -> None:
    assert _taken(0) == []
    assert _taken(1) == KEYS
    assert 70 < len(_taken(0.25)) < 130


def test_a_larger_share_has_all_of_a_smaller_one() -> None:
    assert set(_taken(0.2)) < set(_taken(0.6))


def test_all_records_of_a_key_go_on_or_none() -> None:
    records = [(key, n) for n in range(3) for key in KEYS[:50]]
    found = results(lambda s: s.sample(0.5), records)
    assert len(found) == 3 * len({key for key, _ in found})


def test_it_can_go_by_values() -> None:
    found = results(lambda s: s.sample(0.5, by="value"), [("a", n) for n in range(100)])
    assert found == [("a", n) for n in range(100) if _goes_on(str(n).encode(), 0.5)]


def test_a_serde_of_ones_own_makes_the_bytes() -> None:
    found = results(
        lambda s: s.sample(0.5, by="value", serde=serdes.long), [("a", n) for n in range(100)]
    )
    wanted = [n for n in range(100) if _goes_on(serdes.long.serialize(n), 0.5)]
    assert [value for _, value in found] == wanted


def test_nulls_count_as_no_bytes() -> None:
    assert results(lambda s: s.sample(0.99), [(None, 1)]) == ([(None, 1)] * _goes_on(b"", 0.99))
    assert results(lambda s: s.sample(1), [(None, 1)]) == [(None, 1)]
    assert results(lambda s: s.sample(0, by="value"), [("a", None)]) == []


def test_the_record_stays_as_it_is() -> None:
    record = one(lambda s: s.sample(1), "a", {"n": 1}, timestamp=7, headers=HEADERS)
    assert (record.key, record.value, record.timestamp) == ("a", {"n": 1}, 7)
    assert list(record.headers) == HEADERS


def test_it_makes_no_difference_who_reads_the_record_below() -> None:
    """Bytes that nobody decodes are the same ones that are made again."""

    def step(stream: Stream, *, seen: bool) -> Stream:
        sampled = stream.repartition(name="p").sample(0.5, by="value")
        return sampled.peek(lambda k, v: None) if seen else sampled

    records = [("a", {"b": n, "a": [n]}) for n in range(60)]
    found = [results(lambda s, seen=seen: step(s, seen=seen), records) for seen in (False, True)]
    assert found[0] == found[1]
    assert 15 < len(found[0]) < 45


def test_no_repartition_follows_and_new_keys_are_hashed_as_they_are_written() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.long)
    stream.sample(0.5).group_by_key().count(store="counts")
    assert len(builder.build().sub_topologies) == 1


def test_it_is_a_line_of_the_generated_code() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string).sample(0.5, name="some").to("out")
    topology = builder.build()
    assert "Processor: some (stores: [])" in topology.describe()
    assert "if takes_1((key_bytes)):" in topology.describe(code=True)
    assert "some" in topology.to_mermaid()


@pytest.mark.parametrize(
    "fraction", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None, True, 0.5j]
)
def test_what_is_no_share_is_refused(fraction: Any) -> None:
    with pytest.raises(TopologyError, match="fraction from 0 to 1"):
        results(lambda s: s.sample(fraction), [])


def test_it_goes_by_keys_or_by_values() -> None:
    with pytest.raises(TopologyError, match="sample\\(\\): by must be 'key' or 'value'"):
        results(lambda s: s.sample(0.5, by="time"), [])  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["key", "value"])
def test_an_error_of_a_serde_names_the_argument(by: Any) -> None:
    driver = driver_of(lambda s: s.sample(0.5, by=by, serde=serdes.bytes))
    said = rf"the {by}'s serde 'bytes' .* pass serde=serdes\.\w+ \("
    with pytest.raises(RecordError, match=said):
        driver.input("in").send("k", 1)


def test_a_handler_is_told_of_what_the_serde_refuses() -> None:
    settings = {"processing.exception.handler": "continue"}
    driver = driver_of(lambda s: s.sample(1, by="value", serde=serdes.long), settings=settings)
    driver.input("in").send_many([("a", 1), ("b", "no number"), ("c", 3)])
    assert [r.key for r in driver.output("out").read_all()] == ["a", "c"]


@pytest.mark.parametrize("by", ["key", "value"])
def test_a_backfill_is_as_live(by: Any) -> None:
    builder = StreamsBuilder()
    lines = builder.stream("in", key=serdes.string, value=serdes.string)
    sampled = lines.sample(0.5, by=by)
    sampled.to("out")
    sampled.group_by_key().count(store="counts")
    sent: list[Sent] = [("in", f"k{n % 9}", f"v{n}", 1_680_000_000_000 + n) for n in range(40)]
    for cut in (0, 17, 40):
        compare(builder.build(), sent, cut=cut)
