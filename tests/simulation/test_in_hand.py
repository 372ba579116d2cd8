"""A rebalance between the two reads of one poll passes over nothing.

A poll waits for a first record and then takes what else is there. The second read serves callbacks,
and what these commit must not be beyond the first record, which waits in no queue yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message

from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.simulation.world.consumer_client import SimulatedConsumer
from tests.simulation.worlds import Heard, SimulatedWorld, until


class Listener:
    """Asks in each callback for what a commit there would say."""

    def __init__(self) -> None:
        self.consumer: LiveConsumer | None = None
        self.owned: set[TopicPartition] = set()
        self.said: list[dict[TopicPartition, int]] = []

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assert self.consumer is not None
        self.consumer.add(dict.fromkeys(partitions, 0))
        self.owned |= set(partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        assert self.consumer is not None
        self.said.append(dict(self.consumer.positions(sorted(self.owned))))
        self.owned -= set(partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        raise AssertionError(partitions)


def test_a_callback_between_two_reads_does_not_pass_over_the_first_record() -> None:
    world = SimulatedWorld()
    others: list[Heard] = []

    class Interrupted(SimulatedConsumer):
        def poll(self, timeout: float = -1) -> Message | None:
            found = super().poll(timeout)
            if found is not None and not others:
                others.append(Heard(world, world.consumer(group_instance_id="other")))
                until(world, self._is_interrupted)
            return found

        def _is_interrupted(self) -> bool:
            others[0].poll()
            return bool(self._due)

        def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
            if not others:
                return []  # as where the record comes while the poll waits
            while self._due:
                if found := super().consume(num_messages, timeout):
                    return found
            return super().consume(num_messages, timeout)

    listener = Listener()
    template = world.consumer(group_instance_id="first")

    def make_client(config: dict[str, Any]) -> Any:
        return Interrupted(world.cluster, template.process, world._faults, config)

    consumer = listener.consumer = LiveConsumer(
        {"group.id": world.group, "group.instance.id": "first", "session.timeout.ms": 6_000},
        timeout_s=5,
        make_client=make_client,
    )
    consumer.subscribe([world.topic], listener)
    until(world, lambda: consumer.poll(1, 0.01) is not None and len(listener.owned) == 2)
    world.cluster.append(TopicPartition(world.topic, 0), b"k", b"v", 1, None, None)
    batches: dict[TopicPartition, Any] = {}
    until(world, lambda: bool(batches.update(consumer.poll(10, 0.05)) or batches))
    assert others, "nobody joined while the record was in hand"
    assert listener.said, "no callback came between the two reads"
    assert all(not any(positions.values()) for positions in listener.said)
    assert [m.value() for of_one in batches.values() for m in of_one] == [b"v"]
