"""Who has which partition, as the group says: asked seldom, and at once where it is wrong."""

from __future__ import annotations

import pytest

from headrace import KafkaStreams, StreamsBuilder
from headrace.streams.errors import FatalClientError
from headrace.streams.queries.errors import NotReadableError
from headrace.streams.queries.locator import MAX_AGE_S, PAUSE_S, PartitionLocator
from tests.support.hosts import SETTINGS, Group
from tests.support.processes import wait_until


class Scene:
    def __init__(self) -> None:
        builder = StreamsBuilder()
        builder.stream("in").group_by_key().count(store="counts").to_stream().to("out")
        plans = KafkaStreams(builder.build(), SETTINGS).plans
        self.group = Group(plans, 2, {"one:1": {0}, "two:2": {1}})
        self.now_s = 100.0
        self.known = PartitionLocator(
            "asked", plans, lambda: self.group, monotonic_s=lambda: self.now_s
        )


def test_the_owner_of_each_partition_is_what_its_client_id_says() -> None:
    heard = Scene().known.description()
    assert heard.owners == {(0, 0): "one:1", (0, 1): "two:2"}
    assert heard.partitions == {0: 2}
    assert heard.endpoints == {"one:1", "two:2"}
    assert not heard.are_all_at("one:1")


def test_it_is_asked_beside_the_questions_and_no_more_often_than_it_must() -> None:
    scene = Scene()
    for _ in range(10):
        scene.known.description()
    assert scene.group.asked == 1
    scene.group.given = {"one:1": {0, 1}}
    scene.now_s += MAX_AGE_S + 0.1
    assert scene.known.description().owners[0, 1] == "two:2"  # nobody waits
    wait_until(lambda: scene.known.description().owners[0, 1] == "one:1", what="the look beside")
    assert scene.known.description().are_all_at("one:1")
    assert scene.group.asked == 2


def test_what_is_wrong_is_asked_for_anew_at_once() -> None:
    scene = Scene()
    scene.known.description()
    scene.group.given = {"one:1": {0, 1}}
    scene.now_s += PAUSE_S + 0.01
    assert scene.known.description(at_most_s=0.0).owners[0, 1] == "one:1"
    for _ in range(10):  # however many say that it is wrong
        scene.known.description(at_most_s=0.0)
    assert scene.group.asked == 2


def test_while_the_group_is_rebalanced_what_was_known_holds() -> None:
    scene = Scene()
    scene.known.description()
    scene.group.state = "preparing rebalancing"
    scene.now_s += 1.0
    heard = scene.known.description(at_most_s=0.0)
    assert heard.state == "preparing rebalancing"
    assert heard.owners[0, 1] == "two:2"
    scene.group.given = {}
    scene.now_s += 1.0
    assert scene.known.description(at_most_s=0.0).owners == {}  # all have left


def test_brokers_that_are_silent_leave_what_was_known() -> None:
    scene = Scene()
    scene.group.failure = FatalClientError("no broker")
    with pytest.raises(NotReadableError, match=r"no broker. Use route=none to query this host"):
        scene.known.description()
    scene.group.failure = None
    scene.now_s += 1.0
    scene.known.description()
    scene.group.failure = FatalClientError("no broker")
    scene.now_s += 1.0
    assert scene.known.description(at_most_s=0.0).owners[0, 1] == "two:2"
