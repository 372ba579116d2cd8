"""What the admin says of a group, beside what the group's own client says."""

from __future__ import annotations

import confluent_kafka

from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.seams.clients import TopicPartition
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
