"""A counting application in this process: its topics, its input, and what its output must be."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.streams.kafka.protocols import Probe, no_probe
from headrace.topology import Materialized, StreamsBuilder, Topology, serdes
from tests.support import kafka, oracle
from tests.support.live import Live, live, settings_of
from tests.support.topics import Topics


class Counting:
    """Counts records by key, exactly-once and without caches unless the settings say otherwise.

    Args:
        topics: of the test.
        directory: of the test.
        partitions: of input and output.
        store: how the counts are kept.
        settings: further settings, with underscores for dots.
    """

    def __init__(
        self,
        topics: Topics,
        directory: Path,
        *,
        partitions: int = 1,
        store: Materialized | None = None,
        **settings: Any,
    ) -> None:
        self.bootstrap = topics.bootstrap
        self.input = topics.create("in", partitions=partitions)
        self.output = topics.create("out", partitions=partitions)
        self.settings = settings_of(topics, directory, **settings)
        self.group = self.settings["application.id"]
        self.state_dir = Path(self.settings["state.dir"])
        self.store = store or Materialized("counts")
        self.changelog = f"{self.group}-counts-changelog"
        self.expected: Counter[bytes] = Counter()

    def topology(self) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream(self.input, key=serdes.string, value=serdes.string)
        stream.group_by_key().count(store=self.store).to_stream().to(self.output)
        return builder.build()

    def write(self, count: int, *, keys: int = 5) -> None:
        """Write records, and expect their counts."""
        choose = random.Random(sum(self.expected.values()))
        records = [b"key-%d" % choose.randrange(keys) for _ in range(count)]
        kafka.write(self.bootstrap, self.input, [(key, b"x") for key in records])
        self.expected.update(records)

    def run(self, *, probe: Probe = no_probe, **more: Any) -> AbstractContextManager[Live]:
        """Run the application in a thread of its own."""
        changed = {name.replace("_", "."): value for name, value in more.items()}
        return live(self.topology(), self.settings | changed, probe=probe)

    def finish(self, *, probe: Probe = no_probe, **more: Any) -> Live:
        """Run the application until everything is counted, and stop it."""
        with self.run(probe=probe, **more) as app:
            self.wait(app)
        return app

    def wait(self, app: Live) -> None:
        """Wait until everything is counted."""
        app.wait(self.is_complete, what="all counts")

    def is_complete(self) -> bool:
        found = kafka.read(self.bootstrap, self.output)
        return oracle.last_counts(found) == self.expected

    def check_exact(self) -> None:
        """Each key's counts are 1, 2, 3 … up to its number of records."""
        oracle.check_exact(kafka.read(self.bootstrap, self.output), self.expected)

    def committed(self) -> dict[int, int]:
        return kafka.committed(self.bootstrap, self.group, self.input)

    def lose_state(self) -> None:
        """Lose the machine that the state was on."""
        shutil.rmtree(self.state_dir)

    def local_state(self, task: str = "0_0") -> RocksTaskState:
        """Open a task's local state; nothing else may have it open."""
        path = self.state_dir / self.group / "tasks" / task / "rocksdb"
        memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
        return RocksTaskState(path, [StoreSpec("counts")], memory=memory)

    def damage(self, rows: dict[bytes, bytes], *, task: str = "0_0", **position: Any) -> None:
        """Change local rows, and what the local state says of its position."""
        state = self.local_state(task)
        before = state.position("counts")
        assert before is not None
        state.write({"counts": list(rows.items())}, {"counts": replace(before, **position)})
        state.close()
