"""Key-value stores of processors, against a dict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    Stores,
    Topology,
    TopologyError,
    ValueAndTimestamp,
    serdes,
)
from headrace.topology.processors.stores import StoreBuilder, in_memory
from tests.support.examples import examples
from tests.support.store_ops import StoreOps

Rows = KeyValueStore[str, Any]


def store(**options: Any) -> StoreBuilder[Rows]:
    return Stores.key_value("s", key=serdes.string, value=serdes.json, **options)


# -- the model ---------------------------------------------------------------------------------

KEYS = st.text(st.sampled_from("ab\xe9\U0001f600"), max_size=3)
VALUES = st.one_of(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=2))
BOUND = st.none() | KEYS
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.none() | VALUES),
    st.tuples(st.just("put_if_absent"), KEYS, VALUES),
    st.tuples(st.just("put_all"), st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=3)),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.sampled_from(["range", "reverse_range"]), BOUND, BOUND),
    st.tuples(st.sampled_from(["all", "reverse_all"])),
    st.tuples(st.just("prefix_scan"), KEYS, st.just(serdes.string)),
    st.sampled_from([("commit",), ("abort",), ("crash",)]),
)


class Model:
    """What a store must answer."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    def do(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def get(self, key: str) -> Any:
        return self.rows.get(key)

    def put(self, key: str, value: Any) -> None:
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value

    def put_if_absent(self, key: str, value: Any) -> Any:
        old = self.rows.get(key)
        if old is None:
            self.put(key, value)
        return old

    def put_all(self, entries: Any) -> None:
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: str) -> Any:
        return self.rows.pop(key, None)

    def all(self) -> list[tuple[str, Any]]:
        return sorted(self.rows.items(), key=lambda row: row[0].encode())

    def reverse_all(self) -> list[tuple[str, Any]]:
        return self.all()[::-1]

    def range(self, start: str | None, end: str | None) -> list[tuple[str, Any]]:
        return [
            (key, value)
            for key, value in self.all()
            if (start is None or key.encode() >= start.encode())
            and (end is None or key.encode() <= end.encode())
        ]

    def reverse_range(self, start: str | None, end: str | None) -> list[tuple[str, Any]]:
        return self.range(start, end)[::-1]

    def prefix_scan(self, prefix: str, serde: Any) -> list[tuple[str, Any]]:
        return [row for row in self.all() if row[0].encode().startswith(prefix.encode())]


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(OPERATIONS, max_size=25), st.sampled_from(["each_record", "manual"]))
def test_a_store_answers_as_a_dict_does_also_under_aborts_and_crashes(
    operations: list[Any], commit: str
) -> None:
    ops, model = StoreOps(store(), commit=commit), Model()
    done: list[Any] = []
    for operation in operations:
        if operation[0] in ("commit", "abort", "crash"):
            getattr(ops.driver, operation[0])()
            continue
        done.append(operation)
        assert ops.do(*operation) == model.do(*operation), done
    ops.driver.commit()
    assert dict(ops.driver.store("s", committed=True)) == model.rows
    ops.driver.crash(keep=False)
    assert ops.do("all") == model.all()


def test_the_same_rows_come_from_rocksdb(tmp_path: Any) -> None:
    ops, model = StoreOps(store(), commit="manual", state_dir=tmp_path), Model()
    for number in range(60):
        key = "ab\xe9"[number % 3] * (number % 4)
        for operation in (("put", key, number), ("range", "a", "b"), ("reverse_all",)):
            assert ops.do(*operation) == model.do(*operation)
        if number % 7 == 0:
            ops.driver.commit()
        if number % 5 == 0:
            assert ops.do("delete", key) == model.do("delete", key)
    ops.driver.close()


# -- single rules ------------------------------------------------------------------------------


def test_whole_numbers_are_in_the_order_of_their_bytes() -> None:
    numbers = in_memory(Stores.key_value("s", key=serdes.long, value=serdes.long))
    for number in (-1, 3, 0, -5, 2):
        numbers.put(number, number)
    assert [key for key, _ in numbers.all()] == [0, 2, 3, -5, -1]


def test_deleting_what_was_never_there_writes_no_tombstone() -> None:
    ops = StoreOps(store())
    ops.do("delete", "a")
    ops.do("put", "b", None)
    ops.do("put", "c", 1)
    ops.do("delete", "c")
    log = ops.driver.output("test-s-changelog")
    assert [(record.key, record.value) for record in log.read_all()] == [("c", 1), ("c", None)]


def test_the_changelog_gets_one_record_for_each_row_of_a_commit() -> None:
    ops = StoreOps(store(), commit="manual")
    for value in range(5):
        ops.do("put", "a", value, timestamp=value)
    ops.driver.commit()
    (record,) = ops.driver.output("test-s-changelog").read_all()
    assert (record.key, record.value, record.timestamp) == ("a", 4, 4)


def test_rows_may_be_written_while_they_are_iterated() -> None:
    """Keys are those of the beginning, values those of now, and deleted rows are left out."""
    rows = in_memory(store())
    rows.put_all([(key, key) for key in "abcd"])
    seen = []
    for key, value in rows.all():
        seen.append((key, value))
        if key == "a":
            rows.put("c", "changed")
            rows.delete("b")
            rows.put("aa", "new")
            rows.put("z", "new")
    assert seen == [("a", "a"), ("c", "changed"), ("d", "d")]


def test_committed_rows_may_be_written_while_they_are_iterated() -> None:
    found: list[Any] = []

    def act(record: Record[str, str], context: ProcessorContext[Any, Any]) -> None:
        rows = context.store("s")
        if record.value == "fill":
            rows.put_all([(key, key) for key in "abcd"])
            return
        for key, value in rows.all():
            found.append((key, value))
            rows.put("c", "changed")
            rows.delete("b")
            rows.put("z", "new")

    topology = (
        Topology()
        .add_source("read", "in", key=serdes.string, value=serdes.string)
        .add_processor("act", act, "read", stores=[store()])
    )
    driver = TopologyTestDriver(topology)
    driver.input("in").send("k", "fill")
    driver.input("in").send("k", "iterate")
    assert found == [("a", "a"), ("c", "changed"), ("d", "d")]


def test_values_that_can_change_are_private_copies() -> None:
    rows = in_memory(store())
    mine = [1]
    rows.put("a", mine)
    mine.append(2)
    (rows.get("a") or []).append(3)
    assert rows.get("a") == [1]


def test_the_count_of_rows_is_rough() -> None:
    rows = in_memory(store())
    rows.put_all([(key, 1) for key in "abc"])
    assert rows.approximate_num_entries() == 3


def test_a_null_key_is_refused() -> None:
    with pytest.raises(ValueError, match="store 's' requires a key, not None"):
        in_memory(store()).get(None)  # type: ignore[arg-type]


def test_a_value_that_the_serde_refuses_is_an_error_with_the_store() -> None:
    ops = StoreOps(Stores.key_value("s", key=serdes.string, value=serdes.long))
    with pytest.raises(RecordError) as raised:
        ops.do("put", "a", "no number")
    assert raised.value.store == "s"


def test_a_store_without_serdes_has_those_of_the_settings() -> None:
    def act(record: Record[str, str], context: ProcessorContext[Any, Any]) -> None:
        context.store("s").put(record.key, record.value)

    topology = (
        Topology()
        .add_source("read", "in")
        .add_processor("act", act, "read", stores=[Stores.key_value("s")])
    )
    strings = {"default.key.serde": "string", "default.value.serde": "string"}
    driver = TopologyTestDriver(topology, strings)
    driver.input("in").send("k", "v")
    log = driver.output("test-s-changelog", key=serdes.bytes, value=serdes.bytes)
    assert [(record.key, record.value) for record in log.read_all()] == [(b"k", b"v")]


def test_an_unlogged_store_has_no_changelog() -> None:
    ops = StoreOps(store(logged=False))
    ops.do("put", "a", 1)
    assert "test-s-changelog" not in ops.driver.cluster.topics
    assert ops.do("get", "a") == 1


def test_settings_of_the_changelog_are_taken() -> None:
    spec = store(topic_config={"retention.ms": "5"}, kind="memory").store.spec
    assert (spec.topic_config["retention.ms"], spec.kind) == ("5", "memory")


def test_a_name_that_no_topic_could_have_is_refused() -> None:
    with pytest.raises(TopologyError, match="is not legal"):
        Stores.key_value("a b")


# -- with timestamps ---------------------------------------------------------------------------


def test_a_timestamped_store_keeps_the_time_it_is_given_and_logs_it() -> None:
    """Trap 24: the changelog's value is plain, the time is the record's."""
    last = Stores.timestamped_key_value("s", key=serdes.string, value=serdes.long)
    ops = StoreOps(last)
    ops.do("put", "a", ValueAndTimestamp(7, 50), timestamp=90)
    assert ops.do("get", "a") == ValueAndTimestamp(7, 50)
    assert ops.do("all") == [("a", ValueAndTimestamp(7, 50))]
    log = ops.driver.output("test-s-changelog", key=serdes.bytes, value=serdes.bytes)
    (record,) = log.read_all()
    assert (record.value, record.timestamp) == (serdes.long.serialize(7), 50)
    ops.driver.crash(keep=False)
    assert ops.do("get", "a") == ValueAndTimestamp(7, 50)
    assert ops.do("delete", "a") == ValueAndTimestamp(7, 50)


# -- one's own ---------------------------------------------------------------------------------


class TopThree:
    """The largest three numbers of each key."""

    def __init__(self, rows: KeyValueStore[str, list[int]]) -> None:
        self._rows = rows
        self.added = 0

    def add(self, key: str, number: int) -> None:
        self.added += 1
        self._rows.put(key, sorted([*self.of(key), number], reverse=True)[:3])

    def of(self, key: str) -> list[int]:
        return self._rows.get(key) or []


TOP = Stores.custom("top", TopThree, key=serdes.string, value=serdes.json)


def test_a_store_of_ones_own_is_kept_in_rows_and_survives_everything() -> None:
    ops = StoreOps(TOP, commit="manual")
    for number in (3, 9, 1):
        ops.do("add", "a", number)
    ops.driver.commit()
    ops.driver.crash(keep=False)
    ops.do("add", "a", 7)
    assert ops.do("of", "a") == [9, 7, 3]


def test_processors_of_one_task_share_the_object_of_a_store() -> None:
    seen = []

    class First(Processor[Any, Any, Any, Any]):
        def process(self, record: Record[Any, Any]) -> None:
            self.context.store(TOP).add("a", 1)
            self.context.forward(record)

    def second(record: Record[Any, Any], context: ProcessorContext[Any, Any]) -> None:
        seen.append(context.store(TOP).added)

    topology = (
        Topology()
        .add_source("read", "in", key=serdes.string, value=serdes.string)
        .add_processor("first", First, "read", stores=[TOP])
        .add_processor("second", second, "first", stores=[TOP])
    )
    TopologyTestDriver(topology).input("in").send_many([("k", "v")] * 2)
    assert seen == [1, 2]
