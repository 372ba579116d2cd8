"""Equal keys meet: whatever serdes are named, what is joined or folded lies in one partition."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    JoinWindows,
    KeySerdeWarning,
    KStream,
    Materialized,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    serdes,
)
from headrace.topology.checks.key_forms import same_bytes
from headrace.topology.graph.graph import SourceNode
from headrace.topology.serdes import avro
from headrace.topology.serdes._serde import StringSerde, for_topic

Stream = KStream[Any, Any]
KEYS = [f"customer {number}" for number in range(8)]
WITHIN = JoinWindows(time_difference=timedelta(hours=1), grace=timedelta(0))


def pair(one: Any, other: Any) -> list[Any]:
    return [one, other]


def owner(_: Any, order: dict[str, str]) -> str:
    return order["customer"]


def orders(builder: StreamsBuilder, **options: Any) -> Stream:
    """Orders by their own keys, which are strings, given the key of their customer."""
    stream = builder.stream("orders", key=serdes.string)
    return stream.select_key(owner, **options)


def customers(builder: StreamsBuilder) -> Any:
    return builder.table("customers", key=serdes.string)


def matches(topology: Topology, partitions: int, *topics: str) -> list[int]:
    """How many of eight customers' orders find their customer, for each output."""
    with TopologyTestDriver(topology, partitions=partitions) as driver:
        for key in KEYS:
            driver.input("customers").send(key, {"name": key})
        for key in KEYS:
            driver.input("orders").send(f"order of {key}", {"customer": key})
        results = [driver.output(topic).read_all() for topic in topics]
    return [sum(None not in record.value for record in found) for found in results]


def with_a_table(builder: StreamsBuilder, **options: Any) -> None:
    stream = orders(builder).left_join(customers(builder), pair, **options)
    stream.to("out", key=serdes.string)


def with_a_stream(builder: StreamsBuilder, **options: Any) -> None:
    other = builder.stream("customers", key=serdes.string)
    orders(builder).left_join(other, pair, WITHIN, **options).to("out", key=serdes.string)


def as_the_other_side(builder: StreamsBuilder, **options: Any) -> None:
    other = builder.stream("customers", key=serdes.string)
    other.left_join(orders(builder), pair, WITHIN, **options).to("out", key=serdes.string)


def with_a_late_table(builder: StreamsBuilder, **options: Any) -> None:
    kept = Materialized("customers-rows", history=timedelta(hours=1))
    table = builder.table("customers", key=serdes.string, store=kept)
    grace = timedelta(0)
    orders(builder).left_join(table, pair, grace=grace, **options).to("out", key=serdes.string)


@pytest.mark.parametrize("partitions", [1, 3, 4])
@pytest.mark.parametrize("options", [{}, {"name": "lookup"}, {"key": serdes.string}])
@pytest.mark.parametrize(
    "build", [with_a_table, with_a_stream, as_the_other_side, with_a_late_table]
)
def test_a_stream_with_new_keys_takes_the_key_serde_of_the_other_side(
    build: Callable[..., None], options: dict[str, Any], partitions: int
) -> None:
    builder = StreamsBuilder()
    build(builder, **options)
    topology = builder.build()
    assert matches(topology, partitions, "out")[0] >= len(KEYS)
    (repartition,) = internal(topology)
    assert repartition.key is serdes.string


def test_so_do_two_joins_behind_one_change_of_the_key() -> None:
    """They share one repartition topic, as they did, since its serdes are the same."""
    builder = StreamsBuilder()
    stream, table = orders(builder), customers(builder)
    stream.left_join(table, pair).to("out", key=serdes.string)
    stream.join(table, pair, key=serdes.string).to("again", key=serdes.string)
    topology = builder.build()
    assert matches(topology, 4, "out", "again") == [8, 8]
    assert [source.topics for source in internal(topology)] == [
        ("KSTREAM-KEY-SELECT-0000000001-repartition",)
    ]


def test_a_join_with_a_serde_of_its_own_has_a_topic_of_its_own() -> None:
    builder = StreamsBuilder()
    stream, table = orders(builder), customers(builder)
    rows = builder.table("rows", key=serdes.json)
    stream.left_join(rows, pair).to("others", key=serdes.string)
    stream.left_join(table, pair).to("out", key=serdes.string)
    stream.join(table, pair, key=serdes.string).to("again", key=serdes.string)
    topology = builder.build()
    assert matches(topology, 4, "out", "again") == [8, 8]
    assert [(source.topics, source.key) for source in internal(topology)] == [
        (("KSTREAM-KEY-SELECT-0000000001-repartition",), serdes.json),
        (("KSTREAM-KEY-SELECT-0000000001-2-repartition",), serdes.string),
    ]


def test_a_join_that_names_other_values_has_a_topic_of_its_own_too() -> None:
    builder = StreamsBuilder()
    stream, table = orders(builder), customers(builder)
    stream.map_values(len).to("lengths")
    plain = stream.map_values(str, name="plain")
    plain.left_join(table, pair).to("out", key=serdes.string)
    plain.left_join(table, pair, value=serdes.string).to("again", key=serdes.string)
    assert [source.value for source in internal(builder.build())] == [None, serdes.string]


def test_a_group_without_a_serde_takes_that_of_the_streams_that_it_is_folded_with() -> None:
    builder = StreamsBuilder()
    bought = builder.stream("customers", key=serdes.string).group_by_key()
    ordered = builder.stream("orders", key=serdes.string).group_by(owner)
    both = bought.cogroup(lambda k, v, n: n + 1).cogroup(ordered, lambda k, v, n: n + 10)
    both.aggregate(lambda: 0, store="sums", value=serdes.long)
    with TopologyTestDriver(builder.build(), partitions=4) as driver:
        for key in KEYS:
            driver.input("customers").send(key, {})
            driver.input("orders").send(f"order of {key}", {"customer": key})
        assert dict(driver.store("sums")) == dict.fromkeys(KEYS, 11)


def internal(topology: Topology) -> list[SourceNode]:
    """The sources of repartition topics."""
    return [node for node in topology.nodes if isinstance(node, SourceNode) and node.internal]


# -- what is refused ---------------------------------------------------------------------------


def stream_with_table(builder: StreamsBuilder, one: Any, other: Any) -> None:
    builder.stream("a", key=one).join(builder.table("b", key=other), pair).to("out")


def two_streams(builder: StreamsBuilder, one: Any, other: Any) -> None:
    stream = builder.stream("a", key=one)
    stream.join(builder.stream("b", key=other), pair, WITHIN).to("out")


def two_tables(builder: StreamsBuilder, one: Any, other: Any) -> None:
    builder.table("a", key=one).join(builder.table("b", key=other), pair).to_stream().to("out")


def two_counts(builder: StreamsBuilder, one: Any, other: Any) -> None:
    tables = [
        builder.stream(topic).group_by(owner, key=key, name=f"by-owner-{topic}").count()
        for topic, key in (("a", one), ("b", other))
    ]
    tables[0].join(tables[1], pair).to_stream().to("out")


def two_windowed_counts(builder: StreamsBuilder, one: Any, other: Any) -> None:
    windows = TimeWindows(size=timedelta(minutes=1))
    tables = [
        builder.stream(topic).group_by(owner, key=key).windowed_by(windows).count()
        for topic, key in (("a", one), ("b", other))
    ]
    tables[0].join(tables[1], pair).to_stream().to("out")


def two_grouped_tables(builder: StreamsBuilder, one: Any, other: Any) -> None:
    tables = [
        builder.table(topic).group_by(lambda k, v: (v, k), key=key, name=f"by-{topic}").count()
        for topic, key in (("a", one), ("b", other))
    ]
    tables[0].outer_join(tables[1], pair).to_stream().to("out")


def a_merge(builder: StreamsBuilder, one: Any, other: Any) -> None:
    both = builder.stream("a", key=one).merge(builder.stream("b", key=other))
    both.group_by_key().count(store="counts")


def a_merge_as_a_table(builder: StreamsBuilder, one: Any, other: Any) -> None:
    builder.stream("a", key=one).merge(builder.stream("b", key=other)).to_table(store="rows")


def a_transformed_merge(builder: StreamsBuilder, one: Any, other: Any) -> None:
    both = builder.stream("a", key=one).merge(builder.stream("b", key=other)).to_table()
    both.transform_values(Same, store="same")


def a_cogroup(builder: StreamsBuilder, one: Any, other: Any) -> None:
    first = builder.stream("a", key=one).group_by_key()
    second = builder.stream("b", key=other).group_by_key()
    both = first.cogroup(lambda k, v, n: n + 1).cogroup(second, lambda k, v, n: n + 10)
    both.aggregate(lambda: 0, store="sums")


def a_foreign_key(builder: StreamsBuilder, one: Any, other: Any) -> None:
    """The right table's rows lie by the serde of its topic, the questions go by another."""
    one, other = (other, one) if other is None else (one, other)
    right = builder.table("b", key=one).filter(lambda k, v: True, store="some", key=other)
    left = builder.table("a", key=serdes.json)
    left.join(right, pair, foreign_key=lambda value: value, name="owner").to_stream().to("out")


def foreign_results(builder: StreamsBuilder, one: Any, other: Any) -> None:
    """Results lie where the left table's rows do."""
    left, right = builder.table("a", key=one), builder.table("c", key=serdes.long)
    found = left.join(right, pair, foreign_key=lambda value: value, name="owner")
    found.join(builder.table("b", key=other), pair).to_stream().to("out")


class Same:
    def transform(self, key: Any, value: Any) -> Any:
        return value


MEETINGS = [
    stream_with_table,
    two_streams,
    two_tables,
    two_counts,
    two_windowed_counts,
    two_grouped_tables,
    a_merge,
    a_merge_as_a_table,
    a_transformed_merge,
    a_cogroup,
    a_foreign_key,
    foreign_results,
]
UNEQUAL = [
    (serdes.string, None),
    (None, serdes.long),
    (serdes.integer, serdes.long),
    (serdes.long, serdes.double),
    (serdes.list_of(serdes.string), serdes.list_of(serdes.integer)),
    (serdes.list_of(serdes.string), serdes.list_of(serdes.string, item_bytes=2)),
    (serdes.string, serdes.list_of(serdes.string)),
]


def built(meeting: Callable[..., None], one: Any, other: Any) -> Topology:
    builder = StreamsBuilder()
    meeting(builder, one, other)
    return builder.build()


@pytest.mark.parametrize("serdes_given", UNEQUAL)
@pytest.mark.parametrize("meeting", MEETINGS)
def test_keys_of_unequal_bytes_that_meet_are_refused(
    meeting: Callable[..., None], serdes_given: tuple[Any, Any]
) -> None:
    topology = built(meeting, *serdes_given)
    with pytest.raises(TopologyError) as refused:
        TopologyTestDriver(topology)
    for serde in serdes_given:
        assert f"serde {(serde or serdes.json).name!r}" in str(refused.value)
    with pytest.raises(TopologyError, match="never match"):
        KafkaStreams(topology, {"application.id": "shop", "bootstrap.servers": "nowhere:1"})


@pytest.mark.parametrize("meeting", MEETINGS)
def test_the_default_serde_is_the_settings(meeting: Callable[..., None]) -> None:
    """What the program does not say is no difference where the default is the same."""
    topology = built(meeting, serdes.string, None)
    TopologyTestDriver(topology, {"default.key.serde": "string"})
    with pytest.raises(TopologyError, match="never match"):
        TopologyTestDriver(topology, {"default.key.serde": serdes.long})


EQUAL = [
    (serdes.string, serdes.string),
    (serdes.string, StringSerde(name="names")),
    (None, None),
    (None, serdes.json),
    (serdes.json, serdes.json_of(int)),
    (serdes.json_of(str), serdes.json_of(str, name="mine", checked=False)),
    (serdes.list_of(serdes.long), serdes.list_of(serdes.long, nulls=True)),
    (serdes.bytes, serdes.string),
]


@pytest.mark.parametrize("serdes_given", EQUAL)
@pytest.mark.parametrize("meeting", MEETINGS)
def test_serdes_of_equal_bytes_are_not(
    meeting: Callable[..., None], serdes_given: tuple[Any, Any]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TopologyTestDriver(built(meeting, *serdes_given))


def test_a_windowed_key_lies_where_its_own_key_does() -> None:
    builder = StreamsBuilder()
    size = timedelta(minutes=1)
    counts = builder.stream("a", key=serdes.string).group_by_key()
    rows = builder.table("b", key=serdes.time_windowed(serdes.string, size=size))
    counts.windowed_by(TimeWindows(size=size)).count().join(rows, pair).to_stream().to("out")
    TopologyTestDriver(builder.build())


def test_what_was_partitioned_anew_is_compared_as_it_is_now() -> None:
    builder = StreamsBuilder()
    again = builder.stream("a", key=serdes.json).repartition(key=serdes.string, name="again")
    again.join(builder.table("b", key=serdes.string), pair).to("out")
    TopologyTestDriver(builder.build())


def test_the_message_says_what_to_write() -> None:
    with pytest.raises(TopologyError) as refused:
        TopologyTestDriver(built(two_counts, serdes.string, None))
    assert str(refused.value) == (
        "keys of KTABLE-JOINOTHER-0000000016, in store "
        "'KSTREAM-AGGREGATE-STATE-STORE-0000000002': by-owner-a-repartition-source reads "
        "by-owner-a-repartition with serde 'string', by-owner-b-repartition-source reads "
        "by-owner-b-repartition with serde 'json' (the default). Equal keys are "
        "encoded differently, so they are in different partitions and never match; write "
        "key=serdes.string at the step that sends keys through by-owner-b-repartition"
    )


# -- what is said, and not refused -----------------------------------------------------------------


def day_serde() -> Any:
    """A new one each time: nobody can know that its functions do the same."""
    return serdes.serde_from(serialize=lambda v: v.encode(), deserialize=bytes.decode, name="day")


def schema_serde(kind: str, registry: avro.MemoryRegistry) -> Any:
    schema = {"type": "record", "name": "Id", "fields": [{"name": "id", "type": kind}]}
    return avro.registered(schema, registry=registry)


REGISTRY, OTHER_REGISTRY = avro.MemoryRegistry(), avro.MemoryRegistry("NONE")
UNDECIDED = [
    (day_serde(), day_serde()),
    (day_serde(), serdes.string),
    (serdes.json, serdes.json_of(tuple[str, str])),
    (serdes.json_of(tuple[str, str]), serdes.json_of(list[str])),
    (serdes.bytes, serdes.json),
    (avro.serde("long"), avro.serde({"type": "long"})),
    (schema_serde("long", REGISTRY), schema_serde("int", REGISTRY)),
    (schema_serde("long", REGISTRY), schema_serde("long", OTHER_REGISTRY)),
    (avro.registered(registry=REGISTRY), schema_serde("long", REGISTRY)),
]


@pytest.mark.parametrize("serdes_given", UNDECIDED)
def test_where_nobody_can_know_there_is_a_warning(serdes_given: tuple[Any, Any]) -> None:
    topology = built(stream_with_table, *serdes_given)
    with pytest.warns(
        KeySerdeWarning, match="only if both serdes encode them equally, which is unknown"
    ):
        TopologyTestDriver(topology)


def test_one_schema_has_one_id_under_all_subjects() -> None:
    """A source, a repartition topic and a table have a subject each."""
    one, other = schema_serde("long", REGISTRY), schema_serde("long", REGISTRY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TopologyTestDriver(built(two_counts, one, other))
    assert same_bytes(
        for_topic(one, "orders", is_key=True), for_topic(other, "customers", is_key=True)
    )
    assert same_bytes(one, avro.serde("long")) is False


def two_processors(one: Any, other: Any) -> Topology:
    def keep(record: Any, context: Any) -> None:
        context.store("kept").put(str(record.key), record.value)

    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("kept", key=serdes.string))
    for topic, key in (("a", one), ("b", other)):
        builder.stream(topic, key=key).process_values(keep, stores=["kept"])
    return builder.build()


def test_processors_that_share_a_store_may_use_what_keys_they_like() -> None:
    topology = two_processors(serdes.string, serdes.long)
    with pytest.warns(KeySerdeWarning, match="a processor does not find them"):
        driver = TopologyTestDriver(topology)
    driver.input("a").send("1", "one")
    driver.input("b").send(2, "two")
    assert dict(driver.store("kept")) == {"1": "one", "2": "two"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TopologyTestDriver(two_processors(serdes.string, serdes.string))


def regrouped(builder: StreamsBuilder, **options: Any) -> None:
    builder.stream("in", key=serdes.string).group_by(owner, **options).count()


def rekeyed(builder: StreamsBuilder, **options: Any) -> None:
    orders(builder).map_values(len).to("out", **options)


def mapped(builder: StreamsBuilder, **options: Any) -> None:
    builder.stream("in", key=serdes.string).map(lambda k, v: (v, k)).to("out", **options)


def processed(builder: StreamsBuilder, **options: Any) -> None:
    stream = builder.stream("in", key=serdes.string)
    stream.process(lambda record, context: context.forward(record)).to("out", **options)


def chosen_by_record(builder: StreamsBuilder, **options: Any) -> None:
    orders(builder).to(lambda key, value: "out", **options)


def regrouped_table(builder: StreamsBuilder, **options: Any) -> None:
    customers(builder).group_by(lambda k, v: (v, k), **options).count()


def joined_with_the_default(builder: StreamsBuilder, **options: Any) -> None:
    orders(builder).join(builder.table("rows"), pair, **options).for_each(print)


def repartitioned(builder: StreamsBuilder, **options: Any) -> None:
    orders(builder).repartition(**options).for_each(print)


CHANGES = [
    regrouped,
    rekeyed,
    mapped,
    processed,
    chosen_by_record,
    regrouped_table,
    joined_with_the_default,
    repartitioned,
]


@pytest.mark.parametrize("change", CHANGES)
def test_new_keys_behind_a_named_serde_are_told_of_where_nobody_names_theirs(
    change: Callable[..., None],
) -> None:
    builder = StreamsBuilder()
    change(builder)
    with pytest.warns(KeySerdeWarning, match="with the default serde 'json', but "):
        TopologyTestDriver(builder.build())
    named = StreamsBuilder()
    change(named, key=serdes.json)
    other_default = {"default.key.serde": "string"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TopologyTestDriver(named.build())
        TopologyTestDriver(builder.build(), other_default)


def returning(kind: Any) -> Callable[..., Any]:
    def function(key: Any, value: Any) -> Any:
        return value

    function.__annotations__["return"] = kind
    return function


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (owner, "key=serdes.string by the return type of the function of "),
        (
            lambda k, v: v,
            "key=serdes.json, which they have now, or key=serdes.string, if they have the t",
        ),
        (
            returning(int),
            r"key=serdes.long by the return type of the function of \S+, or key=serde",
        ),
        (returning("int"), "key=serdes.long by the return type"),
        (returning(bytes), "key=serdes.bytes by the return type"),
        (returning("Unknown"), "key=serdes.json, which they have now"),
        (returning(dict), "key=serdes.json, which they have now"),
    ],
)
def test_of_new_keys_that_serde_is_proposed_first_which_theirs_may_be(
    function: Any, advice: str
) -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string, value=serdes.json)
    orders.select_key(function).to("out")
    said = f"set the serde of the new keys at the step that writes them: {advice}"
    with pytest.warns(KeySerdeWarning, match=said):
        TopologyTestDriver(builder.build())


def test_the_first_of_a_pair_is_the_new_key() -> None:
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serdes.string)
    lines.map(returning(tuple[float, int])).to("out")
    with pytest.warns(
        KeySerdeWarning, match=r"key=serdes.double by the return type of the function of \S+"
    ):
        TopologyTestDriver(builder.build())


def test_a_program_that_names_no_serde_is_left_alone() -> None:
    builder = StreamsBuilder()
    builder.stream("in").select_key(owner).group_by_key().count().to_stream().to("out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TopologyTestDriver(builder.build())
