"""Building a topology: what goes into the graph, and what is refused with a way out."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.topology import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.dsl.kstream import KStream
from headrace.topology.errors import TopologyError
from headrace.topology.graph.fold import Aggregating
from headrace.topology.graph.graph import (
    Aggregate,
    Sink,
    SourceNode,
    Stateless,
    TableSource,
    by_name,
)
from headrace.topology.graph.materialized import Materialized
from headrace.topology.topology import Topology


def yes(key: object, value: object) -> bool:
    return True


def swap(key: Any, value: Any) -> tuple[Any, Any]:
    return value, key


def key_of(key: object, value: Any) -> Any:
    return value


def fold_of(key: object, value: str, aggregate: str) -> str:
    return aggregate + value


def strings(builder: StreamsBuilder, topic: str = "in") -> KStream[str, str]:
    return builder.stream(topic, key=serdes.string, value=serdes.string)


def sink(topology: Topology, topic: str) -> Sink:
    return next(n for n in topology.nodes if isinstance(n, Sink) and n.topic == topic)


def repartition_serdes(topology: Topology) -> set[tuple[object, object]]:
    """The serdes that write and read a repartition topic: one pair, if they agree."""
    return {
        (n.key, n.value) for n in topology.nodes if isinstance(n, (Sink, SourceNode)) and n.internal
    }


# What goes into the graph


def test_a_sink_takes_the_serdes_of_its_stream() -> None:
    b = StreamsBuilder()
    strings(b).filter(yes).peek(yes).filter_not(yes).to("out")
    out = sink(b.build(), "out")
    assert (out.key, out.value) == (serdes.string, serdes.string)


def test_a_sink_prefers_the_serdes_that_it_is_given() -> None:
    b = StreamsBuilder()
    strings(b).to("out", value=serdes.json)
    out = sink(b.build(), "out")
    assert (out.key, out.value) == (serdes.string, serdes.json)


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        (lambda s: s.map(swap), (None, None)),
        (lambda s: s.flat_map(lambda k, v: [(v, k)]), (None, None)),
        (lambda s: s.select_key(key_of), (None, serdes.string)),
        (lambda s: s.map_values(len), (serdes.string, None)),
        (lambda s: s.flat_map_values(str.split), (serdes.string, None)),
        (lambda s: s.group_by_key().count().to_stream(), (serdes.string, serdes.long)),
        (lambda s: s.group_by_key().reduce(max).to_stream(), (serdes.string, serdes.string)),
        (
            lambda s: s.group_by_key().aggregate(str, lambda k, v, t: t).to_stream(),
            (serdes.string, None),
        ),
        (
            lambda s: s.group_by_key().aggregate(int, max, value=serdes.long).to_stream(),
            (serdes.string, serdes.long),
        ),
        (lambda s: s.to_table().filter(yes).to_stream(), (serdes.string, serdes.string)),
        (lambda s: s.to_table().map_values(len).to_stream(), (serdes.string, None)),
    ],
)
def test_a_step_keeps_the_serdes_of_what_it_does_not_change(step: Any, kept: Any) -> None:
    b = StreamsBuilder()
    step(strings(b)).to("out")
    out = sink(b.build(), "out")
    assert (out.key, out.value) == kept


def test_a_merged_stream_keeps_the_serdes_on_which_both_agree() -> None:
    b = StreamsBuilder()
    other: KStream[str, str] = b.stream("other", key=serdes.string, value=serdes.json)
    strings(b).merge(other).to("out")
    out = sink(b.build(), "out")
    assert (out.key, out.value) == (serdes.string, None)


def test_group_by_takes_the_stream_s_value_serde_to_the_repartition_topic() -> None:
    b = StreamsBuilder()
    strings(b).group_by(lambda _, value: len(value), key=serdes.integer).count()
    assert repartition_serdes(b.build()) == {(serdes.integer, serdes.string)}


def test_a_repartition_is_written_and_read_with_the_serdes_that_it_is_given() -> None:
    b = StreamsBuilder()
    strings(b).map(swap).repartition(key=serdes.json, value=serdes.bytes, partitions=3).to("out")
    topology = b.build()
    assert repartition_serdes(topology) == {(serdes.json, serdes.bytes)}
    assert [n.partitions for n in topology.nodes if isinstance(n, SourceNode)] == [None, 3]


def test_a_stream_that_keeps_its_key_is_folded_where_it_is() -> None:
    b = StreamsBuilder()
    strings(b).map_values(len).filter(yes).group_by_key(name="unused").count()
    assert len(b.build().sub_topologies) == 1


@pytest.mark.parametrize(
    "rekey",
    [
        lambda s: s.map(swap),
        lambda s: s.select_key(key_of).filter(yes).map_values(len),
        lambda s: s.flat_map(lambda k, v: [(v, k)]).peek(yes),
        lambda s: s.filter(yes).merge(s.select_key(key_of)),
        lambda s: s.select_key(key_of).split(name="x-").default_branch()["x-0"],
        lambda s: s.to_table().to_stream(key_of),
    ],
)
def test_a_stream_that_changed_its_key_is_repartitioned_before_a_fold(rekey: Any) -> None:
    b = StreamsBuilder()
    rekey(strings(b)).group_by_key().count()
    assert len(b.build().sub_topologies) == 2


def test_a_repartitioned_stream_is_not_repartitioned_again() -> None:
    b = StreamsBuilder()
    strings(b).map(swap).repartition().filter(yes).group_by_key().count()
    assert len(b.build().sub_topologies) == 2


def test_null_keys_are_filtered_before_a_repartition_topic() -> None:
    b = StreamsBuilder()
    strings(b).repartition(name="x").to("out")
    node = by_name(b.build().nodes)["x-repartition-filter"]
    assert isinstance(node, Stateless)
    assert node.op == "null_key_filter"


def test_a_named_group_has_one_repartition_for_all_its_folds() -> None:
    b = StreamsBuilder()
    group = strings(b).group_by(key_of, name="g")
    group.count()
    group.reduce(max)
    topics = [n.topics for n in b.build().nodes if isinstance(n, SourceNode)]
    assert topics == [("in",), ("g-repartition",)]


def test_the_options_of_a_store_reach_its_spec() -> None:
    b = StreamsBuilder()
    config = {"segment.bytes": "1000"}
    kept = Materialized("counts", kind="memory", logged=False, cached=False, topic_config=config)
    strings(b).group_by_key().count(store=kept, value=serdes.json)
    (store,) = b.build().stores
    assert (store.name, store.spec.kind, store.spec.logged) == ("counts", "memory", False)
    assert not store.spec.cached
    assert dict(store.spec.topic_config) == config
    assert (store.key, store.value) == (serdes.string, serdes.json)


def test_a_table_is_stored_only_under_a_given_name() -> None:
    b = StreamsBuilder()
    b.table("a", key=serdes.string, value=serdes.json, store="rows")
    b.table("b", store=Materialized(kind="memory"))
    strings(b, "c").to_table()
    topology = b.build()
    tables = [n.store for n in topology.nodes if isinstance(n, TableSource)]
    assert tables == ["rows", None, None]
    (store,) = topology.stores
    assert (store.key, store.value) == (serdes.string, serdes.json)


def test_functions_reach_their_nodes() -> None:
    b = StreamsBuilder()
    s = strings(b)
    s.map_values(len, name="values")
    s.map_values(key_of, with_key=True, name="both")
    s.group_by_key().aggregate(str, fold_of, name="fold", store="s")
    nodes = by_name(b.build().nodes)
    values, both, fold = nodes["values"], nodes["both"], nodes["fold"]
    assert isinstance(values, Stateless)
    assert isinstance(both, Stateless)
    assert isinstance(fold, Aggregate)
    assert (values.function, values.with_key) == (len, False)
    assert (both.function, both.with_key) == (key_of, True)
    assert fold.fold == Aggregating(str, fold_of)


def test_print_takes_the_name_of_the_node_before_as_its_label() -> None:
    b = StreamsBuilder()
    s = strings(b)
    s.print(name="a")
    s.print(name="b", label="seen")
    nodes = by_name(b.build().nodes)
    labels = [getattr(nodes[name], "label", None) for name in "ab"]
    assert labels == ["KSTREAM-SOURCE-0000000000", "seen"]


def test_branches_come_in_the_order_in_which_they_were_added() -> None:
    b = StreamsBuilder()
    split = strings(b).split(name="s-")
    split.branch(yes, name="b")
    split.branch(yes, name="a")
    assert list(split.default_branch(name="c")) == ["s-b", "s-a", "s-c"]


def test_a_topology_does_not_change_after_it_was_built() -> None:
    b = StreamsBuilder()
    s = strings(b)
    s.to("a")
    before = b.build()
    s.split().branch(yes)
    assert [n.name for n in before.nodes] == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-SINK-0000000001",
    ]
    assert len(b.build().nodes) == 4


def test_two_streams_of_the_same_topics_share_one_source() -> None:
    b = StreamsBuilder()
    b.stream(["a", "b"]).merge(b.stream(["b", "a"])).to("out")
    topology = b.build()
    assert sum(isinstance(n, SourceNode) for n in topology.nodes) == 1
    merge = next(n for n in topology.nodes if isinstance(n, Stateless))
    assert merge.parents == ("KSTREAM-SOURCE-0000000000",)


# What is refused


def test_topic_lists_that_overlap_are_refused() -> None:
    b = StreamsBuilder()
    b.stream(["a", "b"])
    b.stream(["b", "c"])
    with pytest.raises(TopologyError, match=r"topic 'b' is read by .* the same topics"):
        b.build()


def test_a_topic_that_is_read_as_a_stream_and_as_a_table_is_refused() -> None:
    b = StreamsBuilder()
    b.stream("in")
    b.table("in")
    with pytest.raises(TopologyError, match=r"topic 'in' is read by .* read it once"):
        b.build()


def test_a_topic_that_is_read_with_two_serdes_is_refused() -> None:
    """Kafka Streams takes the first silently."""
    b = StreamsBuilder()
    b.stream("in", value=serdes.string)
    b.stream("in", value=serdes.json)
    with pytest.raises(TopologyError, match=r"topic 'in' is read with different serdes by"):
        b.build()


@pytest.mark.parametrize(
    "again",
    [
        lambda s: s.filter(yes, name="x"),
        lambda s: s.to("out", name="x"),
        lambda s: s.group_by(key_of, name="x"),
        lambda s: s.to_table(name="x"),
        lambda s: s.split(name="x"),
    ],
)
def test_a_node_s_name_is_given_once(again: Any) -> None:
    b = StreamsBuilder()
    s = strings(b).map_values(len, name="x")
    with pytest.raises(TopologyError, match="two nodes are named 'x'"):
        again(s)


def test_a_store_s_name_is_given_once() -> None:
    b = StreamsBuilder()
    strings(b).group_by_key().count(store="x")
    b.table("t", store="x")
    with pytest.raises(TopologyError, match="two stores are named 'x'"):
        b.build()


@pytest.mark.parametrize("name", ["", "a b", "ä", ".", "..", "a/b", "x" * 250])
@pytest.mark.parametrize(
    "use",
    [
        lambda s, name: s.filter(yes, name=name),
        lambda s, name: s.to(name),
        lambda s, name: s.to("out", name=name),
        lambda s, name: s.group_by_key(name=name),
        lambda s, name: s.group_by(key_of, name=name),
        lambda s, name: s.group_by_key().count(store=name),
        lambda s, name: s.repartition(name=name),
        lambda s, name: s.to_table(store=name),
        lambda s, name: s.split(name=name),
    ],
)
def test_a_name_that_no_topic_can_have_is_refused(use: Any, name: str) -> None:
    b = StreamsBuilder()
    with pytest.raises(TopologyError, match=r"not legal|characters"):
        use(strings(b), name)


def test_the_bound_on_names_is_kafka_s() -> None:
    b = StreamsBuilder()
    strings(b).filter(yes, name="x" * 249)
    assert b.build().nodes[-1].name == "x" * 249


@pytest.mark.parametrize("topics", [[], ["a", "a"], ["a", "b c"]])
def test_topics_that_cannot_be_read_are_refused(topics: list[str]) -> None:
    with pytest.raises(TopologyError, match=r"topic"):
        StreamsBuilder().stream(topics)


def test_streams_of_two_builders_do_not_merge() -> None:
    with pytest.raises(TopologyError, match="another builder"):
        strings(StreamsBuilder()).merge(strings(StreamsBuilder()))


def test_a_split_that_has_ended_takes_no_more_branches() -> None:
    split = strings(StreamsBuilder()).split(name="s-")
    split.default_branch()
    with pytest.raises(TopologyError, match="split 's-' has ended"):
        split.branch(yes)
    with pytest.raises(TopologyError, match="split 's-' has ended"):
        split.default_branch()


@pytest.mark.parametrize("partitions", [0, -1])
def test_a_repartition_topic_has_at_least_one_partition(partitions: int) -> None:
    with pytest.raises(TopologyError, match=f"{partitions} partitions"):
        strings(StreamsBuilder()).repartition(partitions=partitions)
