"""The numbers of operators that are committed beside input offsets."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace.state.memory import MemoryTaskState
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.plan import plan_application
from headrace.streams.plan.progress import MAX_BYTES, OffsetMetadata
from headrace.streams.tasks.task import Task
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, TimeWindows, TopologyError, serdes
from tests.support.topologies import key_count


def test_more_numbers_than_fit_beside_an_offset_are_refused_before_the_first_record() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serdes.string).group_by_key()
    for n in range(60):
        windows = TimeWindows(size=timedelta(seconds=1))
        grouped.windowed_by(windows).count(store=f"store-{n}", name=f"{'long-name' * 5}-{n}")
    with pytest.raises(TopologyError, match=r"sub-topology 0 has 60 times .* shorter names"):
        TopologyTestDriver(builder.build()).run()


@pytest.mark.parametrize("numbers", [(5, 3), (3, 5)])
def test_of_a_number_that_two_inputs_bear_the_largest_counts(numbers: tuple[int, int]) -> None:
    """As in Kafka Streams: one of them may have been set back to what was committed before."""
    builder = StreamsBuilder()
    builder.stream(["a", "b"], key=serdes.string, value=serdes.string).to("out")
    config = StreamsConfig.parse({"application.id": "app", "bootstrap.servers": "nowhere:1"})
    (plan,) = plan_application(builder.build(), config)
    start = {
        TopicPartition(topic, 0): CommittedOffset(1, OffsetMetadata(1, {"theirs": number}).encode())
        for topic, number in zip("ab", numbers, strict=True)
    }
    task = Task(
        spec=plan.task(0),
        state=MemoryTaskState([]),
        start=start,
        send=lambda *_: None,
        dropped=lambda *_: None,
    )
    texts = [committed.metadata for committed in task.offsets({}, 7).values()]
    assert [OffsetMetadata.decode(text).values["theirs"] for text in texts] == [5, 5]


def test_a_text_leaves_room_for_the_zero_that_the_client_puts_behind_it() -> None:
    """The brokers' bound on an offset's metadata is 4096 bytes."""
    fits = OffsetMetadata(1, {"n" * 3044: 1}).encode()
    assert MAX_BYTES - 4 < len(fits) <= MAX_BYTES
    with pytest.raises(ValueError, match="takes 4096 bytes"):
        OffsetMetadata(1, {"n" * 3047: 1}).encode()


def test_the_largest_time_of_a_partition_stands_beside_its_offset() -> None:
    driver = TopologyTestDriver(key_count())
    place = TopicPartition("in", 0)
    for time, largest in ((5, 5), (9, 9), (7, 9)):
        driver.input("in").send("a", "x", timestamp=time)
        committed = driver.cluster.offsets["test"][place]
        assert OffsetMetadata.decode(committed.metadata).partition_time == largest
        driver.restart()
