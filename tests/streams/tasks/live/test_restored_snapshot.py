"""A real broker whose data are restored from a copy, and that grows past its old end."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from headrace.streams.devbroker import DevBroker
from headrace.streams.devbroker.cluster import choose_base
from tests.support import kafka
from tests.support.counting import Counting
from tests.support.topics import Topics

pytestmark = pytest.mark.broker


def test_local_rows_of_the_lost_records_are_not_kept(tmp_path: Path) -> None:
    home, copy = tmp_path / "broker" / "node-1", tmp_path / "copy"
    with DevBroker(tmp_path / "broker", port=choose_base(1)) as broker:
        counting = Counting(Topics(broker.bootstrap), tmp_path)
        counting.write(30)
        counting.finish()
        known = Counter(counting.expected)
        broker.stop()
        shutil.copytree(home / "data", copy)
        broker.start()
        counting.write(60)
        counting.finish()
        lost_end = kafka.ends(broker.bootstrap, counting.changelog)[0]
        broker.stop()
        shutil.rmtree(home / "data")
        shutil.move(copy, home / "data")
        broker.start()
        counting.expected = known
        # Another host makes the changelog longer than the first one has seen it.
        while kafka.ends(broker.bootstrap, counting.changelog)[0] <= lost_end:
            counting.write(100, keys=3)
            counting.finish(state_dir=tmp_path / "other-host")
        counting.write(10)
        counting.finish()
        counting.check_exact()
        state = counting.local_state()
        rows = dict(state.store("counts").scan())
        state.close()
        assert {key: int.from_bytes(row[-8:]) for key, row in rows.items()} == counting.expected
