"""What the admin says of a group, beside what the group's own client says."""

from __future__ import annotations

import confluent_kafka

from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.group_admin import GroupAdmin, GroupLook
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.seams.group_facts import GroupState
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics


def test_what_a_group_has_committed(topics: Topics) -> None:
    topic, group = topics.create("in", partitions=2), topics.name("group")
    admin = LiveAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=PATIENCE_S)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": topics.bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 1, 7)], asynchronous=False)
    assert admin.progress(group, places) == {TopicPartition(topic, 1): 7}
    consumer.close()
    assert admin.progress(group, places) == {TopicPartition(topic, 1): 7}


def test_a_group_is_listed_as_it_is_described(topics: Topics) -> None:
    """Who looks at it all the time asks in another way than commands do, and is told the same."""
    names, group = [topics.create(n, partitions=2) for n in ("a", "b")], topics.name("group")
    config = {"bootstrap.servers": topics.bootstrap}
    looks, tells = GroupLook(config, timeout_s=10), GroupAdmin(config, timeout_s=PATIENCE_S)
    assert looks.group_state(group) == GroupState("dead", {})
    consumers = [
        confluent_kafka.Consumer({**config, "group.id": group, "client.id": f"c{n}"})
        for n in range(2)
    ]
    for consumer in consumers:
        consumer.subscribe(names)

    def all_are_given() -> bool:
        for consumer in consumers:
            consumer.poll(0.1)
        return all(len(consumer.assignment()) == 2 for consumer in consumers)

    wait_until(all_are_given)
    described = tells.group_state(group)
    assert looks.group_state(group) == described
    assert (described.state, len(described.members)) == ("stable", 2)
    assert sorted(place for given in described.members.values() for place in given) == [
        TopicPartition(name, number) for name in sorted(names) for number in range(2)
    ]
    for consumer in consumers:
        consumer.close()
    assert looks.group_state(group) == tells.group_state(group) == GroupState("empty", {})
    assert looks.partition_counts([*names, "none"]) == dict.fromkeys(names, 2)
