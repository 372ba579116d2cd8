"""`TopologyTestDriver`: a whole topology without a broker, run by the code that runs it live.

It needs neither a Kafka client nor RocksDB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from typing_extensions import TypeVar

from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.secrets import guarded
from headrace.streams.plan.global_plan import plan_global_tables
from headrace.streams.plan.key_sample import warn_of_keys
from headrace.streams.plan.plan import plan_application, refuse_other_than_topology
from headrace.streams.tasks.driver_disk import MemoryDisk, RocksDisk
from headrace.streams.tasks.sink_connections import RETRY_MAX_S, SinkFailedError, open_sink
from headrace.streams.testing.driver_names import Names
from headrace.streams.testing.driver_store import (
    CrashPoint,
    DriverWorker,
    SinkPoint,
    Stores,
    StoreView,
)
from headrace.streams.testing.driver_topics import (
    Isolation,
    Record,
    TestInput,
    TestOutput,
    Time,
    step_to_ms,
    to_ms,
)
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.testing.memory_worker import (
    EventLog,
    ManualClock,
    create_topics,
    default_partitions,
)
from headrace.topology.external_sink import ExternalSink, SinkConnection
from headrace.topology.graph.graph import Node
from headrace.topology.graph.optimizer import COMBINE
from headrace.topology.operators.outbox import MemorySink
from headrace.topology.serdes import Serde
from headrace.topology.topology import Topology

__all__ = ["CrashPoint", "Record", "TestInput", "TestOutput", "TopologyTestDriver"]

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)

CommitMode = Literal["each_record", "manual"]
MAX_TURNS = 1_000_000
"""How long a topology may go on after one call; one that feeds itself would never end."""

_NEVER_MS = 1 << 60
_DEFAULTS = {"application.id": "test", "bootstrap.servers": "nowhere:1"}


class TopologyTestDriver:
    """Runs a topology on a cluster in memory, one step after another, in the calling thread.

    Everything between the topics is the code that runs live: the compiled topology, tasks, state,
    the commit with its changelogs, restore. Time passes only when the driver is told so, and the
    same calls give the same results.

    A word count, of three partitions, with the repartition topic that its ``group_by`` needs:

    >>> from headrace import serdes
    >>> from headrace.topology.dsl.builder import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> lines = builder.stream("lines", value=serdes.string)
    >>> words = lines.flat_map_values(str.split)
    >>> by_word = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    >>> by_word.count(store="counts").to_stream().to("word-counts")
    >>> topology = builder.build()

    Records go in with `input` and come out with `output`. Each of them uses the serdes of the
    topology unless it is given others:

    >>> with TopologyTestDriver(topology, partitions=3) as driver:
    ...     driver.input("lines").send(None, "to be or not to be")
    ...     sorted(driver.output("word-counts").as_dict().items())
    [('be', 2), ('not', 1), ('or', 1), ('to', 2)]

    Every record is committed before the next one is read, so each update comes out. With
    ``commit="manual"`` the test decides; until then nothing is visible to a reader of committed
    records, and each key comes out once a commit (``statestore.cache.max.bytes`` is not 0):

    >>> exactly_once = {"processing.guarantee": "exactly_once_v2"}
    >>> driver = TopologyTestDriver(topology, exactly_once, commit="manual")
    >>> lines, counts = driver.input("lines"), driver.output("word-counts")
    >>> lines.send(None, "to be or not to be")
    >>> counts.read_all()
    []
    >>> driver.commit()
    >>> [(record.key, record.value) for record in counts.read_all()]
    [('to', 2), ('be', 2), ('not', 1), ('or', 1)]

    The order is that of each key; between keys of several partitions it is the seed's choice, as
    live it is nobody's. Stores are read like a mapping, with what is not committed yet or without
    it:

    >>> driver.store("counts")["to"]
    2

    An `abort` makes everything since the last commit void, and a `crash` kills the worker, at once
    or at a step of its next commit. What follows begins from what is committed, so under
    exactly-once the counts are the same:

    >>> lines.send(None, "to do")
    >>> driver.abort()
    >>> driver.crash(at="changelogs_written", keep=False)
    >>> driver.commit()
    >>> driver.crashes, driver.restored
    (1, 4)
    >>> [(record.key, record.value) for record in counts.read_all()]
    [('to', 3), ('do', 1)]

    Args:
        topology: what ``StreamsBuilder().build()`` returned.
        settings: the application's own, which ``headrace settings`` lists. ``application.id`` and
            ``bootstrap.servers`` may be left out; `commit` takes the place of
            ``commit.interval.ms`` and ``commit.interval.min.ms``.
        partitions: partition count of the topics that the application does not make itself: for
            all, or by name with 1 for the others. None is 4 where the topology repartitions, so
            that keys which do not meet are seen, and 1 where it does not.
        now: the time at the start: a datetime with a time zone, or milliseconds since 1970.
        commit: "each_record" commits after each record of each topic, reads each row back from its
            bytes, and combines nothing before a repartition topic; "manual" commits when `commit`
            is called, or earlier where ``statestore.uncommitted.max.bytes`` is reached.
        state_dir: keep local state in RocksDB there, as live; None keeps it in memory.
        real_sinks: write to the tables outside of Kafka that the topology names; one that does
            not answer is an error at the end of the ``with`` block. False keeps the rows in
            memory, where `sink` shows them.
        seed: decides where records without a key go, and in which order partitions are read.

    Raises:
        ConfigError: the settings are wrong.
        TopologyError: the topology cannot run.
        MisconfiguredTopicError: topics that are joined have unequal partition counts.
    """

    def __init__(
        self,
        topology: Topology,
        settings: Mapping[str, object] | None = None,
        *,
        partitions: int | Mapping[str, int] | None = None,
        now: Time = 0,
        commit: CommitMode = "each_record",
        state_dir: str | Path | None = None,
        real_sinks: bool = False,
        seed: int = 0,
    ) -> None:
        refuse_other_than_topology(topology)
        config = StreamsConfig.parse({**_DEFAULTS, **guarded(settings or {})})
        self._config = _paced(config, commit)
        self._topology = topology
        self._plans = plan_application(topology, self._config)
        warn_of_keys(topology, self._config, above=1)
        self._global_plans = plan_global_tables(topology, self._config)
        self._names = Names(self._plans, self._config, self._global_plans)
        outside = [plan.outside for plan in self._plans if plan.outside is not None]
        self._sinks = {node.name: _in_memory(node) for node in outside}
        counts = default_partitions(self._plans) if partitions is None else partitions
        self._clock = ManualClock(to_ms(now, "now"))
        cluster = MemoryCluster(partitions=counts, seed=seed, now_ms=self._clock.now_ms)
        create_topics(cluster, self._plans, self._config, self._global_plans)
        self._log = EventLog()
        self._worker = DriverWorker(
            self._config,
            self._plans,
            self._global_plans,
            cluster=cluster,
            disk=(
                MemoryDisk()
                if state_dir is None
                else RocksDisk(Path(state_dir), self._config, self._log)
            ),
            clock=self._clock,
            log=self._log,
            open_sink=open_sink if real_sinks else self._open_sink,
        )
        self._stores = Stores(self._names, self._worker, self._global_plans, self._config)

    def __repr__(self) -> str:
        return f"<TopologyTestDriver at {self._clock.now_ms()} ms of {self._topology}>"

    @property
    def cluster(self) -> MemoryCluster:
        """What the topology runs on."""
        return self._worker.cluster

    # -- the ends of the topology --------------------------------------------------------------

    @property
    def input_topics(self) -> Sequence[str]:
        """The topics that the topology reads, without those that it makes itself."""
        return self._names.inputs

    @property
    def output_topics(self) -> Sequence[str]:
        """The topics that it writes, with those so far that functions and handlers named."""
        return self._names.outputs(self.cluster.topics)

    def input(
        self,
        topic: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        step: timedelta = timedelta(milliseconds=1),
    ) -> TestInput[K, V]:
        """Write to a source topic.

        Args:
            topic: one that the topology reads.
            key: serde of keys; None takes the one that the topology reads it with.
            value: serde of values; None takes the one that the topology reads it with.
            step: how much later each record is than the one sent before it.

        Raises:
            LookupError: the topology does not read the topic.
        """
        read_key, read_value = self._names.read(topic)
        return TestInput(
            topic,
            key or read_key,
            value or read_value,
            cluster=self.cluster,
            run=self.run,
            now_ms=self._clock.now_ms,
            step_ms=step_to_ms(step),
        )

    def output(
        self,
        topic: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        isolation: Isolation = "read_committed",
    ) -> TestOutput[K, V]:
        """Read a topic from its beginning: an output, or an internal topic by its full name.

        Args:
            topic: the topic.
            key: serde of keys; None takes the one that the topology writes it with.
            value: serde of values; None takes the one that the topology writes it with.
            isolation: "read_uncommitted" shows records of open and aborted transactions too.

        Raises:
            LookupError: the topology does not write the topic.
        """
        written_key, written_value = self._names.written(topic, self.cluster.topics)
        return TestOutput(
            topic,
            key or written_key,
            value or written_value,
            cluster=self.cluster,
            isolation=isolation,
            take=self._names.partials(topic),
        )

    # -- running -------------------------------------------------------------------------------

    def run(self) -> None:
        """Process until nothing is left to do; what an abort or a crash undid is done again.

        `send`, `advance` and `commit` do so by themselves.

        Raises:
            StreamsError: what stopped the worker. The next call starts it again from what is
                committed, as a supervisor would.
        """
        for _ in range(MAX_TURNS):
            before = self._worker.activity()
            self._worker.turn()
            if self._worker.activity() == before:
                return
        raise RuntimeError(
            f"the topology goes on after {MAX_TURNS:,} turns; does it write to a topic it reads?"
        )

    def advance(self, duration: timedelta) -> None:
        """Let time pass, then run.

        Args:
            duration: how much.
        """
        self._clock.pass_ms(step_to_ms(duration))
        self.run()

    def commit(self, *, rounds: int | None = None) -> None:
        """Run and commit until everything that went in has gone through the whole topology.

        Under exactly-once a sub-topology reads a repartition topic only after the commit of what
        was written there, so this takes as many commits as there are sub-topologies in a row.

        Args:
            rounds: commit so often at most, and leave the rest for later.

        Raises:
            StreamsError: what stopped the worker; nothing that it was doing is committed.
        """
        self.run()
        while rounds is None or rounds > 0:
            before = self._worker.counts.commits, self.crashes
            self._worker.present().request_commit()
            self._worker.turn()
            if (self._worker.counts.commits, self.crashes) == before:
                return
            if rounds is not None:
                rounds -= 1
            self.run()

    def abort(self) -> None:
        """Abort the open transaction: everything since the last commit is void.

        It is processed again, from committed facts, by the next call that runs the topology.
        """
        self._worker.abort()

    def crash(self, at: CrashPoint | SinkPoint | None = None, *, keep: bool = True) -> None:
        """Kill the worker without a word; the next call that runs the topology starts another.

        Args:
            at: the step of the next commit or restore after which it dies; None is now. Several
                tasks may be in one commit, and "state_written" comes after the first of them.
            keep: whether local state survives; without it all state comes from the changelogs.

        Raises:
            ValueError: there is no such step.
        """
        self._worker.crash(at, keep=keep)

    def restart(self) -> None:
        """Stop the worker cleanly, committing what was processed, and start another when needed."""
        self._worker.finish()

    def close(self) -> None:
        """End; what is not committed is forgotten."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._require_answers()
        finally:
            self.close()

    def _require_answers(self) -> None:
        """See that sinks have their rows: a test is not to pass without them.

        Those that collect rows get the time for it, and those that did not answer are asked again.
        """
        if held_s := self._held_s():
            self.advance(timedelta(seconds=held_s))
        if self._unanswered():
            self.advance(timedelta(seconds=RETRY_MAX_S))
        for node, reason in self._unanswered().items():
            raise SinkFailedError(node, f"does not answer: {reason}", "its rows are not written")

    def _held_s(self) -> float:
        """For how long rows are collected yet, at most."""
        tasks = () if self._worker.worker is None else self._worker.worker.tasks.running
        held = [task.facts.outbox.batching.every_s for task in tasks if task.facts.is_held]
        return max(held, default=0.0)

    def _unanswered(self) -> Mapping[str, str]:
        worker = self._worker.worker
        return {} if worker is None else worker.tasks.unanswered_sinks()

    # -- looking inside ------------------------------------------------------------------------

    def store(self, name: str, *, committed: bool = False) -> StoreView[Any, Any]:
        """Read a store, over all partitions.

        Args:
            name: the store's name.
            committed: leave out what is not committed.

        Returns:
            A mapping that shows the rows as they are at each moment.

        Raises:
            LookupError: there is no such store.
        """
        return self._stores.view(name, committed=committed)

    def sink(self, name: str) -> MemorySink:
        """What was written to a table outside of Kafka.

        Args:
            name: that of the step.

        Raises:
            LookupError: there is no such step.
        """
        try:
            return self._sinks[name]
        except KeyError:
            known = ", ".join(sorted(self._sinks)) or "none"
            raise LookupError(
                f"no step {name!r} writes to a table outside of Kafka; those that do: {known}"
            ) from None

    def _open_sink(self, sink: ExternalSink, name: str) -> SinkConnection:
        del sink
        return self._sinks[name.rpartition("/")[2]].open(name)

    def committed_offsets(self, topic: str) -> dict[int, int]:
        """The application's committed offset of each partition that has one."""
        group = self.cluster.offsets.get(self._config.application_id, {})
        return {p.partition: c.offset for p, c in sorted(group.items()) if p.topic == topic}

    @property
    def crashes(self) -> int:
        """How often the worker has died."""
        return self._worker.crashes

    @property
    def processed(self) -> int:
        """How many records of all topics were processed and committed."""
        return self._worker.counts.processed

    @property
    def restored(self) -> int:
        """How many changelog records were restored."""
        return self._worker.counts.restored

    @property
    def dropped(self) -> Mapping[tuple[str, str], int]:
        """How many records the present worker left out, by node and reason."""
        worker = self._worker.worker
        return {} if worker is None else {**worker.tasks.dropped, **worker.global_tables.dropped}

    @property
    def events(self) -> Sequence[Mapping[str, Any]]:
        """What the runtime has logged."""
        return self._log.events


def _in_memory(node: Node) -> MemorySink:
    assert node.writes_outside is not None
    return MemorySink(keyed=node.writes_outside.keyed)


def _paced(config: StreamsConfig, commit: CommitMode) -> StreamsConfig:
    if commit == "each_record":
        # Rows are read back from their bytes each time, as after a restart, and each record that
        # follows from another comes on its own.
        return replace(
            config,
            commit_interval_ms=0,
            max_poll_records=1,
            statestore_read_cache_max_bytes=0,
            topology_optimization=tuple(n for n in config.topology_optimization if n != COMBINE),
        )
    if commit == "manual":
        return replace(config, commit_interval_ms=_NEVER_MS, commit_interval_min_ms=_NEVER_MS)
    raise ValueError(f"commit must be 'each_record' or 'manual', not {commit!r}")
