"""Processors in a topology: built node by node or behind streams, what they see, where it goes."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.streams.errors import ProcessorFailedError, RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    Stores,
    StreamsBuilder,
    Topology,
    TopologyError,
    serdes,
)
from tests.support.operators import HEADERS, driver_of, pairs
from tests.support.topologies import EXACTLY_ONCE

STRINGS = {"default.key.serde": "string", "default.value.serde": "string"}
SEEN = Stores.key_value("seen", key=serdes.string, value=serdes.long)
SECOND = timedelta(seconds=1)
NOW: Any = datetime(2020, 1, 1, tzinfo=UTC)
ANYTHING: Any = 5

AnyContext = ProcessorContext[Any, Any]
AnyRecord = Record[Any, Any]


class Count(Processor[str, str, str, int]):
    """Forwards how often the key has come."""

    stores = (SEEN,)

    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self.seen: KeyValueStore[str, int] = context.store(SEEN)

    def process(self, record: Record[str, str]) -> None:
        count = (self.seen.get(record.key) or 0) + 1
        self.seen.put(record.key, count)
        self.context.forward(record.with_value(count))


def counting() -> Topology:
    return (
        Topology()
        .add_source("read", "in", key=serdes.string, value=serdes.string)
        .add_processor("count", Count, "read")
        .add_sink("write", "out", "count", key=serdes.string, value=serdes.long)
    )


def through(function: Callable[[AnyRecord, AnyContext], object], **options: Any) -> Any:
    """A driver of ``in -> function -> out``, all strings."""
    topology = (
        Topology()
        .add_source("read", "in")
        .add_processor("act", function, "read")
        .add_sink("write", "out", "act")
    )
    return TopologyTestDriver(topology, STRINGS, **options)


# -- building ----------------------------------------------------------------------------------


def test_a_topology_is_built_node_by_node() -> None:
    driver = TopologyTestDriver(counting())
    driver.input("in").send_many([("a", "x"), ("b", "x"), ("a", "x")])
    assert pairs(driver) == [("a", 1), ("b", 1), ("a", 2)]
    assert dict(driver.store("seen")) == {"a": 2, "b": 1}


def test_each_call_returns_a_new_topology_and_leaves_the_old_one() -> None:
    read = Topology().add_source("read", "in")
    one, other = read.add_sink("write", "a", "read"), read.add_sink("write", "b", "read")
    assert [len(t.nodes) for t in (Topology(), read, one, other)] == [0, 1, 2, 2]
    assert one != other


def test_processors_follow_what_the_dsl_has_built_by_the_names_of_its_nodes() -> None:
    builder = StreamsBuilder()
    lines = builder.stream("in", key=serdes.string, value=serdes.string)
    lines.filter(lambda _, value: value != "no", name="kept")
    topology = (
        builder.build()
        .add_processor("count", Count, "kept")
        .add_sink("write", "out", "count", key=serdes.string, value=serdes.long)
    )
    driver = TopologyTestDriver(topology)
    driver.input("in").send_many([("a", "x"), ("a", "no"), ("a", "x")])
    assert pairs(driver) == [("a", 1), ("a", 2)]


def test_a_processor_reads_and_writes_the_store_of_a_table() -> None:
    builder = StreamsBuilder()
    lines = builder.stream("in", key=serdes.string, value=serdes.string)
    lines.group_by_key().count(store="counts")

    def tell(record: AnyRecord, context: AnyContext) -> None:
        found = context.store("counts").get(record.key)
        context.forward(record.with_value(f"{found.value} at {found.timestamp}"))

    lines.process(tell, stores=["counts"]).to("out", key=serdes.string, value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    driver.input("in").send("a", "x", timestamp=5)
    driver.input("in").send("a", "x", timestamp=3)
    assert pairs(driver) == [("a", "1 at 5"), ("a", "2 at 5")]


def test_processors_of_one_store_are_in_one_sub_topology() -> None:
    def put(record: AnyRecord, context: AnyContext) -> None:
        context.store("rows").put(record.key, record.value)

    def get(record: AnyRecord, context: AnyContext) -> None:
        context.forward(record.with_value(context.store("rows").get(record.key)))

    topology = (
        Topology()
        .add_source("a", "a")
        .add_source("b", "b")
        .add_processor("put", put, "a")
        .add_processor("get", get, "b")
        .add_state_store(Stores.key_value("rows"), "put")
    )
    assert len(topology.sub_topologies) == 2
    topology = topology.connect_processor_and_state_stores("get", "rows")
    assert len(topology.sub_topologies) == 1
    driver = TopologyTestDriver(topology.add_sink("write", "out", "get"), STRINGS)
    driver.input("a").send("k", "v")
    driver.input("b").send("k", "")
    assert pairs(driver) == [("k", "v")]


def test_the_store_of_two_suppliers_is_added_once() -> None:
    topology = counting().add_processor("again", Count, "read")
    assert [store.name for store in topology.stores] == ["seen"]
    assert len(topology.sub_topologies) == 1


def make_once() -> Callable[[], Count]:
    made = Count()
    return lambda: made


def stored(name: str) -> Topology:
    return Topology().add_source("read", "in").add_state_store(Stores.key_value(name))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Topology().add_processor("p", Count), "requires a parent"),
        (lambda: Topology().add_processor("p", Count, "nobody"), "does not exist"),
        (lambda: Topology().add_sink("s", "out"), "requires a parent"),
        (lambda: counting().add_sink("s", "x", "write"), "a sink, which forwards no records"),
        (lambda: counting().add_source("again", "in"), "is read by node 'read' already"),
        (lambda: Topology().add_source("read"), "requires the name of a topic"),
        (lambda: counting().add_processor("count", Count, "read"), "two nodes are named 'count'"),
        (lambda: counting().add_processor("p", make_once(), "read"), "the same processor twice"),
        (
            lambda: counting().add_processor("p", ANYTHING, "read"),
            "is not a supplier of processors",
        ),
        (lambda: counting().add_processor("p", object, "read"), "no method process()"),
        (
            lambda: counting().add_processor("p", lambda a, b, c: 0, "read"),
            "is not a supplier of processors",
        ),
        (lambda: counting().add_state_store(Stores.key_value("seen")), "two different stores"),
        (lambda: counting().add_state_store(SEEN, "read"), "not a custom processor"),
        (lambda: counting().add_state_store(SEEN, "nobody"), "there is no processor 'nobody'"),
        (
            lambda: counting().connect_processor_and_state_stores("count"),
            "pass the name of a store",
        ),
        (
            lambda: counting().connect_processor_and_state_stores("count", "x"),
            "there is no store 'x'",
        ),
        (lambda: stored("a b"), "is not legal"),
    ],
)
def test_what_cannot_run_is_refused_while_it_is_built(
    build: Callable[[], Topology], message: str
) -> None:
    with pytest.raises(TopologyError, match=message.replace("(", r"\(").replace(")", r"\)")):
        build()


def test_a_store_that_nobody_uses_belongs_to_no_task() -> None:
    topology = stored("alone").add_sink("write", "out", "read")
    assert topology.sub_topologies[0].stores == ()


# -- forwarding --------------------------------------------------------------------------------


def test_children_get_a_record_in_the_order_in_which_they_were_added_and_to_the_end() -> None:
    """Trap 28: depth first, before forward() returns."""
    seen: list[str] = []

    def top(record: AnyRecord, context: AnyContext) -> None:
        seen.append("begin")
        context.forward(record)
        seen.append("end")

    def noting(name: str) -> Callable[[AnyRecord, AnyContext], None]:
        def note(record: AnyRecord, context: AnyContext) -> None:
            seen.append(name)
            context.forward(record)

        return note

    topology = (
        Topology()
        .add_source("read", "in")
        .add_processor("top", top, "read")
        .add_processor("z", noting("z"), "top")
        .add_processor("a", noting("a"), "top")
        .add_processor("below-z", noting("below-z"), "z")
        .add_processor("below-a", noting("below-a"), "a")
    )
    TopologyTestDriver(topology, STRINGS).input("in").send("k", "v")
    assert seen == ["begin", "z", "below-z", "a", "below-a", "end"]


def test_a_record_goes_to_one_child_by_its_name() -> None:
    def route(record: AnyRecord, context: AnyContext) -> None:
        context.forward(record, to="even" if int(record.value) % 2 == 0 else "odd")

    topology = (
        Topology()
        .add_source("read", "in")
        .add_processor("route", route, "read")
        .add_sink("odd", "odds", "route")
        .add_sink("even", "evens", "route")
    )
    driver = TopologyTestDriver(topology, STRINGS)
    driver.input("in").send_many([("k", "1"), ("k", "2"), ("k", "3")])
    assert pairs(driver, "odds") == [("k", "1"), ("k", "3")]
    assert pairs(driver, "evens") == [("k", "2")]


def test_a_node_of_several_parents_gets_what_each_forwards() -> None:
    def twice(record: AnyRecord, context: AnyContext) -> None:
        context.forward(record)
        context.forward(record.with_key(record.value))

    topology = (
        Topology()
        .add_source("a", "a")
        .add_source("b", "b")
        .add_processor("twice", twice, "a", "b")
        .add_sink("write", "out", "twice", "b")
    )
    driver = TopologyTestDriver(topology, STRINGS)
    driver.input("a").send("k", "a")
    driver.input("b").send("k", "b")
    assert pairs(driver) == [("k", "a"), ("a", "a"), ("k", "b"), ("b", "b"), ("k", "b")]


def failing(act: Callable[[AnyRecord, AnyContext], object]) -> RecordError:
    driver = through(act)
    with pytest.raises(RecordError) as raised:
        driver.input("in").send("k", "v")
    return raised.value


def at(seconds: object) -> Any:
    return lambda r, c: c.schedule(SECOND, print, kind="wall_clock", start=seconds)


def by(interval: Any, callback: Any = print, kind: Any = "stream_time") -> Any:
    return lambda r, c: c.schedule(interval, callback, kind=kind)


@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        (
            lambda r, c: c.forward(r, to=r.value),
            ValueError,
            "no child with the name .*; its children: write",
        ),
        (lambda r, c: c.forward(("k", "v")), TypeError, "'act' must forward a Record, not a tuple"),
        (
            lambda r, c: c.forward("v"),
            TypeError,
            "must forward a Record, not a str; forward the received",
        ),
        (lambda r, c: c.forward(None), TypeError, "must forward a Record, not None"),
        (lambda r, c: c.forward(Record), TypeError, "must forward a Record, not the class Record"),
        (lambda r, c: c.forward(r.with_timestamp(-1)), ValueError, "-1 is negative"),
        (lambda r, c: c.forward(r.with_timestamp(None)), TypeError, "record is None; give an int"),
        (lambda r, c: c.forward(Record("k", "v", NOW)), TypeError, "a datetime; give an int of m"),
        (lambda r, c: c.store("seen"), TopologyError, "not connected with store 'seen'"),
        (by(timedelta(0)), ValueError, "an interval must be at least 1 ms"),
        (by(5), TypeError, "an interval must be a timedelta, not an int"),
        (by(SECOND, kind="sun_dial"), ValueError, "'stream_time' or 'wall_clock', not 'sun_dial'"),
        (by(SECOND, None), TopologyError, "callback must be a function, not None"),
        (by(SECOND, lambda: 0), TopologyError, r"called as callback\(now_ms\), and .* takes \(\)"),
        (at(datetime(2020, 1, 1)), ValueError, "2020-01-01 00:00:00 has no time zone"),
        (at("now"), TypeError, "start must be a datetime .*, not a str"),
    ],
)
def test_a_mistake_of_a_processor_is_said_with_its_node_and_place(
    act: Any, kind: type[Exception], message: str
) -> None:
    error = failing(act)
    assert (error.node, error.offset) == ("act", 0)
    assert isinstance(error.__cause__, kind)
    assert re.search(message, str(error))
    assert error.function is not None
    assert error.function.startswith("tests/topology/processors/test_processor_api.py:")


def test_records_of_process_values_are_made_of_the_one_that_came() -> None:
    for wrong in ("v", Record("k", "v", 0)):
        driver = driver_of(lambda s, wrong=wrong: s.process_values(lambda r, c: c.forward(wrong)))
        said = "must forward a FixedKeyRecord, not a (str|Record); .* process() to change keys"
        with pytest.raises(RecordError, match=said.replace("()", r"\(\)")):
            driver.input("in").send("k", 1)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (lambda c: c.forward(Record("k", "v", 0)), "forwards in init"),
        (lambda c: c.forward(Record("k", "v", 0), to="nobody"), "forwards in init"),
        (
            lambda c: c.schedule(timedelta(0), print, kind="wall_clock"),
            "an interval must be at least 1 ms",
        ),
        (lambda c: c.store("seen"), "not connected with store 'seen'"),
    ],
)
def test_a_mistake_in_init_is_said_with_its_node_and_place(init: Any, message: str) -> None:
    class Wrong(Processor[Any, Any, Any, Any]):
        def init(self, context: AnyContext) -> None:
            init(context)

    topology = Topology().add_source("read", "in").add_processor("wrong", Wrong, "read")
    where = r".*node wrong, function \S+test_processor_api.py:\d+ Wrong.init, task 0_0"
    with pytest.raises(ProcessorFailedError, match=f"{message}{where}"):
        TopologyTestDriver(topology, STRINGS).run()


def test_an_error_behind_forward_is_that_of_the_node_below() -> None:
    def fail(record: AnyRecord, context: AnyContext) -> None:
        raise KeyError(record.key)

    topology = (
        Topology()
        .add_source("read", "in")
        .add_processor("above", lambda r, c: c.forward(r), "read")
        .add_processor("below", fail, "above")
    )
    with pytest.raises(RecordError) as raised:
        TopologyTestDriver(topology, STRINGS).input("in").send("k", "v")
    assert raised.value.node == "below"


# -- records -----------------------------------------------------------------------------------


def test_time_and_headers_of_the_input_go_on_unless_the_processor_changes_them() -> None:
    """Traps 30 and 31."""

    def act(record: AnyRecord, context: AnyContext) -> None:
        context.forward(record)
        context.forward(record.with_timestamp(7).with_headers([("own", b"1")]))
        context.forward(Record("new", "v", 8))

    driver = through(act)
    driver.input("in").send("k", "v", timestamp=5, headers=HEADERS)
    found = [(r.key, r.timestamp, list(r.headers or [])) for r in driver.output("out").read_all()]
    assert found == [("k", 5, HEADERS), ("k", 7, [("own", b"1")]), ("new", 8, [])]


def test_null_keys_and_null_values_reach_processors() -> None:
    driver = through(lambda r, c: c.forward(Record("seen", f"{r.key} {r.value}", r.timestamp)))
    driver.input("in").send_many([(None, "v"), ("k", None)])
    assert pairs(driver) == [("seen", "None v"), ("seen", "k None")]


def test_a_processor_may_forward_nothing_or_much() -> None:
    def repeat(record: AnyRecord, context: AnyContext) -> None:
        for _ in range(int(record.value)):
            context.forward(record)

    driver = through(repeat)
    driver.input("in").send_many([("a", "0"), ("b", "3")])
    assert pairs(driver) == [("b", "3")] * 3


# -- the context -------------------------------------------------------------------------------


def test_a_processor_knows_its_task_and_where_the_record_was_read() -> None:
    def tell(record: AnyRecord, context: AnyContext) -> None:
        found = (context.application_id, context.task_id, context.partition, context.node)
        context.forward(record.with_value(f"{found} {tuple(context.record_metadata or ())}"))

    driver = through(tell, partitions=3)
    for partition in range(3):
        driver.input("in").send("k", "v", partition=partition)
    assert sorted(value for _, value in pairs(driver)) == [
        f"('test', '0_{p}', {p}, 'act') ('in', {p}, 0)" for p in range(3)
    ]


def test_a_processor_knows_the_times_and_the_settings() -> None:
    def tell(record: AnyRecord, context: AnyContext) -> None:
        guarantee = context.settings["processing.guarantee"]
        text = f"{context.current_stream_time} {context.current_time} {guarantee}"
        context.forward(record.with_value(text))

    driver = through(tell, now=1_000)
    driver.input("in").send("k", "v", timestamp=50)
    driver.advance(SECOND)
    driver.input("in").send("k", "v", timestamp=20)
    assert pairs(driver) == [
        ("k", "50 1000 at_least_once"),
        ("k", "50 2000 at_least_once"),
    ]


def test_stream_time_is_the_tasks_over_all_its_inputs_and_outlasts_a_restart() -> None:
    """Trap 1."""

    def tell(record: AnyRecord, context: AnyContext) -> None:
        context.forward(record.with_value(str(context.current_stream_time)))

    topology = (
        Topology()
        .add_source("a", "a")
        .add_source("b", "b")
        .add_processor("tell", tell, "a", "b")
        .add_sink("write", "out", "tell")
    )
    driver = TopologyTestDriver(topology, STRINGS)
    driver.input("a").send("k", "", timestamp=50)
    driver.input("b").send("k", "", timestamp=20)
    driver.restart()
    driver.input("b").send("k", "", timestamp=30)
    assert [value for _, value in pairs(driver)] == ["50", "50", "50"]


def test_a_processor_asks_for_a_commit() -> None:
    def ask(record: AnyRecord, context: AnyContext) -> None:
        context.forward(record)
        if record.value == "now":
            context.commit()

    topology = (
        Topology()
        .add_source("read", "in")
        .add_processor("ask", ask, "read")
        .add_sink("write", "out", "ask")
    )
    driver = TopologyTestDriver(topology, {**STRINGS, **EXACTLY_ONCE}, commit="manual")
    driver.input("in").send("k", "later")
    assert pairs(driver) == []
    driver.input("in").send("k", "now")
    assert pairs(driver) == [("k", "later"), ("k", "now")]
    assert driver.committed_offsets("in") == {0: 2}


# -- the life of a processor -------------------------------------------------------------------


class Diary(Processor[Any, Any, Any, Any]):
    """Writes down what happens to it."""

    written: list[str]

    def init(self, context: AnyContext) -> None:
        super().init(context)
        self.written.append(f"init {context.task_id} {context.store('seen').get('k')}")

    def process(self, record: AnyRecord) -> None:
        self.written.append("process")
        self.context.store("seen").put("k", 1)

    def close(self) -> None:
        self.written.append("close")


def diary() -> tuple[Topology, list[str]]:
    written: list[str] = []

    def make() -> Diary:
        made = Diary()
        made.written = written
        return made

    topology = (
        Topology().add_source("read", "in").add_processor("diary", make, "read", stores=[SEEN])
    )
    return topology, written


def test_init_sees_restored_stores_and_close_ends_each_processor_once() -> None:
    topology, written = diary()
    driver = TopologyTestDriver(topology, STRINGS)
    driver.input("in").send("k", "v")
    assert written == ["init 0_0 None", "process"]
    driver.crash(keep=False)
    driver.run()
    assert written[2:] == ["close", "init 0_0 1"]
    driver.restart()
    assert written[4:] == ["close"]


def test_an_abort_makes_a_new_processor_from_what_is_committed() -> None:
    topology, written = diary()
    driver = TopologyTestDriver(topology, {**STRINGS, **EXACTLY_ONCE}, commit="manual")
    driver.input("in").send("k", "v")
    driver.abort()
    driver.run()
    assert written == ["init 0_0 None", "process", "close", "init 0_0 None", "process"]


def test_each_task_has_a_processor_of_its_own() -> None:
    topology, written = diary()
    driver = TopologyTestDriver(topology, STRINGS, partitions=3)
    driver.run()
    assert sorted(written) == ["init 0_0 None", "init 0_1 None", "init 0_2 None"]


def test_an_error_in_init_is_said_with_its_node_and_nothing_is_processed() -> None:
    class Bad(Processor[Any, Any, Any, Any]):
        def init(self, context: AnyContext) -> None:
            raise KeyError("secret")

    topology = Topology().add_source("read", "in").add_processor("bad", Bad, "read")
    driver = TopologyTestDriver(topology, STRINGS)
    where = r"KeyError \(node bad, function \S+:\d+ Bad\.init, task 0_0\)"
    with pytest.raises(ProcessorFailedError, match=where) as raised:
        driver.input("in").send("k", "v")
    assert "secret" not in str(raised.value)


def test_an_error_in_close_is_logged_and_keeps_nothing_from_ending() -> None:
    class Stuck(Processor[Any, Any, Any, Any]):
        def process(self, record: AnyRecord) -> None:
            pass

        def close(self) -> None:
            raise OSError("stuck")

    topology = Topology().add_source("read", "in").add_processor("stuck", Stuck, "read")
    driver = TopologyTestDriver(topology, STRINGS)
    driver.input("in").send("k", "v")
    driver.restart()
    (event,) = [e for e in driver.events if e["event"] == "processor_close_failed"]
    assert (event["node"], event["error"]) == ("stuck", "OSError")


# -- state under commits, aborts and crashes ---------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("at", [None, "changelogs_written", "transaction_committed"])
def test_a_processors_state_and_output_are_exact_under_aborts_and_crashes(
    at: Any, partitions: int
) -> None:
    driver = TopologyTestDriver(counting(), EXACTLY_ONCE, partitions=partitions, commit="manual")
    keys = "abcab" * 4
    for number, key in enumerate(keys):
        driver.input("in").send(key, "x")
        if number % 3 == 0:
            driver.abort()
        if number % 4 == 0:
            driver.crash(at=at, keep=number % 8 == 0)
            driver.commit()
    driver.commit()
    found: dict[str, list[int]] = {}
    for key, count in pairs(driver):
        found.setdefault(key, []).append(count)
    assert found == {key: list(range(1, keys.count(key) + 1)) for key in "abc"}
    assert dict(driver.store("seen", committed=True)) == {key: keys.count(key) for key in "abc"}


def test_a_processors_store_lives_in_rocksdb(tmp_path: Any) -> None:
    driver = TopologyTestDriver(counting(), EXACTLY_ONCE, state_dir=tmp_path)
    driver.input("in").send_many([("a", "x"), ("b", "x"), ("a", "x")])
    driver.crash()
    driver.input("in").send("a", "x")
    assert pairs(driver)[-1] == ("a", 3)
    assert driver.restored == 0
    driver.close()


def test_the_changelog_has_plain_values_under_the_time_of_the_record() -> None:
    """Trap 24."""
    driver = TopologyTestDriver(counting())
    driver.input("in").send("a", "x", timestamp=70)
    driver.input("in").send("a", "x", timestamp=50)
    log = driver.output("test-seen-changelog", key=serdes.bytes, value=serdes.bytes)
    one, two = (serdes.long.serialize(n) for n in (1, 2))
    found = [(r.key, r.value, r.timestamp) for r in log.read_all()]
    assert found == [(b"a", one, 70), (b"a", two, 50)]


def test_a_put_behind_forward_has_the_time_of_its_own_record_again() -> None:
    def above(record: AnyRecord, context: AnyContext) -> None:
        context.forward(record.with_timestamp(99))
        context.store("seen").put(record.key, 1)

    def below(record: AnyRecord, context: AnyContext) -> None:
        context.store("seen").put("below", 1)

    topology = (
        Topology()
        .add_source("read", "in")
        .add_processor("above", above, "read", stores=[SEEN])
        .add_processor("below", below, "above", stores=["seen"])
    )
    driver = TopologyTestDriver(topology, STRINGS)
    driver.input("in").send("k", "v", timestamp=5)
    log = driver.output("test-seen-changelog").read_all()
    assert [(r.key, r.timestamp) for r in log] == [("below", 99), ("k", 5)]


def test_a_topology_without_processors_pays_nothing_for_them() -> None:
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda k, v: True).to("out")
    code = builder.build().describe(code=True)
    assert "task.begin" not in code
    assert "task.end" not in code
    assert "task.begin" in counting().describe(code=True)


def test_a_processor_counts_numbers_of_its_own() -> None:
    def counts(record: AnyRecord, context: AnyContext) -> None:
        context.count("seen")
        context.count("letters", len(record.value))

    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.string).process(counts, name="step")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", key=serdes.string, value=serdes.string).send_many(
            [("k", "ab"), ("k", "c")]
        )
        worker = driver._worker.present()
        worker._snapshots.collect()
        assert worker.latest_snapshot is not None
        found = {(one.node, one.name): one.value for one in worker.latest_snapshot.counters}
    assert found == {("step", "letters"): 3, ("step", "seen"): 2}


@pytest.mark.parametrize(
    ("name", "n", "said"),
    [("a b", 1, "letters"), ("", 1, "letters"), ("7up", 1, "letters"), (5, 1, "letters"),
     ("down", -1, "can only increase"), ("nothing", float("nan"), "can only increase")],
)  # fmt: skip
def test_a_number_of_ones_own_has_a_plain_name_and_grows(name: Any, n: float, said: str) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.string).process(
        lambda record, context: context.count(name, n), name="step"
    )
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(RecordError, match=said),
    ):
        driver.input("in", key=serdes.string, value=serdes.string).send("k", "v")
