"""An application whose change gives its stores another format on disk keeps their rows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import Materialized, StreamsBuilder, TimeWindows, Topology, TopologyTestDriver, serdes
from headrace.topology.operators.windows.emission import Emit
from tests.support.release_state import ClusterSnapshot

MS = timedelta(milliseconds=1)
SETTINGS = {"application.id": "formats"}
UPDATES: dict[str, Any] = {"emit": "on_window_update", "retention": 600_000 * MS}
CLOSED: dict[str, Any] = {"emit": "on_window_close", "retention": 600_000 * MS}
LONGER: dict[str, Any] = {"emit": "on_window_update", "retention": 1_200_000 * MS}


def counts(emit: Emit, retention: timedelta, *, logged: bool) -> Topology:
    builder = StreamsBuilder()
    store = Materialized("counts", retention=retention, logged=logged)
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    windows = TimeWindows(size=1_000 * MS, grace=100_000 * MS)
    words.group_by_key().windowed_by(windows, emit=emit).count(store=store).to_stream().to("out")
    return builder.build()


def driver_of(topology: Topology, path: Path) -> TopologyTestDriver:
    return TopologyTestDriver(topology, SETTINGS, state_dir=path)


@pytest.mark.parametrize("logged", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [(UPDATES, CLOSED), (CLOSED, UPDATES), (UPDATES, LONGER)],
    ids=["emits when closed", "emits updates", "longer retention"],
)
def test_rows_are_kept_by_the_next_version(
    before: dict[str, Any], after: dict[str, Any], logged: bool, tmp_path: Path
) -> None:
    with driver_of(counts(**before, logged=logged), tmp_path) as driver:
        for time in (0, 70_000, 130_000, 130_500):
            driver.input("words").send("tea", "", timestamp=time)
        rows = dict(driver.store("counts", committed=True))
        topics = ClusterSnapshot.of(driver.cluster)
    assert len(rows) == 3
    with driver_of(counts(**after, logged=logged), tmp_path) as driver:
        topics.load(driver.cluster)
        driver.run()
        assert driver.restored == 0
        assert dict(driver.store("counts", committed=True)) == rows
        # A record of each window, within the grace period, continues its count.
        for time in (70_001, 130_999):
            driver.input("words").send("tea", "", timestamp=time)
        counted = [value for _, value in sorted(driver.store("counts").items())]
        assert counted == [1, 2, 3]
