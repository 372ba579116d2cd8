"""`TopologyTestDriver`: run a topology without a broker, with the production code.

It needs neither a Kafka client nor RocksDB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
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
from headrace.streams.testing.driver_names import DriverNames
from headrace.streams.testing.driver_store import (
    CrashPoint,
    DriverWorker,
    SinkPoint,
    StoreView,
)
from headrace.streams.testing.driver_topics import (
    Isolation,
    OutputRecord,
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
from headrace.topology.java_names import hinting
from headrace.topology.operators.outbox import MemorySink
from headrace.topology.serdes import Serde
from headrace.topology.topology import Topology

__all__ = ["CrashPoint", "OutputRecord", "TestInput", "TestOutput", "TopologyTestDriver"]

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)

CommitMode = Literal["each_record", "manual"]
MAX_TURNS = 1_000_000
"""Maximum number of iterations in one call; a topology that reads its own output never ends."""

_NEVER_MS = 1 << 60
_DEFAULTS = {"application.id": "test", "bootstrap.servers": "nowhere:1"}


@hinting
class TopologyTestDriver:
    """Test driver that runs a topology on an in-memory cluster, in the calling thread.

    Everything between the topics is production code: the compiled topology, tasks, state, commits
    with changelogs, and restore. Time advances only if the test advances it, and the same calls
    give the same results.

    Examples:
        A word count with three partitions, and the repartition topic that its ``group_by`` needs:

        >>> from headrace import serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> lines = builder.stream("lines", value=serdes.string)
        >>> words = lines.flat_map_values(str.split)
        >>> by_word = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
        >>> by_word.count(store="counts").to_stream().to("word-counts")
        >>> topology = builder.build()

        Write records with `input` and read them with `output`. Both use the serdes of the topology
        by default:

        >>> with TopologyTestDriver(topology, partitions=3) as driver:
        ...     driver.input("lines").send(None, "to be or not to be")
        ...     sorted(driver.output("word-counts").as_dict().items())
        [('be', 2), ('not', 1), ('or', 1), ('to', 2)]

        Each record is committed before the next record is read, so each update is emitted. With
        ``commit="manual"`` the test commits. Until then nothing is visible to a read_committed
        reader, and each commit emits each key once (if ``statestore.cache.max.bytes`` is not 0):

        >>> exactly_once = {"processing.guarantee": "exactly_once_v2"}
        >>> driver = TopologyTestDriver(topology, exactly_once, commit="manual")
        >>> lines, counts = driver.input("lines"), driver.output("word-counts")
        >>> lines.send(None, "to be or not to be")
        >>> counts.read_all()
        []
        >>> driver.commit()
        >>> [(record.key, record.value) for record in counts.read_all()]
        [('to', 2), ('be', 2), ('not', 1), ('or', 1)]

        The order of each key's records is fixed. The order between keys of several partitions
        depends on the seed; in production it is arbitrary. Stores are read like a mapping, with or
        without uncommitted changes:

        >>> driver.store("counts")["to"]
        2

        An `abort` rolls back everything since the last commit, and a `crash` kills the worker,
        immediately or at a step of its next commit. Processing restarts from the committed state,
        so under exactly-once the counts are the same:

        >>> lines.send(None, "to do")
        >>> driver.abort()
        >>> driver.crash(at="changelogs_written", keep=False)
        >>> driver.commit()
        >>> driver.crashes, driver.restored
        (1, 4)
        >>> [(record.key, record.value) for record in counts.read_all()]
        [('to', 3), ('do', 1)]

        A restart commits first, and `advance` advances the wall-clock time, for punctuators:

        >>> driver.advance(timedelta(seconds=5))
        >>> driver.restart()  # as a deployment does
        >>> driver.run()
        >>> driver.input_topics, driver.output_topics, driver.committed_offsets("lines")
        (['lines'], ['word-counts'], {0: 1, 1: 0, 2: 0, 3: 1})
        >>> driver.processed, dict(driver.dropped), driver.waiting, driver.events[-1]["event"]
        (8, {}, [], 'task_started')
        >>> sorted(driver.cluster.topics)
        ['lines', 'test-by-word-repartition', 'test-counts-changelog', 'word-counts']
        >>> driver.close()

    Args:
        topology: the result of ``StreamsBuilder().build()``.
        settings: the application's settings, which ``headrace settings`` lists. ``application.id``
            and ``bootstrap.servers`` may be left out; `commit` replaces ``commit.interval.ms`` and
            ``commit.interval.min.ms``.
        partitions: partition count of the external topics: one number for all, or counts by name,
            with 1 for topics that are not named. None is 4 if the topology repartitions, so that
            keys which do not match are detected, and otherwise 1.
        now: the initial time: a datetime with a time zone, or milliseconds since 1970.
        commit: "each_record" commits after each record of each topic, decodes each row from its
            bytes, and writes no partial aggregates to repartition topics; "manual" commits when
            `commit` is called, or earlier if ``statestore.uncommitted.max.bytes`` is reached.
        state_dir: directory for local state in RocksDB, as in production; None keeps state in
            memory.
        real_sinks: whether to write to the external sinks of the topology; a sink that does not
            respond raises at the end of the ``with`` block. False keeps the rows in memory, where
            `sink` returns them.
        seed: seed for the partition of records without a key, and for the order of partitions.

    Raises:
        ConfigError: the settings are wrong.
        TopologyError: the topology cannot run.
        MisconfiguredTopicError: joined topics have different partition counts.
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
        self._config = _with_commit_mode(config, commit)
        self._topology = topology
        self._plans = plan_application(topology, self._config)
        warn_of_keys(topology, self._config, above=1)
        self._global_plans = plan_global_tables(topology, self._config)
        self._names = DriverNames(self._plans, self._config, self._global_plans)
        outside = [plan.sink_node for plan in self._plans if plan.sink_node is not None]
        self._sinks = {node.name: _in_memory(node) for node in outside}
        counts = default_partitions(self._plans) if partitions is None else partitions
        self._clock = ManualClock(to_ms(now, "now"))
        cluster = MemoryCluster(partitions=counts, seed=seed, now_ms=self._clock.now_ms)
        create_topics(cluster, self._plans, self._config, self._global_plans)
        self._log = EventLog()
        self._worker = DriverWorker(
            config=self._config,
            plans=self._plans,
            global_plans=self._global_plans,
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

    def __repr__(self) -> str:
        return f"<TopologyTestDriver at {self._clock.now_ms()} ms of {self._topology}>"

    @property
    def cluster(self) -> MemoryCluster:
        """The in-memory cluster that the topology runs on."""
        return self._worker.cluster

    # -- inputs and outputs --------------------------------------------------------------------

    @property
    def input_topics(self) -> Sequence[str]:
        """The external topics that the topology reads."""
        return self._names.inputs

    @property
    def output_topics(self) -> Sequence[str]:
        """The external topics that it writes, including topics that functions have named so far."""
        return self._names.outputs(self.cluster.topics)

    def input(
        self,
        topic: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        step: timedelta = timedelta(milliseconds=1),
    ) -> TestInput[K, V]:
        """Return the writer of a source topic.

        Args:
            topic: a topic that the topology reads.
            key: serde of keys; None is the serde with which the topology reads the topic.
            value: serde of values; None is the serde with which the topology reads the topic.
            step: the time between the timestamps of consecutive records.

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
        """Return the reader of an output topic, or of an internal topic by its full name.

        It starts at the beginning of the topic.

        Args:
            topic: the topic.
            key: serde of keys; None is the serde with which the topology writes the topic.
            value: serde of values; None is the serde with which the topology writes the topic.
            isolation: "read_uncommitted" includes records of open and aborted transactions.

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
        """Process until nothing is left to do, including work that an abort or crash rolled back.

        Raises:
            StreamsError: the error that stopped the worker. The next call starts it again from the
                committed state, as a supervisor would.
        """
        for _ in range(MAX_TURNS):
            before = self._worker.activity()
            self._worker.turn()
            if self._worker.activity() == before:
                return
        raise RuntimeError(
            f"the topology is still running after {MAX_TURNS:,} turns. Check whether it writes to "
            "a topic that it reads."
        )

    def advance(self, duration: timedelta) -> None:
        """Advance the time, then run.

        Args:
            duration: the time to advance by.
        """
        self._clock.pass_ms(step_to_ms(duration, "duration"))
        self.run()

    def commit(self, *, rounds: int | None = None) -> None:
        """Run and commit until all input has been processed by the whole topology.

        Under exactly-once a sub-topology reads a repartition topic only after the commit of its
        records, so this takes as many commits as there are consecutive sub-topologies. Records that
        wait for max.task.idle.ms are processed after an `advance` by that time.

        Args:
            rounds: maximum number of commits; the rest is left for later. None is no limit.

        Raises:
            StreamsError: the error that stopped the worker; its uncommitted work is rolled back.
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
        """Abort the open transaction, which rolls back everything since the last commit.

        It is processed again, from the committed state, by the next call that runs the topology.
        """
        self._worker.abort()

    def crash(self, at: CrashPoint | SinkPoint | None = None, *, keep: bool = True) -> None:
        """Kill the worker without a shutdown; the next call that runs the topology starts another.

        Args:
            at: the step of the next commit or restore after which it is killed; None is now. A
                commit may contain several tasks, and "state_written" comes after the first of them.
            keep: whether local state survives; otherwise all state is restored from changelogs.

        Raises:
            ValueError: the step does not exist.
        """
        self._worker.crash(at, keep=keep)

    def restart(self) -> None:
        """Commit and stop the worker cleanly; the next call that needs a worker starts another."""
        self._worker.finish()

    def close(self) -> None:
        """Close the driver; uncommitted work is discarded."""
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
        """Raise if a sink has not received its rows after the time of its interval and retries."""
        if held_s := self._held_s():
            self.advance(timedelta(seconds=held_s))
        if self._unanswered():
            self.advance(timedelta(seconds=RETRY_MAX_S))
        for node, reason in self._unanswered().items():
            raise SinkFailedError(node, f"does not answer: {reason}", "its rows are not written")

    def _held_s(self) -> float:
        """Return the maximum time for which sinks still collect rows."""
        tasks = () if self._worker.worker is None else self._worker.worker.tasks.running
        held = [
            task.context.outbox.batching.every_s
            for task in tasks
            if task.context.has_collected_rows
        ]
        return max(held, default=0.0)

    def _unanswered(self) -> Mapping[str, str]:
        worker = self._worker.worker
        return {} if worker is None else worker.tasks.unanswered_sinks()

    # -- inspection ----------------------------------------------------------------------------

    def store(self, name: str, *, committed: bool = False) -> StoreView[Any, Any]:
        """Return a read-only view of a store over all partitions.

        Args:
            name: the store's name.
            committed: whether to show committed rows only.

        Returns:
            A mapping that shows the current rows on each access.

        Raises:
            LookupError: the store does not exist.
        """
        table = self._names.global_table(name)
        if table is not None:
            return StoreView(table.key, table.value, partial(self._worker.global_rows, table))
        plan, store = self._names.store(name)
        key, _ = self._names.serdes_of(store)
        rows = partial(self._worker.rows, plan, store, committed)
        return StoreView(key, plan.value_serdes[name], rows)

    def sink(self, name: str) -> MemorySink:
        """Return the rows written to an external sink.

        Args:
            name: the name of the sink's operator.

        Raises:
            LookupError: the operator does not exist.

        Examples:
            >>> from headrace import SqliteSink, StreamsBuilder
            >>> builder = StreamsBuilder()
            >>> orders = SqliteSink("shop.db", "orders", columns={"id": int, "price": float})
            >>> builder.stream("orders").to_sink(orders, name="store-orders")
            >>> with TopologyTestDriver(builder.build()) as driver:
            ...     driver.input("orders").send(None, {"id": 7, "price": 9.5})
            ...     [row.value for row in driver.sink("store-orders").rows]
            [{'id': 7, 'price': 9.5}]
        """
        try:
            return self._sinks[name]
        except KeyError:
            known = ", ".join(sorted(self._sinks)) or "none"
            raise LookupError(
                f"no operator {name!r} writes to an external sink. Correct the name: {known}."
            ) from None

    def _open_sink(self, sink: ExternalSink, name: str) -> SinkConnection:
        del sink
        return self._sinks[name.rpartition("/")[2]].open(name)

    def committed_offsets(self, topic: str) -> dict[int, int]:
        """Return the application's committed offset of each partition that has an offset."""
        group = self.cluster.offsets.get(self._config.application_id, {})
        return {p.partition: c.offset for p, c in sorted(group.items()) if p.topic == topic}

    @property
    def crashes(self) -> int:
        """The number of crashes of the worker."""
        return self._worker.crashes

    @property
    def processed(self) -> int:
        """The number of records of all topics that were processed and committed."""
        return self._worker.counts.processed

    @property
    def restored(self) -> int:
        """The number of restored changelog records."""
        return self._worker.counts.restored

    @property
    def dropped(self) -> Mapping[tuple[str, str], int]:
        """The number of records dropped by the present worker, by node and reason."""
        worker = self._worker.worker
        return {} if worker is None else {**worker.tasks.dropped, **worker.global_tables.dropped}

    @property
    def waiting(self) -> Sequence[str]:
        """The operators with results that wait for a later stream time, such as open windows."""
        worker = self._worker.worker
        running = () if worker is None else worker.tasks.running
        return sorted({name for task in running for name in task.waiting_operators()})

    @property
    def events(self) -> Sequence[Mapping[str, Any]]:
        """The log events of the runtime."""
        return self._log.events


def _in_memory(node: Node) -> MemorySink:
    assert node.external_sink is not None
    return MemorySink(keyed=node.external_sink.keyed)


def _with_commit_mode(config: StreamsConfig, commit: CommitMode) -> StreamsConfig:
    if commit == "each_record":
        # Rows are decoded from their bytes each time, as after a restart, and each resulting record
        # is emitted on its own.
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
