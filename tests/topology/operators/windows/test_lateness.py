"""Streams of late records: in which bytes their keys are written, and where they lie."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.state.codec import partition_for_key
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import SessionWindows, SlidingWindows, StreamsBuilder, TimeWindows, serdes
from headrace.topology.serdes import Serde
from tests.support.windows import ms, send

WINDOWS = [
    TimeWindows(size=ms(10)),
    SlidingWindows(time_difference=ms(10)),
    SessionWindows(inactivity_gap=ms(10)),
]
KEYS = [f"k{number}" for number in range(20)]
PARTITIONS = 3


def driver_of(windows: Any, source: Serde[str], group: Serde[str], *, rekeyed: bool) -> Any:
    """A count whose late records, the counts of these and a join of both are written to topics."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=source, value=serdes.string)
    if rekeyed:
        stream = stream.select_key(lambda key, _: key)
    late: list[Any] = []
    grouped = stream.group_by_key(key=group, name="grouped")
    table = grouped.windowed_by(windows, late=late.append).count()
    table.to_stream().select_key(lambda row, _: row.key).to("kept", key=group)
    late[0].to("late")
    counts = late[0].group_by_key().count(value=serdes.long)
    counts.to_stream().to("late-counts")
    late[0].join(counts, "{}{}".format).to("late-joined", value=serdes.string)
    return TopologyTestDriver(builder.build(), partitions=PARTITIONS, commit="each_record")


@pytest.mark.parametrize("rekeyed", [False, True], ids=["as read", "with new keys"])
@pytest.mark.parametrize("windows", WINDOWS, ids=["time", "sliding", "sessions"])
@pytest.mark.parametrize(
    ("source", "group"),
    [(serdes.string, serdes.json), (serdes.json, serdes.string)],
    ids=["json over string", "string over json"],
)
def test_late_records_lie_by_the_bytes_of_their_groups_serde(
    source: Serde[str], group: Serde[str], windows: Any, rekeyed: bool
) -> None:
    """So they lie where the group's results do; what is behind them meets by key."""
    with driver_of(windows, source, group, rekeyed=rekeyed) as driver:
        send(driver, [(key, "x", 1000) for key in KEYS])
        send(driver, [(key, "y", time) for time in (1, 2) for key in KEYS])
        wanted = {group.serialize(key) for key in KEYS}
        for topic in ("late", "kept", "late-counts", "late-joined"):
            found = driver.output(topic, key=serdes.bytes, value=serdes.bytes).read_all()
            assert {record.key for record in found} == wanted, topic
            for record in found:
                assert record.partition == partition_for_key(record.key, PARTITIONS), topic
        assert driver.output("late-counts").as_dict() == dict.fromkeys(KEYS, 2)


def test_the_two_serdes_choose_different_partitions() -> None:
    """Otherwise the test above could not tell one from the other."""
    places = [
        [partition_for_key(serde.serialize(key), PARTITIONS) for key in KEYS]
        for serde in (serdes.string, serdes.json)
    ]
    assert places[0] != places[1]
