"""The simulated clients against Kafka's own on a broker: the same calls, the same to be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.simulation.worlds import Heard, RealWorld, SimulatedWorld, World, error_of, until
from tests.support.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.long]

Seen = list[Any]


def at(world: World, offset: int, partition: int = 0) -> list[TopicPartition]:
    return [TopicPartition(world.topic, partition, offset)]


def committed(world: World, consumer: Any) -> Any:
    """The committed offset of partition 0, or what the client says instead."""
    found: list[int] = []
    told = error_of(
        lambda: found.extend(
            p.offset for p in consumer.committed([TopicPartition(world.topic, 0)], 2.0)
        )
    )
    return told or found[0]


def write(producer: Any, world: World, *values: bytes) -> None:
    for value in values:
        producer.produce(world.topic, value, b"k", 0)
    producer.flush(60)


def joined(world: World, identity: str) -> Heard:
    heard = Heard(world, world.consumer(group_instance_id=identity))
    until(world, lambda: heard.poll() or len(heard.has) == 2)  # type: ignore[func-returns-value]
    return heard


def offsets_of_an_open_transaction(world: World) -> Seen:
    """They are undecided until it ends: a time-out that is not marked retriable."""
    producer, consumer = world.producer(), world.consumer()
    seen = [committed(world, consumer)]
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(at(world, 7), consumer.consumer_group_metadata(), 60)
    seen.append(committed(world, consumer))
    producer.abort_transaction(60)
    seen.append(committed(world, consumer))
    producer.begin_transaction()
    producer.send_offsets_to_transaction(at(world, 8), consumer.consumer_group_metadata(), 60)
    producer.commit_transaction(60)
    until(world, lambda: committed(world, consumer) == 8)
    return [*seen, committed(world, consumer)]


def positions_behind_markers(world: World) -> Seen:
    """A position passes trailing markers and aborted records; it begins without any."""
    producer, consumer = world.producer(), world.consumer()
    producer.init_transactions(60)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        write(producer, world, b"1", b"2")
        end(60)
    place = [TopicPartition(world.topic, 0)]
    consumer.incremental_assign(at(world, 0))
    seen: Seen = [consumer.position(place)[0].offset]
    values = []
    for _ in range(60):
        message = consumer.poll(0.05)
        if message is not None:
            values.append(message.value())
    return [*seen, values, consumer.position(place)[0].offset]


def the_end_that_is_known(world: World) -> Seen:
    """The cached watermark is the high one, open transactions or not."""
    producer, consumer = world.producer(), world.consumer()
    place = TopicPartition(world.topic, 0)
    producer.init_transactions(60)
    producer.begin_transaction()
    write(producer, world, b"1", b"2")
    consumer.incremental_assign(at(world, 0))
    until(
        world,
        lambda: (
            consumer.poll(0.05) is None
            and consumer.get_watermark_offsets(place, cached=True)[1] == 2
        ),
    )
    seen = [consumer.get_watermark_offsets(place, cached=True)[1]]
    producer.commit_transaction(60)
    return seen


def fenced_by_a_successor(world: World) -> Seen:
    """The old producer's calls say so, and that it is done."""
    first, second = world.producer(), world.producer()
    first.init_transactions(60)
    first.begin_transaction()
    write(first, world, b"1")
    second.init_transactions(60)
    seen = [error_of(first.commit_transaction, 60), error_of(first.abort_transaction, 60)]
    second.begin_transaction()
    write(second, world, b"2")
    second.commit_transaction(60)
    return [*seen, error_of(first.begin_transaction)]


def expired(world: World) -> Seen:
    """A transaction that is too old is aborted by the broker, and its producer fenced."""
    producer, consumer = world.producer(transaction_timeout_ms=1_000), world.consumer()
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(at(world, 7), consumer.consumer_group_metadata(), 60)
    until(world, lambda: not isinstance(committed(world, consumer), tuple), tries=40)
    return [committed(world, consumer), error_of(producer.commit_transaction, 60)]


def offsets_after_a_successor(world: World) -> Seen:
    """Right after init_transactions of a successor, offsets are decided."""
    first, second, consumer = world.producer(), world.producer(), world.consumer()
    first.init_transactions(60)
    first.begin_transaction()
    first.send_offsets_to_transaction(at(world, 7), consumer.consumer_group_metadata(), 60)
    second.init_transactions(60)
    return [committed(world, consumer)]


def a_member_that_was_put_out(world: World) -> Seen:
    """Its old membership is refused, its new one is accepted: nobody checks who owns what.

    A rebalance was under way, so it never hears that it has lost anything: what it lost is revoked
    after it has joined again.
    """
    zombie = joined(world, "a")
    old = zombie.consumer.consumer_group_metadata()
    other = Heard(world, world.consumer(group_instance_id="b"))
    producer = world.producer()
    producer.init_transactions(60)
    producer.begin_transaction()
    write(producer, world, b"1")
    world.be_late(zombie.consumer, other)
    until(world, lambda: other.poll() or len(other.has) == 2)  # type: ignore[func-returns-value]
    told = error_of(producer.send_offsets_to_transaction, at(world, 7), old, 60)
    producer.abort_transaction(60)
    zombie.said.clear()
    until(
        world,
        lambda: zombie.poll() or other.poll() or ("assign", 1) in zombie.said,  # type: ignore[func-returns-value]
    )
    producer.begin_transaction()
    fresh = zombie.consumer.consumer_group_metadata()
    not_mine = next(iter(other.has))
    accepted = error_of(producer.send_offsets_to_transaction, at(world, 9, not_mine), fresh, 60)
    producer.commit_transaction(60)
    return [told, zombie.said, accepted]


def a_member_that_was_alone(world: World) -> Seen:
    """Without a rebalance under way it hears that everything is lost."""
    zombie = joined(world, "a")
    world.be_late(zombie.consumer)
    until(world, lambda: zombie.poll() or len(zombie.said) == 3)  # type: ignore[func-returns-value]
    return [zombie.said]


def an_old_generation(world: World) -> Seen:
    """A live member with the metadata of before a rebalance."""
    first = joined(world, "a")
    old = first.consumer.consumer_group_metadata()
    second = Heard(world, world.consumer(group_instance_id="b"))
    until(
        world,
        lambda: first.poll() or second.poll() or len(second.has) == 1,  # type: ignore[func-returns-value]
    )
    producer = world.producer()
    producer.init_transactions(60)
    producer.begin_transaction()
    return [
        error_of(producer.send_offsets_to_transaction, at(world, 7), old, 60),
        error_of(producer.abort_transaction, 60),
    ]


def callbacks_of_a_rebalance(world: World) -> Seen:
    """What moves is revoked first; each generation ends in an assignment, also an empty one."""
    first = joined(world, "a")
    second = Heard(world, world.consumer(group_instance_id="b"))
    until(
        world,
        lambda: first.poll() or second.poll() or len(second.has) == 1,  # type: ignore[func-returns-value]
    )
    for _ in range(10):
        first.poll()
        second.poll()
    return [first.said, second.said]


def a_static_member_comes_back(world: World) -> Seen:
    """It gets what it had, nobody else hears of it, and its offsets stay good."""
    first = joined(world, "a")
    first.consumer.close()
    again = Heard(world, world.consumer(group_instance_id="a"))
    until(world, lambda: again.poll() or len(again.has) == 2)  # type: ignore[func-returns-value]
    return [first.said, again.said]


def a_partition_on_its_way_is_nobodys(world: World) -> Seen:
    """Its old owner came back before it had let go: nobody begins the generation that gives it."""
    first = joined(world, "a")
    second = Heard(world, world.consumer(group_instance_id="b"))
    until(world, lambda: second.poll() or second.said != [])  # type: ignore[func-returns-value]
    again = Heard(world, world.consumer(group_instance_id="a"))
    until(world, lambda: again.poll() or len(again.has) == 1)  # type: ignore[func-returns-value]
    for _ in range(100):
        again.poll()
        second.poll()
    del first
    return [again.said, second.said]


def asking_for_a_rebalance(world: World) -> Seen:
    """A pattern that matches nothing makes a member join again, and the orphan finds a home."""
    first = joined(world, "a")
    second = Heard(world, world.consumer(group_instance_id="b"))
    until(world, lambda: second.poll() or second.said != [])  # type: ignore[func-returns-value]
    again = Heard(world, world.consumer(group_instance_id="a"))
    until(world, lambda: again.poll() or len(again.has) == 1)  # type: ignore[func-returns-value]
    # A client that knows its coordinator only forgets the request; workers repeat theirs.
    world.connect(again.consumer)
    again.subscribe(world.topic, "^matches-no-topic$")
    until(world, lambda: again.poll() or second.poll() or len(second.has) == 1)  # type: ignore[func-returns-value]
    # Who asked is told, too, that it has what it had: before the other one or after.
    until(world, lambda: again.poll() or len(again.said) == 2)  # type: ignore[func-returns-value]
    del first
    return [again.said, second.said]


def offsets_for_an_empty_group(world: World) -> Seen:
    """Who is no member any more may not commit, not even where nobody else is one.

    The group has an offset: a broker forgets an empty one without any, at any moment, and then
    says ILLEGAL_GENERATION of what it does not know.
    """
    zombie = joined(world, "a")
    old = zombie.consumer.consumer_group_metadata()
    producer = world.producer()
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(at(world, 5, 1), old, 60)
    producer.commit_transaction(60)
    world.be_late(zombie.consumer)
    fresh = zombie.consumer.consumer_group_metadata()
    producer.begin_transaction()
    told = error_of(producer.send_offsets_to_transaction, at(world, 7), old, 60)
    producer.abort_transaction(60)
    producer.begin_transaction()
    return [told, error_of(producer.send_offsets_to_transaction, at(world, 9), fresh, 60)]


SCRIPTS: list[Callable[[World], Seen]] = [
    offsets_of_an_open_transaction,
    positions_behind_markers,
    the_end_that_is_known,
    fenced_by_a_successor,
    expired,
    offsets_after_a_successor,
    a_member_that_was_put_out,
    a_member_that_was_alone,
    an_old_generation,
    callbacks_of_a_rebalance,
    a_static_member_comes_back,
    a_partition_on_its_way_is_nobodys,
    asking_for_a_rebalance,
    offsets_for_an_empty_group,
]


@pytest.fixture
def real(topics: Topics) -> Iterator[RealWorld]:
    world = RealWorld(topics)
    yield world
    for consumer in world.made:
        consumer.close()


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_seen_is_what_a_broker_shows(
    script: Callable[[World], Seen], real: RealWorld
) -> None:
    assert script(SimulatedWorld()) == script(real)
