"""Tables that keep the versions of their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.dsl.ktable import KTable
from headrace.topology.errors import TopologyError
from headrace.topology.graph.materialized import Materialized
from headrace.topology.processors.processors import Record
from tests.support.examples import examples
from tests.support.operators import NO_CACHE

HISTORY_MS = 100
HISTORY = timedelta(milliseconds=HISTORY_MS)
VERSIONED = Materialized("rows", history=HISTORY)
Table = KTable[str, str]
Step = tuple[str, "str | None", int]


def driver_of(
    use: Callable[[Table], None],
    *,
    settings: Mapping[str, object] = NO_CACHE,
    store: Materialized = VERSIONED,
    **options: Any,
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    use(builder.table("in", key=serdes.string, value=serdes.string, store=store))
    config = {
        "application.id": "app",
        "processing.guarantee": "exactly_once_v2",
        "default.key.serde": "string",
        "default.value.serde": "string",
        **settings,
    }
    return TopologyTestDriver(builder.build(), config, **options)


def to_out(table: Table) -> None:
    table.to_stream().to("out")


def send(driver: TopologyTestDriver, *steps: Step) -> None:
    for key, value, time in steps:
        driver.input("in").send(key, value, timestamp=time)


def results(driver: TopologyTestDriver, topic: str = "out") -> list[tuple[Any, int]]:
    return [(record.value, record.timestamp) for record in driver.output(topic).read_all()]


# -- what goes on ------------------------------------------------------------------------------


def test_changes_out_of_order_are_told_to_streams() -> None:
    """Trap 7."""
    driver = driver_of(to_out)
    send(driver, ("k", "new", 20), ("k", "old", 10), ("k", None, 15))
    assert results(driver) == [("new", 20), ("old", 10), (None, 15)]
    assert dict(driver.store("rows")) == {"k": "new"}


def test_changes_out_of_order_are_no_business_of_aggregations() -> None:
    """Trap 7."""

    def use(table: Table) -> None:
        grouped = table.group_by(lambda key, value: ("all", value))
        grouped.aggregate(
            lambda: "",
            lambda key, value, total: f"{total}+{value}",
            lambda key, value, total: f"{total}-{value}",
        ).to_stream().to("out")

    driver = driver_of(use)
    send(driver, ("k", "b", 20), ("k", "a", 10), ("j", "c", 15), ("k", "d", 30), ("k", None, 25))
    assert results(driver) == [("+b", 20), ("+b+c", 20), ("+b+c-b+d", 30)]


def test_changes_out_of_order_are_no_business_of_foreign_key_joins() -> None:
    """Trap 7."""
    builder = StreamsBuilder()
    left = builder.table("left", store=Materialized("l", history=HISTORY))
    right = builder.table("right", store=Materialized("r", history=HISTORY))
    left.join(right, lambda x, y: f"{x}{y}", foreign_key=lambda x: x).to_stream().to("out")
    config = {"default.key.serde": "string", "default.value.serde": "string", **NO_CACHE}
    driver = TopologyTestDriver(builder.build(), config)
    for topic, key, value, time in (
        ("left", "k", "a", 20),
        ("left", "k", "b", 10),
        ("right", "a", "A", 20),
        ("right", "a", "X", 10),
        ("right", "b", "B", 20),
        ("right", "a", None, 15),
    ):
        driver.input(topic).send(key, value, timestamp=time)
    assert results(driver) == [("aA", 20)]


@pytest.mark.parametrize("parents", [("rows",), ("rows", "read")])
def test_changes_out_of_order_are_no_business_of_a_step_of_several_parents(
    parents: tuple[str, ...],
) -> None:
    """Also where the others are streams, which tell no old values."""
    texts: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    builder = StreamsBuilder()
    builder.table("in", store=VERSIONED, name="rows", **texts)
    builder.stream("other", name="read", **texts)

    def pass_on(record: Record[Any, Any], context: Any) -> None:
        context.forward(record)

    topology = builder.build().add_processor("step", pass_on, *parents)
    topology = topology.add_sink("write", "out", "step", **texts)
    driver = TopologyTestDriver(topology, NO_CACHE)
    send(driver, ("k", "new", 20), ("k", "old", 10))
    assert results(driver) == [("new", 20)]
    if "read" in parents:
        driver.input("other").send("k", "other", timestamp=5)
        assert results(driver) == [("new", 20), ("other", 5)]


def test_filters_and_maps_pass_on_what_came_out_of_order_as_such() -> None:
    """Trap 7: what follows from a filtered table is skipped or told as behind the table itself."""

    def use(table: Table) -> None:
        kept = table.filter(lambda key, value: value != "x").map_values(str.upper)
        kept.to_stream().to("out")
        kept.group_by(lambda key, value: ("all", value)).reduce(
            lambda total, value: f"{total}+{value}", lambda total, value: f"{total}-{value}"
        ).to_stream().to("sums")

    driver = driver_of(use)
    send(driver, ("k", "b", 20), ("k", "a", 10), ("k", "x", 15), ("k", "x", 5), ("k", "c", 30))
    assert results(driver) == [("B", 20), ("A", 10), (None, 15), ("C", 30)]
    assert results(driver, "sums") == [("B", 20), ("B-B+C", 30)]


def test_a_version_that_a_map_fails_on_counts_as_deleted() -> None:
    def use(table: Table) -> None:
        table.map_values(lambda value: "%.0f" % (6 / int(value))).to_stream().to("out")

    driver = driver_of(use, settings={"processing.exception.handler": "continue", **NO_CACHE})
    send(driver, ("k", "1", 10), ("k", "0", 20), ("k", "2", 30), ("k", "3", 5), ("k", "6", 25))
    assert results(driver) == [("6", 10), (None, 20), ("3", 30), ("2", 5), ("1", 25)]


def test_what_is_older_than_the_history_is_dropped() -> None:
    driver = driver_of(to_out)
    send(driver, ("j", "now", 1000), ("k", "edge", 900), ("k", "late", 899))
    assert results(driver) == [("now", 1000), ("edge", 900)]


def test_a_change_that_changes_nothing_is_stored_and_not_told() -> None:
    driver = driver_of(to_out)
    send(driver, ("k", "a", 10), ("k", "a", 20), ("k", "a", 15), ("k", None, 5), ("k", None, 30))
    assert results(driver) == [("a", 10), (None, 30)]
    stored = driver.output("app-rows-changelog").read_all()
    assert {record.timestamp for record in stored} == {10, 20, 15, 5, 30}


def test_an_equal_value_of_another_class_is_a_change() -> None:
    """1, 1.0 and true are three documents."""
    builder = StreamsBuilder()
    table = builder.table("in", key=serdes.string, value=serdes.json, store=VERSIONED)
    table.to_stream().to("out", value=serdes.json)
    driver = TopologyTestDriver(builder.build(), {"default.key.serde": "string", **NO_CACHE})
    for time, value in enumerate((1, 1, 1.0, True)):
        driver.input("in").send("k", value, timestamp=time)
    assert [repr(value) for value, _ in results(driver)] == ["1", "1.0", "True"]


def test_a_stream_becomes_a_versioned_table_too() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    table = stream.select_key(lambda key, value: value[0]).to_table(store=VERSIONED)
    table.to_stream().to("out")
    config = {"default.key.serde": "string", "default.value.serde": "string", **NO_CACHE}
    driver = TopologyTestDriver(builder.build(), config, partitions=3)
    for value, time in (("b2", 20), ("b1", 10)):
        driver.input("in").send("k", value, timestamp=time)
    assert results(driver) == [("b2", 20), ("b1", 10)]


def test_a_table_without_a_name_may_have_versions() -> None:
    driver = driver_of(to_out, store=Materialized(history=HISTORY))
    send(driver, ("k", "new", 20), ("k", "old", 10))
    assert dict(driver.store("in-STATE-STORE-0000000000")) == {"k": "new"}


def test_null_keys_are_left_out() -> None:
    driver = driver_of(to_out, settings={"null.key.policy": "drop", **NO_CACHE})
    driver.input("in").send(None, "x")
    assert results(driver) == []


def test_other_steps_cannot_keep_versions() -> None:
    stream = StreamsBuilder().stream("in")
    with pytest.raises(TopologyError, match=r"to_stream\(\).to_table"):
        stream.group_by_key().count(store=Materialized("counts", history=HISTORY))
    with pytest.raises(TopologyError, match="history"):
        Materialized("rows", history=timedelta(-1))


def test_versions_are_not_suppressed() -> None:
    """Kafka Streams refuses it too, as a suppressed table would have to keep them apart."""
    from headrace.topology.dsl.suppressed import Suppressed

    table = StreamsBuilder().table("in", store=VERSIONED)
    with pytest.raises(TopologyError, match="versions"):
        table.suppress(Suppressed.until_time_limit(HISTORY))


# -- the changelog --------------------------------------------------------------------------------


def test_the_changelog_is_not_compacted_within_the_history_and_a_day_more() -> None:
    """Trap 21."""
    driver = driver_of(to_out)
    config = driver.cluster.topics["app-rows-changelog"].config
    assert config["cleanup.policy"] == "compact"
    assert config["min.compaction.lag.ms"] == str(HISTORY_MS + 86_400_000)


def test_the_changelog_has_a_record_for_each_version() -> None:
    """Trap 24: the key, the value or null and the time, as Kafka Streams writes them."""
    driver = driver_of(to_out, commit="manual")
    send(driver, ("k", "c", 30), ("k", None, 20), ("k", "a", 10))
    driver.commit()
    records = driver.output("app-rows-changelog", key=serdes.bytes, value=serdes.bytes).read_all()
    assert [(r.key, r.value, r.timestamp) for r in records] == [
        (b"k", b"a", 10),
        (b"k", None, 20),
        (b"k", b"c", 30),
    ]


# -- in the end all is right, whatever happened in between ----------------------------------------


class Model:
    """All versions that were put, and what an observer of the changes would hear."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, str | None]] = {}
        self.time = -1
        self.told: list[tuple[str, str | None, int]] = []

    def put(self, key: str, value: str | None, time: int) -> None:
        self.time = max(self.time, time)
        if time < self.time - HISTORY_MS:
            return
        if self.as_of(key, time) != value:
            self.told.append((key, value, time))
        self.versions.setdefault(key, {})[time] = value

    def as_of(self, key: str, time: int) -> str | None:
        versions = self.versions.get(key, {})
        earlier = [t for t in versions if t <= time]
        if not earlier or (time < self.time - HISTORY_MS and max(earlier) != max(versions)):
            return None
        return versions[max(earlier)]

    def latest(self, key: str) -> str | None:
        return self.as_of(key, 10**9)


KEYS = "kj"
AS_OF = tuple(range(0, 400, 9))


def look_up(record: Record[str, str], context: Any) -> None:
    """Tell what the table says about all keys at all times."""
    rows = context.store("rows")
    for key in KEYS:
        found = [rows.get(key, as_of=time) for time in AS_OF]
        context.forward(record.with_key(key).with_value([f and f.value for f in found]))


puts = st.tuples(
    st.sampled_from(KEYS),
    st.sampled_from([None, "a", "b"]),
    st.integers(0, 60) | st.integers(0, 380),
)
events = st.sampled_from(["commit", "abort", "restart", "lose all", "die", "die late"])


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(puts | events, max_size=25), st.booleans(), st.booleans())
def test_a_versioned_table_is_as_a_dictionary_of_all_versions(
    steps: Sequence[Any], caching: bool, memory: bool
) -> None:
    """Also after aborts, crashes and restores, with and without caches."""
    builder = StreamsBuilder()
    store = Materialized("rows", history=HISTORY, kind="memory" if memory else "rocksdb")
    table = builder.table("in", key=serdes.string, value=serdes.string, store=store)
    table.to_stream().to("out")
    asked = builder.stream("ask", key=serdes.string, value=serdes.string)
    asked.process(look_up, stores=["rows"], name="ask").to(
        "answers", key=serdes.string, value=serdes.json
    )
    config = {"application.id": "app", "processing.guarantee": "exactly_once_v2"}
    chosen = {**config, **({} if caching else NO_CACHE)}
    driver = TopologyTestDriver(builder.build(), chosen, commit="manual")
    model = Model()
    for step in steps:
        if not isinstance(step, str):
            key, value, time = step
            driver.input("in").send(key, value, timestamp=time)
            model.put(key, value, time)
        elif step == "commit":
            driver.commit()
        elif step == "abort":
            driver.abort()
        elif step == "restart":
            driver.restart()
        elif step == "lose all":
            driver.crash(keep=False)
        else:
            driver.crash(at="changelogs_written" if step == "die" else "transaction_committed")
    driver.input("ask").send("x", "x", timestamp=10**6)
    driver.commit()
    assert dict(driver.store("rows")) == {k: model.latest(k) for k in KEYS if model.latest(k)}
    told = driver.output("out", key=serdes.string, value=serdes.string).read_all()
    assert [(r.key, r.value, r.timestamp) for r in told] == model.told
    answers = driver.output("answers", key=serdes.string, value=serdes.json).as_dict()
    assert answers == {key: [model.as_of(key, time) for time in AS_OF] for key in KEYS}
