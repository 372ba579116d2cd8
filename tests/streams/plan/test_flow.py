"""Which sub-topologies read what others write."""

from __future__ import annotations

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.flow import RepartitionFlow, flow_of
from headrace.streams.plan.plan import plan_application
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support.topologies import word_count


def flow(topology: Topology) -> RepartitionFlow:
    config = StreamsConfig.parse({"application.id": "app", "bootstrap.servers": "localhost:9092"})
    return flow_of(plan_application(topology, config))


def test_a_sub_topology_feeds_those_that_read_what_it_writes() -> None:
    found = flow(word_count())
    assert found.feeds == {0: ("app-by-word-repartition",), 1: ()}
    assert found.writers == {"app-by-word-repartition": (0,)}
    assert found.depths == {0: 1, 1: 0}


def test_depth_is_counted_from_the_last_result_on() -> None:
    builder = StreamsBuilder()
    words = builder.stream("in", key=serdes.string, value=serdes.string)
    table = words.group_by(lambda _, v: v, name="one").count(store="counts")
    again = table.to_stream().map_values(str)
    again.group_by(lambda _, v: v, key=serdes.string, value=serdes.string, name="two").count(
        store="more"
    )
    assert flow(builder.build()).depths == {0: 2, 1: 1, 2: 0}


def test_who_would_wait_for_itself_is_left_out() -> None:
    """A join by foreign keys gets its answers over a topic of its own."""
    builder = StreamsBuilder()
    orders = builder.table("orders", key=serdes.string, value=serdes.string)
    users = builder.table("users", key=serdes.string, value=serdes.string)
    joined = orders.join(users, lambda order, user: order + user, foreign_key=lambda order: order)
    joined.to_stream().to("out")
    found = flow(builder.build())
    assert set(found.feeds.values()) == {()}
    assert set(found.depths.values()) == {0}
