"""Which applications may own an internal topic, and what the description of one of them says."""

from __future__ import annotations

import pytest

from headrace.streams.admin.start_check import require_own_topics
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import MisconfiguredTopicError
from headrace.streams.kafka.protocols import CommittedOffset, Offsets, TopicPartition
from headrace.streams.plan.deployed import topology_group
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.plan import plan_application
from headrace.topology import StreamsBuilder, serdes

TOPIC = "orders-eu-counts-changelog"


class Described:
    """The descriptions of applications on a cluster, and which were read."""

    def __init__(self, **stores: str) -> None:
        self.texts = {app: [description(app, store)] for app, store in stores.items()}
        self.read: list[str] = []

    @property
    def groups(self) -> frozenset[str]:
        return frozenset({"elsewhere", *map(topology_group, self.texts)})

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        assert not decided
        self.read.append(group)
        texts = self.texts[group.removesuffix(".topology")]
        return {
            TopicPartition(f"t{number}", 0): CommittedOffset(number, text)
            for number, text in enumerate(texts)
        }

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        raise AssertionError(group)


def description(application_id: str, store: str) -> str:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.group_by_key().count(store=store)
    config = StreamsConfig.parse({"application.id": application_id, "bootstrap.servers": "b:1"})
    return Deployment.of(plan_application(builder.build(), config), config).encode()


def check(described: Described, topic: str = TOPIC, own: str = "orders-eu") -> None:
    require_own_topics(own, [topic, f"{own}-other-repartition"], described.groups, described)


def test_a_topic_that_another_application_has_is_refused() -> None:
    message = r"changelog of store eu-counts of application orders, and both would write to it"
    with pytest.raises(MisconfiguredTopicError, match=message):
        check(Described(orders="eu-counts"))


def test_an_application_with_another_store_is_none_of_its_owners() -> None:
    described = Described(orders="counts")
    check(described)
    assert described.read == ["orders.topology"]


def test_the_own_description_and_those_that_cannot_own_it_are_not_read() -> None:
    described = Described(**{"orders-eu": "counts", "orders-us": "counts", "eu": "counts"})
    check(described)
    assert described.read == []


def test_an_application_that_was_reset_owns_nothing() -> None:
    described = Described(orders="eu-counts")
    described.texts["orders"].append("")
    check(described)
