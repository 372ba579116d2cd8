"""An application that is handed a backfill: word count, with everything that can be recounted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.stages import Computation, compute
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.spark_bridge.support.local_rows import computed, plan_of
from tests.spark_bridge.support.sameness import Progress
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.topics import Topics

START_MS = 1_700_000_000_000
WORDS = 17


def word_count(source: str, sink: str) -> Topology:
    """Counts words in two sub-topologies, and writes each count."""
    builder = StreamsBuilder()
    (
        builder.stream(source, value=serdes.string)
        .flat_map_values(str.split)
        .group_by(lambda _, word: word, key=serdes.string, name="by-word")
        .count(store="counts")
        .to_stream()
        .to(sink, key=serdes.string, value=serdes.long)
    )
    return builder.build()


def line(number: int) -> str:
    """Four words, most of them common."""
    return " ".join(f"w{(number * k) % WORDS}" for k in (1, 3, 7)) + f" once{number}"


class Handed:
    """Topics, settings and topology of one test.

    Without caches each word makes one record in the sink, so those of a word must be 1, 2, 3 ...:
    one that is lost or doubled is seen, wherever it happened. With caches some are left out, but
    the last is the count and none comes twice.
    """

    def __init__(
        self, topics: Topics, directory: Path, *, partitions: int = 2, **more: Any
    ) -> None:
        self.topics = topics
        self.bootstrap = topics.bootstrap
        self.source = topics.create("lines", partitions=partitions)
        self.sink = topics.create("counts", partitions=3)
        self.settings = settings_of(topics, directory, **more)
        self.id: str = self.settings["application.id"]
        self.changelog = f"{self.id}-counts-changelog"
        self.topology = word_count(self.source, self.sink)
        self.words: Counter[str] = Counter()
        self._written = 0
        self._live: list[str] = []

    @property
    def application(self) -> CompiledApplication:
        return CompiledApplication.of(self.topology, self.settings)

    def write(self, count: int, *, live: bool = False) -> None:
        """Write lines behind those that are there; `live` ones are in no plan."""
        lines = [line(n) for n in range(self._written, self._written + count)]
        records = [(str(n).encode(), text.encode()) for n, text in enumerate(lines)]
        kafka.write(self.bootstrap, self.source, records, timestamp=START_MS + self._written)
        self._written += count
        self._live += lines if live else []
        for text in lines:
            self.words.update(text.split())

    @property
    def told(self) -> dict[str, Any]:
        """What another process needs to know."""
        return {"settings": self.settings, "source": self.source, "sink": self.sink}

    def plan(self, backfill_id: str) -> BackfillPlan:
        """Plan a backfill."""
        return plan_of(self.topology, self.settings, backfill_id)

    def computed(self, plan: BackfillPlan) -> Any:
        """Run the stages, without Spark (a `LocalResults`)."""
        return computed(self.topology, self.settings, plan)

    def compute(self, spark: Any, backfill_id: str, **more: Any) -> Computation:
        """Run the stages."""
        computed = compute(
            self.topology, self.settings, spark=spark, id=backfill_id, order="exact", **more
        )
        computed.run()
        return computed

    def state(self) -> dict[str, int]:
        """What the changelog comes to."""
        rows: dict[bytes | None, bytes | None] = {}
        for record in kafka.read(self.bootstrap, self.changelog):
            rows[record.key] = record.value
        return {
            serdes.string.deserialize(key): serdes.long.deserialize(value)
            for key, value in rows.items()
            if key is not None and value is not None
        }

    def outputs(self) -> dict[str, list[int]]:
        """The counts of each word, as they were written; a word stays in one partition."""
        found: dict[str, list[int]] = {}
        for record in kafka.read(self.bootstrap, self.sink):
            assert record.key is not None
            assert record.value is not None
            word = serdes.string.deserialize(record.key)
            found.setdefault(word, []).append(serdes.long.deserialize(record.value))
        return found

    def offsets(self) -> dict[int, int]:
        """The application's offsets of its input."""
        return kafka.committed(self.bootstrap, self.id, self.source)

    def check_recount(self) -> None:
        """State, sink and offsets are those of all lines, each counted once."""
        assert self.state() == dict(self.words)
        outputs = self.outputs()
        if self.settings["statestore.cache.max.bytes"]:
            for word, counts in outputs.items():
                assert counts == sorted(set(counts)), word
            outputs = {word: list(range(1, counts[-1] + 1)) for word, counts in outputs.items()}
        assert outputs == {word: list(range(1, n + 1)) for word, n in self.words.items()}
        assert self.offsets() == kafka.ends(self.bootstrap, self.source)

    def check_empty(self) -> None:
        """Nothing of a backfill is visible."""
        assert self.state() == {}
        assert self.outputs() == {}
        assert self.offsets() == {}

    def go_on_live(self, count: int = 30) -> None:
        """Write more lines, run the application over them, and recount everything."""
        self.write(count, live=True)
        self.catch_up()
        self.check_recount()

    def catch_up(self) -> None:
        """Run the application over the lines that are in no plan."""
        with live(self.topology, self.settings) as app:
            app.wait_running()
            # With caches, fewer records than words come through the repartition topic.
            with Progress(self.topology, self.settings) as progress:
                progress.wait(app)
            restored = sum(r.total or 0 for r in app.restored)
        assert restored > 0, "it did not start warm"
        self._live = []
