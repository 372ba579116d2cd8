"""The numbers of operators that are committed beside input offsets."""

from __future__ import annotations

from datetime import timedelta

import pytest

from streams.testing import TopologyTestDriver
from topology import StreamsBuilder, TimeWindows, TopologyError, serdes


def test_more_numbers_than_fit_beside_an_offset_are_refused_before_the_first_record() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serdes.string).group_by_key()
    for n in range(60):
        windows = TimeWindows(size=timedelta(seconds=1))
        grouped.windowed_by(windows).count(store=f"store-{n}", name=f"{'long-name' * 5}-{n}")
    with pytest.raises(TopologyError, match=r"sub-topology 0 has 60 times .* shorter names"):
        TopologyTestDriver(builder.build()).run()
