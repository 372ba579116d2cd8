"""The one reader of a store's changes, shared by all who follow them.

    catches up: reads alone ─► is as far as the tail ─► joins ─► is handed what the tail reads

Whoever joins a partition has been told everything before the place where the tail is there, and the
tail hands on nothing meanwhile, so that nothing is told twice or left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from headrace.state.events.log import get_logger
from headrace.streams.errors import StreamsError
from headrace.streams.feeds.change import Change
from headrace.streams.feeds.errors import said_of
from headrace.streams.feeds.origin import Origin
from headrace.streams.feeds.subscription import Subscription
from headrace.streams.seams.clients import Consumer, TopicPartition

POLL_RECORDS = 1_000
POLL_S = 0.2
ENDS_S = 5.0


class Tail:
    """See the module.

    Args:
        make_consumer: makes one without a group that reads committed records.
        begins: where to begin in each partition.
    """

    def __init__(
        self,
        origin: Origin,
        make_consumer: Callable[[], Consumer],
        begins: Mapping[int, int],
    ) -> None:
        self.origin = origin
        self._make_consumer = make_consumer
        self._lock = threading.Lock()
        self._reached = dict(begins)
        self._members: dict[int, list[Subscription]] = {partition: [] for partition in begins}
        self._ended: str | None = None
        self._log = get_logger().bind(store=origin.store.name, topic=origin.topic)
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-changes-{origin.store.name}", daemon=True
        )
        self._thread.start()

    @property
    def partitions(self) -> list[int]:
        """Those of the topic."""
        return list(self._members)

    @property
    def has_ended(self) -> bool:
        """Whether it hands out nothing any more."""
        return self._ended is not None

    def join_now(self, follower: Subscription) -> None:
        """Hand a follower what comes in all partitions.

        Raises:
            StreamsError: it has ended.
        """
        with self._lock:
            if self._ended is not None:
                raise StreamsError(self._ended)
            follower.begin(self._reached)
            for members in self._members.values():
                members.append(follower)

    def join(self, follower: Subscription, partition: int) -> bool:
        """Hand a follower what comes in a partition, if he has been told all before it.

        Raises:
            StreamsError: it has ended.
        """
        with self._lock:
            if self._ended is not None:
                raise StreamsError(self._ended)
            if follower.next_of(partition) < self._reached[partition]:
                return False
            self._members[partition].append(follower)
            return True

    def leave(self, follower: Subscription) -> None:
        """Hand a follower nothing more."""
        with self._lock:
            for members in self._members.values():
                if follower in members:
                    members.remove(follower)

    def end(self, reason: str = "nobody follows any more") -> None:
        """Read no more; those who still follow are told why."""
        with self._lock:
            if self._ended is None:
                self._ended = reason
            followers = [one for members in self._members.values() for one in members]
        for follower in followers:
            follower.close(reason)

    def await_end(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join(ENDS_S)

    def _run(self) -> None:
        self._log.debug("changes_followed", partitions=len(self._members))
        try:
            consumer = self._make_consumer()
            try:
                topic = self.origin.topic
                consumer.add({TopicPartition(topic, p): at for p, at in self._reached.items()})
                while self._ended is None:
                    self._turn(consumer)
            finally:
                consumer.close(leave=False)
        except Exception as error:  # whatever it is: those who follow are to hear of it
            reason = said_of(error)
            self._log.warning("changes_failed", reason=reason)
            self.end(f"the changes cannot be read: {reason}")
        self._log.debug("changes_left", reason=self._ended)

    def _turn(self, consumer: Consumer) -> None:
        batches = consumer.poll(POLL_RECORDS, POLL_S)
        places = [TopicPartition(self.origin.topic, partition) for partition in self._members]
        # What markers and aborted records take is passed only once all before it was handed out.
        positions = consumer.positions(places)
        with self._lock:
            for place, records in batches.items():
                members = self._members[place.partition]
                for record in records if members else ():
                    change = Change(self.origin, record)
                    members[:] = [one for one in members if one.offer(change)]
            for place, offset in positions.items():
                if offset > self._reached[place.partition]:
                    self._reached[place.partition] = offset
                    for member in self._members[place.partition]:
                        member.reach(place.partition, offset)
