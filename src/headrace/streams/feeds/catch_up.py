"""Telling one follower what came before he could join the tail: rows, and changes since then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.state.events.log import get_logger
from headrace.streams.errors import StreamsError
from headrace.streams.feeds.change import Change
from headrace.streams.feeds.errors import said_of
from headrace.streams.feeds.rows_first import RowsFirst
from headrace.streams.feeds.subscription import Subscription
from headrace.streams.feeds.tail import POLL_RECORDS, POLL_S, Tail
from headrace.streams.feeds.turns import Turns, shares
from headrace.streams.seams.clients import Consumer, ReceivedMessage, TopicPartition
from headrace.streams.worker_errors import OffsetLostError

_GAP_MIN = 5
"""The marker of a transaction takes one offset, and where workers were killed some lie side by
side: of transactions that were to write here and had not yet. Fewer that are missing say nothing.
"""


@dataclass(frozen=True, slots=True)
class Readers:
    """Make consumers without a group.

    Args:
        committed: of committed records.
        all: of those of aborted transactions, too.
    """

    committed: Callable[[], Consumer]
    all: Callable[[], Consumer]


class CatchUp:
    """See the module; it runs in a thread of its own until the follower has joined.

    Args:
        follower: knows where to begin, unless there are rows first.
        turns: those of all who catch up.
        rows: what to tell before; None for nothing.
        tells_gaps: whether to say where compaction has taken changes away: not to him who asked
            for what there is.
    """

    def __init__(
        self,
        tail: Tail,
        follower: Subscription,
        readers: Readers,
        turns: Turns,
        *,
        rows: RowsFirst | None = None,
        tells_gaps: bool,
        done: Callable[[], None],
    ) -> None:
        self._tail = tail
        self._follower = follower
        self._readers = readers
        self._turns = turns
        self._rows = rows
        self._tells_gaps = tells_gaps
        self._done = done
        self._told_gaps: set[int] = set()
        self._looking: Consumer | None = None

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="headrace-changes-since", daemon=True).start()

    def _run(self) -> None:
        try:
            if self._rows is None or self._rows.tell(self._follower):
                self._catch_up()
        except OffsetLostError as error:
            self._follower.close(f"{error}; begin anew, with snapshot=true")
        except StreamsError as error:
            self._follower.close(str(error))
        except Exception as error:  # whatever it is: he who follows is to hear of it
            reason, origin = said_of(error), self._tail.origin
            get_logger().warning(
                "changes_failed", store=origin.store.name, topic=origin.topic, reason=reason
            )
            self._follower.close(f"the changes cannot be read: {reason}")
        finally:
            if self._looking is not None:
                self._looking.close(leave=False)
            self._done()

    def _catch_up(self) -> None:
        tail, follower = self._tail, self._follower
        left = {p for p in tail.partitions if not tail.join(follower, p)}
        if not left:
            return
        consumer = self._readers.committed()
        try:
            consumer.add({self._place(p): follower.next_of(p) for p in left})
            while left and not follower.is_over:
                for place, records in consumer.poll(POLL_RECORDS, POLL_S).items():
                    self._hand(place.partition, records)
                positions = consumer.positions([self._place(p) for p in left])
                for partition in sorted(left):
                    reached = positions.get(self._place(partition), -1)
                    if reached > follower.next_of(partition):
                        self._tell_gap(partition, follower.next_of(partition), reached)
                        follower.reach(partition, reached)
                    if tail.join(follower, partition):
                        left.discard(partition)
                        consumer.remove([self._place(partition)])
        finally:
            consumer.close(leave=False)

    def _hand(self, partition: int, records: Sequence[ReceivedMessage]) -> None:
        for change in self._made(records):
            offset = change.offset
            if offset > self._follower.next_of(partition):
                self._tell_gap(partition, self._follower.next_of(partition), offset)
            if not self._follower.offer(change, can_wait=True):
                return

    def _made(self, records: Sequence[ReceivedMessage]) -> Iterator[Change]:
        """The changes that records are, with the JSON of those that are wanted."""
        for some in shares(records):
            with self._turns.one():
                made = [Change(self._tail.origin, record) for record in some]
                for change in made:
                    if self._follower.wants(change):
                        _ = change.data  # it is kept
            yield from made

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self._tail.origin.topic, partition)

    # -- what compaction took away ---------------------------------------------------------------

    def _tell_gap(self, partition: int, begin: int, end: int) -> None:
        """Say that there were changes between two offsets that are not there any more.

        Records of aborted transactions are no changes, and still there; one who reads them, too,
        sees which offsets hold nothing at all.
        """
        if not self._tells_gaps or partition in self._told_gaps or end - begin < _GAP_MIN:
            return
        if not _is_missing(self._offsets_in(partition, begin, end), begin, end):
            return
        self._told_gaps.add(partition)
        said: Mapping[str, object] = {
            "partition": partition,
            "from": begin,
            "to": end,
            "reason": "compaction has taken away changes of keys that changed again later; what "
            "follows may lack more of them",
        }
        self._follower.tell("compacted", msgspec.json.encode(said))

    def _offsets_in(self, partition: int, begin: int, end: int) -> list[int]:
        place, found = self._place(partition), list[int]()
        if self._looking is None:
            self._looking = self._readers.all()
        self._looking.add({place: begin})
        # Brokers may be away for any time, and what was not read is not missing.
        while self._looking.positions([place]).get(place, -1) < end:
            if self._follower.is_over:
                found = list(range(begin, end))
                break
            records = self._looking.poll(end - begin, POLL_S).get(place, ())
            found += [record.offset() for record in records if record.offset() < end]
        self._looking.remove([place])
        return found


def _is_missing(offsets: Iterable[int], begin: int, end: int) -> bool:
    """Whether so many offsets side by side hold nothing that they are no markers.

    >>> _is_missing([5, 7], 5, 9), _is_missing([5], 5, 10), _is_missing([5], 5, 11)
    (False, False, True)
    """
    last = begin - 1
    for offset in [*sorted(offsets), end]:
        if offset - last - 1 >= _GAP_MIN:
            return True
        last = offset
    return False
