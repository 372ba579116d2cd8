"""Which counts may be made before their repartition topic."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.spark_bridge.program.combine import combinable
from headrace.topology import StreamsBuilder, TimeWindows, serdes


def _counts(builder: StreamsBuilder) -> Any:
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    table = words.group_by(lambda _, word: word, name="by-word").count(store="counts")
    return table.to_stream()


def _latest(key: Any, value: Any, aggregate: Any) -> Any:
    return value


@pytest.mark.parametrize("windowed", [False, True])
def test_a_count_whose_updates_meet_windows_of_several_streams_is_not_combined(
    windowed: bool,
) -> None:
    """Which windows an update falls into depends on when it is made."""
    builder = StreamsBuilder()
    folded: Any = _counts(builder).group_by_key(value=serdes.long).cogroup(_latest)
    if windowed:
        folded = folded.windowed_by(TimeWindows(size=timedelta(minutes=1)))
    folded.aggregate(int, store="latest", value=serdes.long)
    assert combinable(builder.build()) == (set() if windowed else {"by-word-repartition"})
