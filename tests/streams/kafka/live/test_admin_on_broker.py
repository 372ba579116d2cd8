"""What the admin says of a group, beside what the group's own client says."""

from __future__ import annotations

import confluent_kafka
from confluent_kafka.admin import AdminClient

from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.group_admin import GroupAdmin, RetryingAdmin
from headrace.streams.kafka.protocols import CommittedOffset, GroupState, TopicPartition
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
    assert admin.committed_offsets(group, places) == {places[1]: CommittedOffset(7)}
    consumer.close()
    assert admin.committed_offsets(group, places) == {places[1]: CommittedOffset(7)}


def _described(bootstrap: str, group: str) -> dict[str, list[TopicPartition]]:
    """What each member was given, by the newer of the client's two questions."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    found = client.describe_consumer_groups([group])
    return {
        one.group_instance_id or one.member_id: sorted(
            TopicPartition(p.topic, p.partition) for p in one.assignment.topic_partitions
        )
        for one in found[group].result(PATIENCE_S).members
    }


def test_a_group_is_listed_as_it_is_described(topics: Topics) -> None:
    """The question that may end the process is not put; the other one tells the same."""
    names, group = [topics.create(n, partitions=3) for n in ("a", "b")], topics.name("group")
    config = {"bootstrap.servers": topics.bootstrap}
    look, admin = RetryingAdmin(config, timeout_s=10), GroupAdmin(config, timeout_s=PATIENCE_S)
    assert look.group_state(group) == admin.group_state(group) == GroupState("dead", {})
    assert look.assigned(group) is None
    kinds: list[dict[str, str]] = [
        {"client.id": "dynamic"},
        {"client.id": "static", "group.instance.id": "pod-7-0"},
        {"client.id": "pod-8-0", "group.instance.id": "pod-8-0"},
    ]
    consumers = [confluent_kafka.Consumer({**config, "group.id": group, **one}) for one in kinds]
    for consumer in consumers:
        consumer.subscribe(names)

    def all_are_given() -> bool:
        for consumer in consumers:
            consumer.poll(0.1)
        return all(len(consumer.assignment()) == 2 for consumer in consumers)

    wait_until(all_are_given)
    found = look.group_state(group)
    assert found == admin.group_state(group)
    assert found.state == "stable"
    described = _described(topics.bootstrap, group)
    listed = {member.id: list(places) for member, places in found.members.items()}
    # Of a member that has its client's name one cannot tell whether it is static.
    last = next(name for name in listed if name.startswith("pod-8-0-"))
    assert {**listed, "pod-8-0": listed[last]}.items() >= described.items()
    assert listed["pod-7-0"] == described["pod-7-0"]
    everything = {TopicPartition(name, number) for name in names for number in range(3)}
    assert {place for places in listed.values() for place in places} == everything
    assert look.assigned(group) == everything
    for consumer in consumers:
        consumer.close()
    assert look.partition_counts([*names, "none"]) == dict.fromkeys(names, 3)


def test_a_group_that_its_members_have_left_is_empty(topics: Topics) -> None:
    name, group = topics.create("a"), topics.name("group")
    config = {"bootstrap.servers": topics.bootstrap}
    consumer = confluent_kafka.Consumer({**config, "group.id": group})
    consumer.subscribe([name])
    wait_until(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 1)
    consumer.close()
    look, admin = RetryingAdmin(config, timeout_s=10), GroupAdmin(config, timeout_s=PATIENCE_S)
    assert look.group_state(group) == admin.group_state(group) == GroupState("empty", {})
    assert look.assigned(group) is None
