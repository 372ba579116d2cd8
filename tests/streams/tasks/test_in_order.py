"""Whose turn it is: against taking one record after the other."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.tasks.input_queue import InputQueue, in_order
from tests.support.examples import examples


@dataclass(frozen=True)
class Record:
    """A record that only has a place, an offset and a time."""

    place: TopicPartition
    number: int
    time: int

    def key(self) -> None:
        return None

    def value(self) -> None:
        return None

    def headers(self) -> None:
        return None

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.partition

    def offset(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time


PLACES = [TopicPartition(topic, partition) for topic, partition in (("b", 0), ("a", 1), ("a", 0))]
BATCHES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=4)


def one_by_one(
    records: dict[TopicPartition, list[Record]], count: int
) -> list[tuple[TopicPartition, int]]:
    """The lowest head goes first, then the lowest name, until an input has no more."""
    left = {place: list(of_place) for place, of_place in records.items()}
    taken: list[tuple[TopicPartition, int]] = []
    while len(taken) < count and all(left.values()):
        place = min(left, key=lambda place: (left[place][0].time, place))
        taken.append((place, left[place].pop(0).number))
    return taken


@given(inputs=st.lists(BATCHES, min_size=2, max_size=3), first=st.integers(1, 12))
@example(inputs=[[[1, 1]], [[1, 1, 2]]], first=12)
@settings(max_examples=examples(200), deadline=None)
def test_records_go_as_if_taken_one_by_one(inputs: list[list[list[int]]], first: int) -> None:
    queues: dict[TopicPartition, InputQueue] = {}
    records: dict[TopicPartition, list[Record]] = {}
    for place, batches in zip(PLACES, inputs, strict=False):
        queues[place], records[place] = InputQueue(), []
        for batch in batches:
            start = len(records[place])
            made = [Record(place, start + i, time) for i, time in enumerate(batch)]
            queues[place].extend(made)
            records[place] += made
    total = sum(map(len, records.values()))
    taken: list[tuple[TopicPartition, int]] = []
    for count in (first, total):  # what was left out goes on from there
        if all(queues.values()):
            for place, run in in_order(queues, list(queues), count):
                assert run
                taken += [(place, record.offset()) for record in run]
        if count == first:
            assert len(taken) <= first
    assert taken == one_by_one(records, total)
    for place, queue in queues.items():
        assert len(queue) == len(records[place]) - sum(1 for p, _ in taken if p == place)
