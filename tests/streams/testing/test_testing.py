"""What `TopologyTestDriver` promises to those who test with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.state.codec import partition_for_key
from headrace.streams.errors import ConfigError, MisconfiguredTopicError, RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import SerdeError, StreamsBuilder, Topology, serdes
from headrace.topology.serdes import avro
from tests.support.topologies import EXACTLY_ONCE, key_count, word_count

SENTENCES = ["to be or not to be", "that is the question", "", "to be"]
WORDS = {"to": 3, "be": 3, "or": 1, "not": 1, "that": 1, "is": 1, "the": 1, "question": 1}


def copy(*, key: Any = None, value: Any = None) -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", key=key, value=value).to("out")
    return builder.build()


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("settings", [None, EXACTLY_ONCE], ids=["at-least-once", "exactly-once"])
def test_a_word_count_counts_through_its_repartition_topic(
    partitions: int, settings: dict[str, object] | None
) -> None:
    with TopologyTestDriver(word_count(), settings, partitions=partitions) as driver:
        for sentence in SENTENCES:
            driver.input("lines").send(None, sentence)
        counts = driver.output("word-counts")
        assert counts.as_dict() == WORDS
        assert dict(driver.store("counts")) == WORDS
        assert driver.processed == len(SENTENCES) + sum(WORDS.values())
        for record in counts.read_all():
            assert record.key is not None
            assert record.partition == partition_for_key(record.key.encode(), partitions)


def test_each_record_is_committed_so_each_update_comes_out() -> None:
    """As Kafka Streams' own driver does it, though caches are on."""
    driver = TopologyTestDriver(key_count())
    driver.input("in").send_many([("a", "x"), ("a", "x"), ("a", "x")])
    assert [r.value for r in driver.output("out").read_all()] == [1, 2, 3]


def test_without_a_commit_only_readers_of_uncommitted_records_see_anything() -> None:
    settings = {**EXACTLY_ONCE, "statestore.cache.max.bytes": 0}
    driver = TopologyTestDriver(key_count(), settings, commit="manual")
    driver.input("in").send_many([("a", "x"), ("a", "x")])
    assert driver.output("out").read_all() == []
    uncommitted = driver.output("out", isolation="read_uncommitted")
    assert [r.value for r in uncommitted.read_all()] == [1, 2]
    assert driver.committed_offsets("in") == {}
    assert dict(driver.store("counts")) == {"a": 2}
    assert dict(driver.store("counts", committed=True)) == {}
    driver.commit()
    assert [r.value for r in driver.output("out").read_all()] == [1, 2]
    assert driver.committed_offsets("in") == {0: 2}
    assert dict(driver.store("counts", committed=True)) == {"a": 2}


def test_a_cache_sends_each_key_on_once_a_commit() -> None:
    driver = TopologyTestDriver(key_count(), EXACTLY_ONCE, commit="manual")
    out = driver.output("out")
    driver.input("in").send_many([("a", "x"), ("b", "x"), ("a", "x")])
    driver.commit()
    assert [(r.key, r.value) for r in out.read_all()] == [("a", 2), ("b", 1)]
    driver.input("in").send("a", "x")
    driver.commit()
    assert [(r.key, r.value) for r in out.read_all()] == [("a", 3)]


def test_a_commit_takes_as_many_rounds_as_there_are_sub_topologies_in_a_row() -> None:
    driver = TopologyTestDriver(word_count(), EXACTLY_ONCE, commit="manual")
    driver.input("lines").send(None, "a b")
    driver.commit(rounds=1)
    assert driver.output("word-counts").is_empty
    assert dict(driver.store("counts")) == {"a": 1, "b": 1}
    driver.commit(rounds=1)
    assert driver.output("word-counts").as_dict() == {"a": 1, "b": 1}


def test_serdes_are_the_topologys_unless_others_are_given() -> None:
    driver = TopologyTestDriver(copy(key=serdes.string, value=serdes.long))
    driver.input("in").send("k", 258)
    assert driver.output("out").read().value == 258
    raw = driver.output("out", key=serdes.bytes, value=serdes.bytes).read()
    assert (raw.key, raw.value) == (b"k", b"\0\0\0\0\0\0\x01\x02")
    driver.input("in", key=serdes.bytes, value=serdes.bytes).send(b"l", b"\0" * 8)
    assert driver.output("out").as_dict() == {"k": 258, "l": 0}


def test_a_serde_that_is_given_is_told_its_topic_as_the_topologys_are() -> None:
    registry = avro.MemoryRegistry()
    text = avro.registered("string", registry=registry)
    driver = TopologyTestDriver(copy(key=serdes.bytes, value=serdes.bytes))
    driver.input("in", key=text, value=text).send("k", "v")
    record = driver.output("out", key=text, value=text).read()
    assert (record.key, record.value) == ("k", "v")
    assert [registry.id_of(f"in-{part}", '"string"') for part in ("key", "value")] == [1, 1]


def test_serdes_that_the_topology_does_not_name_are_those_of_the_settings() -> None:
    driver = TopologyTestDriver(copy(), {"default.key.serde": "string"})
    driver.input("in").send("k", {"a": [1]})
    assert driver.output("out", key=serdes.bytes, value=serdes.bytes).read().key == b"k"
    assert driver.output("out").read_all()[0].value == {"a": [1]}


def test_internal_topics_are_read_by_their_full_names() -> None:
    settings = {"application.id": "app"}
    driver = TopologyTestDriver(word_count(), settings)
    driver.input("lines").send(None, "a b a")
    assert [r.key for r in driver.output("app-by-word-repartition").read_all()] == ["a", "b", "a"]
    assert driver.output("app-counts-changelog").as_dict() == {"a": 2, "b": 1}


def test_a_sink_that_chooses_its_topic_can_be_read_by_any_name() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.long).to(lambda key, _: f"to-{key}")
    driver = TopologyTestDriver(builder.build(), partitions={"to-b": 2})
    assert driver.output("to-a").read_all() == []
    driver.input("in").send_many([("a", 1), ("b", 2)])
    assert driver.output("to-a").read().value == 1
    assert driver.output("to-b").read().partition == partition_for_key(b"b", 2)


def test_a_record_keeps_its_timestamp_headers_and_place() -> None:
    driver = TopologyTestDriver(copy(key=serdes.string, value=serdes.string), partitions=2)
    moment = datetime(2024, 2, 29, 12, tzinfo=UTC)
    driver.input("in").send("k", "v", timestamp=moment, headers=[("h", b"1")], partition=1)
    record = driver.output("out").read()
    assert record.timestamp == 1_709_208_000_000
    assert record.headers == [("h", b"1")]
    assert record.partition == partition_for_key(b"k", 2)
    assert record.offset == 0


def test_timestamps_go_on_by_themselves_and_with_the_clock() -> None:
    driver = TopologyTestDriver(copy(), now=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    source = driver.input("in", step=timedelta(milliseconds=10))
    source.send_many([("a", 1), ("a", 2)])
    driver.advance(timedelta(seconds=1))
    source.send("a", 3)
    source.send("a", 4, timestamp=5)
    source.send("a", 5)
    found = [r.timestamp for r in driver.output("out").read_all()]
    assert found == [1000, 1010, 2020, 5, 2030]


def test_a_datetime_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        TopologyTestDriver(copy(), now=datetime(2024, 1, 1))


def test_null_keys_take_turns_in_an_order_that_the_seed_decides() -> None:
    def partitions(seed: int) -> list[int]:
        driver = TopologyTestDriver(copy(), partitions=4, seed=seed)
        for i in range(8):
            driver.input("in").send(None, i)
        return [p for p, n in sorted(driver.committed_offsets("in").items()) for _ in range(n)]

    assert partitions(0) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_same_calls_give_the_same_results() -> None:
    def results() -> list[Any]:
        driver = TopologyTestDriver(word_count(), EXACTLY_ONCE, partitions=3, commit="manual")
        for sentence in SENTENCES:
            driver.input("lines").send(None, sentence)
        driver.commit()
        return driver.output("word-counts").read_all()

    assert results() == results()


def test_reading_one_record_after_the_other_ends_with_a_lookup_error() -> None:
    driver = TopologyTestDriver(copy(), partitions=3)
    driver.input("in").send_many([(key, key) for key in "abcde"])
    out = driver.output("out")
    written = []
    while not out.is_empty:
        written.append(out.read())
    assert [r.value for r in written] == [r.value for r in driver.output("out").read_all()]
    with pytest.raises(LookupError, match="'out' has no further record"):
        out.read()


def test_a_dict_of_an_output_shows_the_whole_topic_without_deleted_keys() -> None:
    driver = TopologyTestDriver(copy())
    out = driver.output("out")
    driver.input("in").send_many([("a", 1), ("b", 1), ("a", 2), ("b", None)])
    assert len(out.read_all()) == 4
    assert out.as_dict() == {"a": 2}


def test_an_unknown_topic_or_store_is_refused_with_those_that_there_are() -> None:
    driver = TopologyTestDriver(word_count())
    with pytest.raises(LookupError, match="does not read 'line'; it reads lines"):
        driver.input("line")
    with pytest.raises(LookupError, match=r"does not write 'counts'; it writes .*word-counts"):
        driver.output("counts")
    with pytest.raises(LookupError, match="no store 'count'; there are: counts"):
        driver.store("count")


def test_a_partition_that_is_not_there_is_refused() -> None:
    driver = TopologyTestDriver(copy(), partitions=2)
    with pytest.raises(ValueError, match="'in' has 2 partitions, and no 2"):
        driver.input("in").send("k", 1, partition=2)


def test_a_value_that_its_serde_refuses_is_not_written_nor_are_those_beside_it() -> None:
    driver = TopologyTestDriver(copy(value=serdes.long))
    with pytest.raises(SerdeError, match="'long' cannot encode"):
        driver.input("in").send_many([("a", 1), ("b", "text")])
    driver.run()
    assert driver.processed == 0


def test_wrong_settings_are_refused_as_they_are_live() -> None:
    with pytest.raises(ConfigError, match=r"did you mean processing\.guarantee"):
        TopologyTestDriver(copy(), {"processing.guarantees": "exactly_once"})
    with pytest.raises(ValueError, match="'each_record' or 'manual'"):
        TopologyTestDriver(copy(), commit="sometimes")  # type: ignore[arg-type]


def test_topics_that_are_joined_must_have_equal_partition_counts() -> None:
    builder = StreamsBuilder()
    merged = builder.stream("a").merge(builder.stream("b"))
    merged.group_by_key().count(store="counts")
    topology = builder.build()
    TopologyTestDriver(topology, partitions={"a": 2, "b": 2})
    with pytest.raises(MisconfiguredTopicError, match="a has 2, b has 3"):
        TopologyTestDriver(topology, partitions={"a": 2, "b": 3})


def test_a_store_reads_like_a_mapping_in_the_order_of_its_keys() -> None:
    driver = TopologyTestDriver(key_count(), partitions=3)
    driver.input("in").send_many([(key, "x") for key in "dbacab"])
    counts = driver.store("counts")
    assert list(counts) == ["a", "b", "c", "d"]
    assert list(counts.items()) == [("a", 2), ("b", 2), ("c", 1), ("d", 1)]
    assert (counts["a"], counts.get("z"), len(counts)) == (2, None, 4)
    assert next(counts.rows()) == ("a", 2, 4)
    with pytest.raises(KeyError):
        counts["z"]
    driver.input("in").send("z", "x")
    assert counts["z"] == 1


def test_what_a_store_hands_out_can_be_changed_without_harm() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.group_by_key().aggregate(list, lambda _, v, seen: [*seen, v], store="seen")
    driver = TopologyTestDriver(builder.build(), commit="manual")
    driver.input("in").send("k", 1)
    driver.store("seen")["k"].append("mine")
    driver.commit()
    driver.store("seen")["k"].append("mine")
    driver.input("in").send("k", 2)
    assert driver.store("seen")["k"] == [1, 2]


def test_a_topology_that_feeds_itself_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.streams.testing.driver.MAX_TURNS", 50)
    builder = StreamsBuilder()
    builder.stream("in").to(lambda key, value: "in")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(RuntimeError, match="still running after 50 turns"):
        driver.input("in").send("k", 1)


def test_the_way_back_from_an_output_to_an_input_is_followed() -> None:
    builder = StreamsBuilder()
    less = builder.stream("in").filter(lambda _, n: n > 0).map_values(lambda n: n - 1)
    less.to(lambda key, value: "in")  # on purpose: it has an end
    driver = TopologyTestDriver(builder.build())
    driver.input("in").send("k", 3)
    assert [r.value for r in driver.output("in").read_all()] == [3, 2, 1, 0]


def test_repartition_topics_are_purged_as_time_passes() -> None:
    driver = TopologyTestDriver(word_count(), {"application.id": "app"})
    driver.input("lines").send(None, "a b")
    repartition = "app-by-word-repartition"
    assert len(driver.output(repartition).read_all()) == 2
    driver.advance(timedelta(minutes=1))
    driver.input("lines").send(None, "c")
    assert [r.key for r in driver.output(repartition).read_all()] == ["c"]


def test_print_writes_to_the_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    builder = StreamsBuilder()
    builder.stream("in").print(label="seen")
    TopologyTestDriver(builder.build()).input("in").send("k", 1)
    assert capsys.readouterr().out == "[seen]: k, 1\n"


def test_the_state_directory_holds_state_in_rocksdb(tmp_path: Any) -> None:
    """The same results with the stores that run live."""
    pytest.importorskip("rocksdict")
    with TopologyTestDriver(word_count(), EXACTLY_ONCE, state_dir=tmp_path) as driver:
        for sentence in SENTENCES:
            driver.input("lines").send(None, sentence)
        driver.crash(keep=True)
        driver.input("lines").send(None, "to")
        assert driver.restored == 0
        driver.crash(keep=False)
        driver.input("lines").send(None, "to")
        assert driver.restored > 0
        assert driver.output("word-counts").as_dict() == {**WORDS, "to": 5}
        assert dict(driver.store("counts")) == {**WORDS, "to": 5}
    assert list(tmp_path.rglob("CURRENT")), "nothing of RocksDB is there"


def test_an_error_comes_out_of_the_call_and_again_out_of_the_next() -> None:
    """A restart meets the same record again, as live."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda n: 1 // n).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.input("in").send("k", 1)
    for _ in range(2):
        with pytest.raises(RecordError, match="ZeroDivisionError"):
            driver.input("in").send("k", 0)
    assert [r.value for r in driver.output("out").read_all()] == [1]
    assert driver.committed_offsets("in") == {0: 1}


def test_rows_are_read_back_from_their_bytes_so_a_serde_that_changes_them_shows() -> None:
    """JSON has no tuples: what would fail after a restart fails in a test already."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    stream.group_by_key().aggregate(tuple, lambda _, v, seen: (*seen, v), store="works")
    stream.group_by_key().aggregate(tuple, lambda _, v, seen: seen + (v,), store="fails")  # noqa: RUF005
    driver = TopologyTestDriver(builder.build())
    driver.input("in").send("k", 1)
    with pytest.raises(RecordError, match="TypeError"):
        driver.input("in").send("k", 2)


@pytest.mark.parametrize("time", [1.5, "2020", True, timedelta(1)])
def test_a_time_that_is_none_is_an_error_of_the_call(time: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(TypeError, match=f"timestamp must be .* not a {type(time).__name__}"):
        driver.input("in").send("k", 1, timestamp=time)
    with pytest.raises(TypeError, match="now must be a datetime"):
        TopologyTestDriver(builder.build(), now=time)


def test_many_records_are_processed_at_once_while_the_clock_stands_still() -> None:
    """More than are read between two looks at how far the readers are behind."""
    builder = StreamsBuilder()
    words = builder.stream("in", key=serdes.string, value=serdes.long)
    words.group_by(lambda k, v: v % 7, key=serdes.long).count(store="sevens").to_stream().to("out")
    settings = {"repartition.lag.max.records": 100, "statestore.cache.max.bytes": 0}
    with TopologyTestDriver(builder.build(), settings, commit="manual") as driver:
        driver.input("in").send_many([("k", n) for n in range(700)])
        driver.commit()
        assert sum(driver.store("sevens").values()) == 700
