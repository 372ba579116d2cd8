"""The calls behind each file of tests/golden/kafka_streams; its README has them in Java."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from headrace.topology import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.dsl.kstream import KStream
from headrace.topology.dsl.ktable import KTable
from headrace.topology.graph.materialized import Materialized
from headrace.topology.processors.stores import Stores

Build = Callable[[StreamsBuilder], object]
Stream = KStream[Any, Any]
Table = KTable[Any, Any]

CASES: dict[str, Build] = {}

WAITING = {
    "optimized-two-groups": "the optimiser's own rewrites",
    "optimized-two-groups-grouped-as": "the optimiser's own rewrites",
    "optimized-two-groups-mapped": "the optimiser's own rewrites",
    "fk-join-unnamed": "results of a foreign-key join are stored, so that none is told twice",
}
"""Files that nothing here can write yet, and what is missing."""


def case(build: Build) -> Build:
    """Register a case under the name of the function that builds it."""
    CASES[build.__name__.replace("_", "-")] = build
    return build


def one(name: str, build: Build) -> None:
    """Register a case of a single chain."""
    CASES[name] = build


def yes(key: object, value: object) -> bool:
    return True


def forwarding(record: Any, context: Any) -> None:
    context.forward(record)


def value_as_key(key: object, value: Any) -> Any:
    return value


def swap(key: Any, value: Any) -> tuple[Any, Any]:
    return value, key


def pairs(key: Any, value: Any) -> list[tuple[Any, Any]]:
    return [(key, value)]


def same(value: Any) -> Any:
    return value


def nothing(key: object, value: object) -> None:
    pass


def first(old: Any, value: Any) -> Any:
    return old


def empty() -> str:
    return ""


def keep(key: object, value: object, total: str) -> str:
    return total


def by_value(key: object, value: str) -> str:
    return value


def split(value: str) -> list[str]:
    return value.split()


def inp(b: StreamsBuilder) -> Stream:
    return b.stream("in")


# Stateless steps


@case
def stateless(b: StreamsBuilder) -> None:
    s = inp(b).filter(yes).filter_not(yes).map(swap).map_values(same).flat_map(pairs)
    s.flat_map_values(split).select_key(value_as_key).peek(nothing).to("out")


@case
def stateless_named(b: StreamsBuilder) -> None:
    s: Stream = b.stream("in", name="src").filter(yes, name="a-filter")
    s = s.filter_not(yes, name="a-filter-not").map(swap, name="a-map")
    s = s.map_values(same, name="a-map-values").flat_map(pairs, name="a-flat-map")
    s = s.flat_map_values(split, name="a-flat-map-values")
    s.select_key(value_as_key, name="a-select-key").peek(nothing, name="a-peek").to(
        "out", name="sink"
    )


one(
    "stateless-half-named",
    lambda b: inp(b).filter(yes).filter_not(yes, name="middle").map_values(same).to("out"),
)
one("source-named-chain", lambda b: b.stream("in", name="src").filter(yes).to("out"))


@case
def sink_named_then_more(b: StreamsBuilder) -> None:
    s = inp(b)
    s.to("out", name="sink")
    s.filter(yes).to("out2")


one("foreach", lambda b: inp(b).for_each(nothing))
one("foreach-named", lambda b: inp(b).for_each(nothing, name="each"))
one("print", lambda b: inp(b).print())
one("print-named", lambda b: inp(b).print(label="l", name="show"))


@case
def fan_out(b: StreamsBuilder) -> None:
    s = inp(b)
    s.filter(yes).to("a")
    s.map_values(same).to("b")
    s.peek(nothing).for_each(nothing)


@case
def deep_and_wide(b: StreamsBuilder) -> None:
    s = inp(b).filter(yes)
    s.map_values(same).to("a")
    s.filter_not(yes).peek(nothing).to("b")
    s.to("c")


@case
def wide(b: StreamsBuilder) -> None:
    s = inp(b)
    for i in range(12):
        x = s.filter(yes)
        for _ in range(i % 3):
            x = x.peek(nothing)
        x.to(f"o{i}")


one("empty", lambda b: None)
one("select-key-then-to", lambda b: inp(b).select_key(value_as_key).to("out"))
one("source-alone", inp)

# Word count


def words(b: StreamsBuilder) -> Stream:
    return inp(b).flat_map_values(split)


one(
    "word-count",
    lambda b: words(b).group_by(value_as_key).count().to_stream().to("out"),
)
one(
    "word-count-grouped-as",
    lambda b: words(b).group_by(value_as_key, name="by-word").count().to_stream().to("out"),
)
one(
    "word-count-materialized-as",
    lambda b: words(b).group_by(value_as_key).count(store="counts").to_stream().to("out"),
)
one(
    "word-count-both",
    lambda b: (
        words(b).group_by(value_as_key, name="by-word").count(store="counts").to_stream().to("out")
    ),
)


@case
def word_count_all_named(b: StreamsBuilder) -> None:
    s: Stream = b.stream("in", name="src").flat_map_values(split, name="split")
    counts = s.group_by(value_as_key, name="by-word").count(store="counts", name="counter")
    counts.to_stream(name="stream").to("out", name="sink")


one(
    "serdes-with-everywhere",
    lambda b: (
        b.stream("in", key=serdes.string, value=serdes.string)
        .group_by(value_as_key, key=serdes.string, value=serdes.string)
        .count()
        .to_stream()
        .to("out", key=serdes.string, value=serdes.long)
    ),
)

# Counts

LONG = serdes.long

one("count-on-source", lambda b: inp(b).group_by_key().count())
one("count-on-source-grouped-as", lambda b: inp(b).group_by_key(name="g").count())
one("count-on-source-named", lambda b: inp(b).group_by_key().count(name="counter"))
one("count-on-source-materialized-as", lambda b: inp(b).group_by_key().count(store="counts"))
one(
    "count-on-source-materialized-with",
    lambda b: inp(b).group_by_key().count(key=serdes.string, value=LONG).to_stream().to("out"),
)
one(
    "count-materialized-with-repartitioned",
    lambda b: inp(b).group_by(value_as_key).count(store=Materialized()).to_stream().to("out"),
)
one(
    "count-named-materialized-with",
    lambda b: inp(b).group_by_key().count(name="counter", value=LONG).to_stream().to("out"),
)
one(
    "count-after-filter",
    lambda b: inp(b).filter(yes).group_by_key().count().to_stream().to("out"),
)
one(
    "count-named-repartitioned",
    lambda b: inp(b).group_by(value_as_key).count(name="counter").to_stream().to("out"),
)
one(
    "count-named-materialized-repartitioned",
    lambda b: (
        inp(b).group_by(value_as_key).count(name="counter", store="counts").to_stream().to("out")
    ),
)
one(
    "store-logging-off",
    lambda b: inp(b).group_by_key().count(store=Materialized("counts", logged=False)),
)
one(
    "count-filter-to-stream",
    lambda b: inp(b).group_by_key().count().filter(yes).map_values(same).to_stream().to("out"),
)


@case
def aggregate_two_children(b: StreamsBuilder) -> None:
    counts = inp(b).group_by_key().count(store="counts")
    counts.to_stream().to("a")
    counts.to_stream().filter(yes).to("b")


# Grouping by a key that has changed


def keyed(b: StreamsBuilder) -> Stream:
    return inp(b).select_key(value_as_key)


one(
    "group-by-key-after-select-key",
    lambda b: keyed(b).group_by_key().count().to_stream().to("out"),
)
one(
    "group-by-key-after-select-key-grouped-as",
    lambda b: keyed(b).group_by_key(name="g").count().to_stream().to("out"),
)
one(
    "group-by-key-after-select-key-named",
    lambda b: (
        inp(b)
        .select_key(value_as_key, name="sel")
        .group_by_key(name="g")
        .count(store="counts")
        .to_stream()
        .to("out")
    ),
)
one(
    "group-by-key-after-map",
    lambda b: inp(b).map(swap).group_by_key().count().to_stream().to("out"),
)
one(
    "group-by-key-after-flat-map",
    lambda b: inp(b).flat_map(pairs).map_values(same).group_by_key().count().to_stream().to("out"),
)
one("group-by-key-not-used", lambda b: keyed(b).group_by_key())
one("group-by-not-used", lambda b: inp(b).group_by(value_as_key))
one(
    "grouped-as-with-suffix",
    lambda b: inp(b).group_by(value_as_key, name="x-repartition").count(store="counts"),
)
one(
    "grouped-as-looking-generated",
    lambda b: inp(b).group_by(value_as_key, name="KSTREAM-MINE-0000000042").count(store="counts"),
)

# Reduce and aggregate

one("reduce", lambda b: inp(b).group_by_key().reduce(first).to_stream().to("out"))
one(
    "reduce-materialized-as",
    lambda b: inp(b).group_by_key().reduce(first, store="last").to_stream().to("out"),
)
one(
    "reduce-materialized-with",
    lambda b: inp(b).group_by_key().reduce(first, value=serdes.string).to_stream().to("out"),
)
one(
    "reduce-repartitioned",
    lambda b: inp(b).group_by(value_as_key).reduce(first).to_stream().to("out"),
)
one(
    "reduce-named-repartitioned",
    lambda b: (
        inp(b)
        .group_by(value_as_key, name="g")
        .reduce(first, name="reducer", store="last")
        .to_stream()
        .to("out")
    ),
)
one("aggregate", lambda b: inp(b).group_by_key().aggregate(empty, keep).to_stream().to("out"))
one(
    "aggregate-materialized-as",
    lambda b: inp(b).group_by_key().aggregate(empty, keep, store="sums").to_stream().to("out"),
)
one(
    "aggregate-materialized-with",
    lambda b: (
        inp(b).group_by_key().aggregate(empty, keep, value=serdes.string).to_stream().to("out")
    ),
)
one(
    "aggregate-repartitioned",
    lambda b: inp(b).group_by(value_as_key).aggregate(empty, keep).to_stream().to("out"),
)
one(
    "aggregate-named-repartitioned",
    lambda b: (
        inp(b)
        .group_by(value_as_key, name="g")
        .aggregate(empty, keep, name="folder", store="sums")
        .to_stream()
        .to("out")
    ),
)

# Several folds


def two_folds(b: StreamsBuilder, name: str | None, count: str | None, reduce: str | None) -> None:
    g = inp(b).group_by(value_as_key, name=name)
    g.count(store=count).to_stream().to("counts")
    g.reduce(first, store=reduce).to_stream().to("last")


one("two-aggregates-off-one-group", lambda b: two_folds(b, None, None, None))
one("two-aggregates-off-one-group-grouped-as", lambda b: two_folds(b, "g", None, None))
one("two-aggregates-off-one-group-materialized", lambda b: two_folds(b, None, "c", "r"))
one("two-aggregates-off-one-group-all-named", lambda b: two_folds(b, "g", "c", "r"))


@case
def two_aggregates_off_one_group_on_source(b: StreamsBuilder) -> None:
    g = inp(b).group_by_key()
    g.count()
    g.reduce(first)


@case
def two_groups_after_select_key(b: StreamsBuilder) -> None:
    s = keyed(b)
    s.group_by_key().count().to_stream().to("a")
    s.group_by_key().reduce(first).to_stream().to("b")


@case
def two_groups_after_select_key_grouped_as(b: StreamsBuilder) -> None:
    s = keyed(b)
    s.group_by_key(name="g1").count().to_stream().to("a")
    s.group_by_key(name="g2").reduce(first).to_stream().to("b")


@case
def one_group_two_counts_and_a_chain_between(b: StreamsBuilder) -> None:
    g = inp(b).group_by(value_as_key, name="g")
    g.count(store="c")
    b.stream("other").to("out")
    g.reduce(first, store="r")


one(
    "count-of-counts",
    lambda b: (
        inp(b)
        .group_by(value_as_key)
        .count()
        .to_stream()
        .group_by(value_as_key)
        .count()
        .to_stream()
        .to("out")
    ),
)
one(
    "count-of-counts-named",
    lambda b: (
        inp(b)
        .group_by(value_as_key, name="one")
        .count(store="c1")
        .to_stream()
        .group_by(value_as_key, name="two")
        .count(store="c2")
        .to_stream()
        .to("out")
    ),
)
one(
    "count-on-source-then-group-by-key",
    lambda b: (
        inp(b).group_by_key().count().to_stream().group_by_key().count().to_stream().to("out")
    ),
)


@case
def three_sub_topologies(b: StreamsBuilder) -> None:
    inp(b).group_by(value_as_key).count().to_stream().to("a")
    inp(b).group_by(value_as_key).reduce(first).to_stream().to("b")


# Repartition

one("repartition", lambda b: inp(b).repartition().to("out"))
one("repartition-named", lambda b: inp(b).repartition(name="again").to("out"))
one("repartition-partitions", lambda b: inp(b).repartition(partitions=4).to("out"))
one(
    "repartition-named-partitions",
    lambda b: inp(b).repartition(name="again", partitions=4).to("out"),
)
one(
    "repartition-after-map",
    lambda b: inp(b).map(swap).repartition().map_values(same).to("out"),
)
one(
    "repartition-then-count",
    lambda b: keyed(b).repartition(name="again").group_by_key().count().to_stream().to("out"),
)
one(
    "repartition-then-count-unnamed",
    lambda b: keyed(b).repartition().group_by_key().count().to_stream().to("out"),
)


@case
def repartition_aggregate_to(b: StreamsBuilder) -> None:
    s = inp(b).filter(yes).select_key(value_as_key).map_values(same).repartition(name="mid")
    sums = s.group_by_key().aggregate(empty, keep, store="sums")
    sums.to_stream().map_values(same).to("out")


# Merge


def merged(b: StreamsBuilder, name: str | None = None) -> Stream:
    x, y = b.stream("a"), b.stream("b")
    return x.merge(y, name=name)


one("merge", lambda b: merged(b).to("out"))
one("merge-named", lambda b: merged(b, "both").to("out"))
one("merge-group-by-key", lambda b: merged(b).group_by_key().count().to_stream().to("out"))


@case
def merge_built_the_other_way(b: StreamsBuilder) -> None:
    x, y = b.stream("a"), b.stream("b")
    y.merge(x).to("out")


@case
def merge_one_side_rekeyed(b: StreamsBuilder) -> None:
    x, y = b.stream("a"), b.stream("b")
    both: Stream = x.merge(y.select_key(value_as_key))
    both.group_by_key().count().to_stream().to("out")


@case
def merge_filtered(b: StreamsBuilder) -> None:
    x, y = b.stream("a"), b.stream("b")
    x.filter(yes).merge(y.map_values(same)).to("out")


@case
def merge_three(b: StreamsBuilder) -> None:
    x, y, z = b.stream("a"), b.stream("b"), b.stream("c")
    x.merge(y).merge(z).to("out")


@case
def merge_named_before_unnamed(b: StreamsBuilder) -> None:
    x, y = b.stream("a", name="zz"), b.stream("b", name="aa")
    x.merge(y).to("out")


@case
def merge_with_itself_filtered(b: StreamsBuilder) -> None:
    s = inp(b)
    s.filter(yes).merge(s.filter_not(yes)).to("out")


@case
def merge_of_late_sub_topologies(b: StreamsBuilder) -> None:
    x, y, z = b.stream("a"), b.stream("b"), b.stream("c")
    z.merge(x).to("x")
    y.to("y")


@case
def merge_of_counts(b: StreamsBuilder) -> None:
    x = b.stream("a").group_by(value_as_key).count().to_stream()
    y = b.stream("b").group_by(value_as_key).count().to_stream()
    x.merge(y).to("out")


# Branches


@case
def branch(b: StreamsBuilder) -> None:
    m = inp(b).split().branch(yes).branch(yes).default_branch()
    m["KSTREAM-BRANCH-00000000011"].to("a")
    m["KSTREAM-BRANCH-00000000012"].to("b")
    m["KSTREAM-BRANCH-00000000010"].to("c")


@case
def branch_no_default(b: StreamsBuilder) -> None:
    m = inp(b).split().branch(yes).branch(yes).no_default_branch()
    m["KSTREAM-BRANCH-00000000011"].to("a")
    m["KSTREAM-BRANCH-00000000012"].to("b")


@case
def branch_named(b: StreamsBuilder) -> None:
    s = inp(b).split(name="br-").branch(yes, name="one").branch(yes, name="two")
    m = s.default_branch(name="rest")
    m["br-one"].to("a")
    m["br-two"].to("b")
    m["br-rest"].to("c")


@case
def branch_split_named(b: StreamsBuilder) -> None:
    m = inp(b).split(name="br-").branch(yes).branch(yes).default_branch()
    m["br-1"].to("a")
    m["br-2"].to("b")
    m["br-0"].to("c")


@case
def branch_named_unsplit(b: StreamsBuilder) -> None:
    s = inp(b).split().branch(yes, name="-one").branch(yes, name="-two")
    m = s.no_default_branch()
    m["KSTREAM-BRANCH-0000000001-one"].to("a")
    m["KSTREAM-BRANCH-0000000001-two"].to("b")


one("branch-unused", lambda b: inp(b).split().branch(yes).branch(yes).default_branch())


@case
def branch_then_count(b: StreamsBuilder) -> None:
    m = keyed(b).split(name="br-").branch(yes, name="one").default_branch(name="rest")
    m["br-one"].group_by_key().count().to_stream().to("a")
    m["br-rest"].map_values(same).to("b")


@case
def branch_only_default(b: StreamsBuilder) -> None:
    (stream,) = inp(b).split().default_branch().values()
    stream.to("a")


# Tables

one("table", lambda b: b.table("in"))
one("table-to-stream", lambda b: b.table("in").to_stream().to("out"))
one("table-optimized", lambda b: b.table("in").to_stream().to("out"))
one("table-materialized-as", lambda b: b.table("in", store="rows"))
one("table-materialized-as-to-stream", lambda b: b.table("in", store="rows").to_stream().to("out"))
one("table-consumed-as", lambda b: b.table("in", name="src").to_stream().to("out"))
one(
    "table-consumed-as-materialized-as",
    lambda b: b.table("in", name="src", store="rows").to_stream(name="st").to("out", name="sink"),
)
one(
    "table-materialized-with",
    lambda b: b.table("in", key=serdes.string, value=serdes.string).to_stream().to("out"),
)
one("table-to-stream-rekeyed", lambda b: b.table("in").to_stream(value_as_key).to("out"))
one(
    "table-to-stream-rekeyed-named",
    lambda b: b.table("in").to_stream(value_as_key, name="st").to("out"),
)
one(
    "table-to-stream-rekeyed-count",
    lambda b: b.table("in").to_stream(value_as_key).group_by_key().count().to_stream().to("out"),
)


@case
def table_to_stream_twice(b: StreamsBuilder) -> None:
    t = b.table("in")
    t.to_stream().to("a")
    t.to_stream().to("b")


one(
    "table-filter",
    lambda b: b.table("in").filter(yes).filter_not(yes).map_values(same).to_stream().to("out"),
)
one(
    "table-filter-named",
    lambda b: b.table("in").filter(yes, name="f").map_values(same, name="m").to_stream().to("out"),
)
one(
    "table-filter-materialized-as",
    lambda b: (
        b.table("in")
        .filter(yes, store="kept")
        .map_values(same, store="mapped")
        .to_stream()
        .to("out")
    ),
)
one(
    "table-filter-materialized-with",
    lambda b: (
        b.table("in")
        .filter(yes, key=serdes.string, value=serdes.string)
        .map_values(same, key=serdes.string, value=serdes.string)
        .to_stream()
        .to("out")
    ),
)
one(
    "table-group-by-count",
    lambda b: b.table("in").group_by(lambda k, v: (v, k)).count().to_stream().to("out"),
)
one("to-table", lambda b: inp(b).to_table())
one("to-table-to-stream", lambda b: inp(b).to_table().to_stream().to("out"))
one("to-table-named", lambda b: inp(b).to_table(name="tab").to_stream().to("out"))
one("to-table-materialized-as", lambda b: inp(b).to_table(store="rows").to_stream().to("out"))
one(
    "to-table-materialized-with",
    lambda b: inp(b).to_table(key=serdes.string, value=serdes.string).to_stream().to("out"),
)
one("to-table-rekeyed", lambda b: keyed(b).to_table().to_stream().to("out"))
one("to-table-rekeyed-named", lambda b: keyed(b).to_table(name="tab").to_stream().to("out"))
one(
    "to-table-rekeyed-materialized-as",
    lambda b: keyed(b).to_table(store="rows").to_stream().to("out"),
)
one(
    "to-table-rekeyed-all-named",
    lambda b: keyed(b).to_table(name="tab", store="rows").to_stream().to("out"),
)

# Topics and sources

one("to-extractor", lambda b: inp(b).to(by_value))
one("to-extractor-named", lambda b: inp(b).to(by_value, name="sink"))
one("several-topics", lambda b: b.stream(["b", "a", "c"]).to("out"))
one(
    "several-topics-many",
    lambda b: b.stream([*(f"t{i}" for i in range(9, 0, -1)), "a"]).to("out"),
)
one("thirteen-topics", lambda b: b.stream([f"alpha{i}" for i in range(13)]).to("out"))


@case
def same_topic_twice(b: StreamsBuilder) -> None:
    inp(b).to("a")
    inp(b).filter(yes).to("b")


@case
def same_topic_twice_consumed_as(b: StreamsBuilder) -> None:
    b.stream("in", name="one").to("a")
    b.stream("in", name="two").filter(yes).to("b")


@case
def same_topic_twice_apart(b: StreamsBuilder) -> None:
    inp(b).to("a")
    b.stream("other").to("c")
    inp(b).filter(yes).to("b")


@case
def same_topic_thrice(b: StreamsBuilder) -> None:
    x, y, z = inp(b), inp(b), inp(b)
    z.to("c")
    y.to("b")
    x.to("a")


@case
def same_topics_twice(b: StreamsBuilder) -> None:
    b.stream(["a", "b"]).to("x")
    b.stream(["b", "a"]).to("y")


@case
def two_chains(b: StreamsBuilder) -> None:
    b.stream("a").to("x")
    b.stream("b").to("y")


@case
def two_chains_interleaved(b: StreamsBuilder) -> None:
    x, y = b.stream("a"), b.stream("b")
    y.to("y")
    x.filter(yes).to("x")


@case
def two_chains_named(b: StreamsBuilder) -> None:
    b.stream("a", name="zz").to("x")
    b.stream("b", name="aa").to("y")


@case
def two_chains_lower_and_upper(b: StreamsBuilder) -> None:
    b.stream("a", name="low").to("x")
    b.stream("b").to("y")
    b.stream("c", name="A").to("z")


@case
def chain_over_out_topic(b: StreamsBuilder) -> None:
    inp(b).to("mid")
    b.stream("mid").to("out")


@case
def twelve_chains(b: StreamsBuilder) -> None:
    for i in range(12):
        b.stream(f"t{i}").to(f"o{i}")


@case
def one_source_built_late(b: StreamsBuilder) -> None:
    x = b.stream("a")
    b.stream("b").group_by(value_as_key).count()
    x.group_by(value_as_key).count()


# Global tables

one("global-table", lambda b: b.global_table("in"))
one("global-table-consumed-as", lambda b: b.global_table("in", name="g"))
one("global-table-materialized-as", lambda b: b.global_table("in", store="rows"))
one(
    "global-table-consumed-as-materialized-as",
    lambda b: b.global_table("in", name="g", store="rows"),
)


@case
def global_tables_last(b: StreamsBuilder) -> None:
    b.stream("a").to("x")
    b.stream("b").to("y")
    b.global_table("t1")
    b.global_table("t2")


@case
def global_tables_first(b: StreamsBuilder) -> None:
    b.global_table("t1")
    b.global_table("t2")
    b.stream("a").to("x")
    b.stream("b").to("y")


# Foreign-key joins


def two_tables(b: StreamsBuilder) -> tuple[Table, Table]:
    return b.table("left"), b.table("right")


@case
def fk_join_materialized_as(b: StreamsBuilder) -> None:
    left, right = two_tables(b)
    left.join(right, first, foreign_key=same, store="rows")


@case
def fk_left_join_all_named(b: StreamsBuilder) -> None:
    left, right = two_tables(b)
    rows: Table = left.left_join(right, first, foreign_key=same, store="rows", name="fk")
    rows.to_stream().to("out")


@case
def fk_join_of_stored_tables(b: StreamsBuilder) -> None:
    left, right = b.table("left", store="l"), b.table("right", store="r")
    rows: Table = left.join(right, first, foreign_key=same, store="rows")
    rows.map_values(same).to_stream().to("out")


@case
def fk_join_of_derived_tables(b: StreamsBuilder) -> None:
    right, left = b.table("right"), b.table("left")
    kept, mapped = left.filter(yes), right.map_values(same)
    kept.join(mapped, first, foreign_key=same, store="rows").to_stream().to("out")


@case
def fk_join_with_itself(b: StreamsBuilder) -> None:
    table = b.table("in")
    table.join(table, first, foreign_key=same, store="rows").to_stream().to("out")


@case
def fk_join_twice(b: StreamsBuilder) -> None:
    left, right = two_tables(b)
    third = b.table("third")
    one: Table = left.join(right, first, foreign_key=same, store="one")
    one.join(third, first, foreign_key=same, store="two").to_stream().to("out")


def pair(value: object, row: object) -> tuple[object, object]:
    return value, row


@case
def global_join(b: StreamsBuilder) -> None:
    table = b.global_table("table")
    inp(b).join(table, pair, key_mapper=value_as_key).to("out")


@case
def global_left_join(b: StreamsBuilder) -> None:
    table = b.global_table("table")
    inp(b).left_join(table, pair, key_mapper=value_as_key).to("out")


@case
def global_join_named(b: StreamsBuilder) -> None:
    table = b.global_table("table", name="g", store="rows")
    s = b.stream("in", name="src").join(table, pair, key_mapper=value_as_key, name="joined")
    s.to("out", name="sink")


@case
def global_join_rekeyed(b: StreamsBuilder) -> None:
    table = b.global_table("table", store="rows")
    s = inp(b).select_key(value_as_key).join(table, pair, key_mapper=value_as_key)
    s.group_by_key().count().to_stream().to("out")


@case
def global_table_after_stream(b: StreamsBuilder) -> None:
    s = inp(b)
    table = b.global_table("table")
    s.join(table, pair, key_mapper=value_as_key).to("out")
    b.stream("other").to("out2")


@case
def global_table_between_sub_topologies(b: StreamsBuilder) -> None:
    b.stream("a").to("x")
    one = b.global_table("t1", store="r1")
    b.stream("b").join(one, pair, key_mapper=value_as_key).to("y")
    two = b.global_table("t2")
    b.stream("c").left_join(two, pair, key_mapper=value_as_key).to("z")


@case
def global_two_joins_of_one_table(b: StreamsBuilder) -> None:
    table = b.global_table("table")
    s = inp(b)
    s.join(table, pair, key_mapper=value_as_key).to("x")
    s.left_join(table, pair, key_mapper=value_as_key).to("y")


@case
def process(b: StreamsBuilder) -> None:
    inp(b).process(forwarding).to("out")


@case
def process_named(b: StreamsBuilder) -> None:
    inp(b).process(forwarding, name="mine").filter(yes).to("out")


@case
def process_values(b: StreamsBuilder) -> None:
    inp(b).process_values(forwarding).to("out")


@case
def process_values_named(b: StreamsBuilder) -> None:
    inp(b).process_values(forwarding, name="mine").filter(yes).to("out")


@case
def process_then_count(b: StreamsBuilder) -> None:
    inp(b).process(forwarding).group_by_key().count().to_stream().to("out")


@case
def process_values_then_count(b: StreamsBuilder) -> None:
    inp(b).process_values(forwarding).group_by_key().count().to_stream().to("out")


@case
def process_named_then_count(b: StreamsBuilder) -> None:
    grouped = inp(b).process(forwarding, name="mine").group_by_key(name="g")
    grouped.count(store="c").to_stream().to("out")


@case
def process_with_stores(b: StreamsBuilder) -> None:
    for name in ("s1", "s2"):
        b.add_state_store(Stores.key_value(name))
    inp(b).process(forwarding, stores=["s1", "s2"]).to("out")


@case
def process_with_supplied_stores(b: StreamsBuilder) -> None:
    stores = [Stores.key_value("b"), Stores.key_value("a")]
    inp(b).process(forwarding, name="mine", stores=stores).to("out")


@case
def process_store_of_two(b: StreamsBuilder) -> None:
    b.add_state_store(Stores.key_value("shared"))
    b.stream("a").process(forwarding, stores=["shared"])
    b.stream("b").process(forwarding, stores=["shared"]).to("out")


@case
def process_store_of_a_table(b: StreamsBuilder) -> None:
    s = inp(b)
    s.group_by_key().count(store="counts")
    s.process(forwarding, stores=["counts"]).to("out")


@case
def process_many_stores(b: StreamsBuilder) -> None:
    stores = [Stores.key_value(f"store{i}") for i in range(9)]
    inp(b).process(forwarding, stores=stores).to("out")


# Tables computed from tables


def swapped(key: Any, value: Any) -> tuple[Any, Any]:
    return value, key


def by_value_of(table: Table) -> Any:
    return table.group_by(swapped)


def out(table: Table) -> None:
    table.to_stream().to("out")


class Transformer:
    def transform(self, key: Any, value: Any) -> Any:
        return value


one("table-join", lambda b: out(b.table("left").join(b.table("right"), first)))
one(
    "table-join-materialized-as",
    lambda b: out(b.table("left").join(b.table("right"), first, store="rows")),
)
one(
    "table-join-materialized-with",
    lambda b: out(b.table("left").join(b.table("right"), first, key=serdes.string)),
)
one(
    "table-join-named",
    lambda b: out(b.table("left").join(b.table("right"), first, name="joined")),
)
one(
    "table-join-all-named",
    lambda b: out(b.table("left").join(b.table("right"), first, name="joined", store="rows")),
)


@case
def table_left_join_of_derived_tables(b: StreamsBuilder) -> None:
    right = b.table("right")
    out(b.table("left").filter(yes).left_join(right.map_values(same), first))


@case
def table_outer_join_of_stored_tables(b: StreamsBuilder) -> None:
    left, right = b.table("left", store="l"), b.table("right", store="r")
    out(left.outer_join(right, first).map_values(same))


@case
def table_join_twice(b: StreamsBuilder) -> None:
    left, right, third = b.table("left"), b.table("right"), b.table("third")
    out(left.join(right, first).left_join(third, first))


@case
def table_join_twice_materialized_as(b: StreamsBuilder) -> None:
    left, right, third = b.table("left"), b.table("right"), b.table("third")
    out(left.join(right, first, store="one").left_join(third, first, store="two"))


one(
    "table-join-then-group-by",
    lambda b: out(by_value_of(b.table("left").join(b.table("right"), first)).count()),
)
one(
    "table-join-of-counts",
    lambda b: out(
        b.stream("a")
        .group_by_key()
        .count()
        .join(b.stream("b").group_by_key().count(), lambda x, y: x + y)
    ),
)


@case
def table_join_of_stored_filters(b: StreamsBuilder) -> None:
    left, right = b.table("left"), b.table("right")
    kept = left.filter(yes, store="kept")
    out(kept.join(right.map_values(same, store="mapped"), first))


@case
def table_join_with_itself_materialized_as(b: StreamsBuilder) -> None:
    table = b.table("in")
    out(table.join(table, first, store="rows"))


@case
def table_join_joined_by_stream(b: StreamsBuilder) -> None:
    stream = inp(b)
    stream.join(b.table("left").join(b.table("right"), first), first).to("out")


one("table-group-by-grouped-as", lambda b: out(b.table("in").group_by(swapped, name="by").count()))
one(
    "table-group-by-all-named",
    lambda b: out(b.table("in").group_by(swapped, name="by").count(name="counter", store="rows")),
)
one("table-group-by-count-named", lambda b: out(by_value_of(b.table("in")).count(name="counter")))
one(
    "table-group-by-count-materialized-with",
    lambda b: out(by_value_of(b.table("in")).count(key=serdes.string)),
)
one("table-group-by-reduce", lambda b: out(by_value_of(b.table("in")).reduce(first, first)))
one(
    "table-group-by-reduce-materialized-as",
    lambda b: out(by_value_of(b.table("in")).reduce(first, first, store="rows")),
)
one(
    "table-group-by-aggregate",
    lambda b: out(by_value_of(b.table("in")).aggregate(empty, keep, keep)),
)
one(
    "table-group-by-aggregate-materialized-as",
    lambda b: out(
        b.table("in").group_by(swapped, name="by").aggregate(empty, keep, keep, store="rows")
    ),
)


@case
def table_group_by_two_folds(b: StreamsBuilder) -> None:
    grouped = b.table("in").group_by(swapped)
    grouped.count().to_stream().to("a")
    grouped.reduce(first, first).to_stream().to("b")


@case
def table_group_by_two_folds_grouped_as(b: StreamsBuilder) -> None:
    grouped = b.table("in").group_by(swapped, name="by")
    grouped.count().to_stream().to("a")
    grouped.reduce(first, first).to_stream().to("b")


one("table-group-by-not-used", lambda b: b.table("in").group_by(swapped))
one(
    "table-group-by-of-derived-table",
    lambda b: out(by_value_of(b.table("in").filter(yes).map_values(same)).count()),
)
one(
    "table-group-by-of-stored-filter",
    lambda b: out(by_value_of(b.table("in").filter(yes, store="kept")).count()),
)
one(
    "table-group-by-twice",
    lambda b: out(by_value_of(by_value_of(b.table("in")).reduce(first, first)).count()),
)
one(
    "table-group-by-then-join",
    lambda b: out(by_value_of(b.table("in")).count().join(b.table("right"), first)),
)
one("table-transform-values", lambda b: out(b.table("in").transform_values(Transformer)))
one(
    "table-transform-values-named",
    lambda b: out(b.table("in").transform_values(Transformer, name="mine").filter(yes)),
)
one(
    "table-transform-values-materialized-as",
    lambda b: out(b.table("in").transform_values(Transformer, store="rows")),
)
one(
    "table-transform-values-materialized-with",
    lambda b: out(b.table("in").transform_values(Transformer, key=serdes.string)),
)
one(
    "table-transform-values-with-stores",
    lambda b: out(
        b.table("in").transform_values(Transformer, stores=[Stores.key_value("s1")], store="rows")
    ),
)
one(
    "table-filter-named-materialized-as",
    lambda b: out(
        b.table("in").filter(yes, name="f", store="kept").map_values(same, name="m", store="mapped")
    ),
)
one(
    "table-filter-not-materialized-as",
    lambda b: out(b.table("in", store="rows").filter_not(yes, store="kept")),
)


# Versioned tables

DAY = timedelta(days=1)


def versioned(store: str) -> Materialized:
    return Materialized(store, history=DAY)


one("versioned-table", lambda b: b.table("in", store=versioned("rows")).to_stream().to("out"))
one(
    "versioned-to-table",
    lambda b: inp(b).to_table(store=versioned("rows")).to_stream().to("out"),
)


@case
def versioned_table_filter(b: StreamsBuilder) -> None:
    table = b.table("in", store=versioned("rows"))
    table.filter(yes).map_values(same).to_stream().to("out")


@case
def fk_join_of_versioned_tables(b: StreamsBuilder) -> None:
    left, right = b.table("left", store=versioned("l")), b.table("right", store=versioned("r"))
    left.join(right, first, foreign_key=same, store="rows").to_stream().to("out")
