"""Public API of the simulation: run a topology on a failing cluster, and check the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.state.codec import decode_timestamped
from headrace.state.spec import StoreSpec
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.global_plan import plan_global_tables
from headrace.streams.plan.plan import SubPlan, plan_application
from headrace.streams.simulation.run import SimulatedRun
from headrace.streams.simulation.setup import Outcome, Row, Setup
from headrace.streams.simulation.world.cluster import SimulatedCluster
from headrace.streams.simulation.world.coverage import Coverage
from headrace.streams.simulation.world.faults import CALM, FaultPlan
from headrace.streams.simulation.world.tables import Tables
from headrace.streams.testing.driver_names import DriverNames
from headrace.topology.external_sink import SinkRow
from headrace.topology.graph.graph import AnySerde
from headrace.topology.topology import Topology

DEFAULTS: Mapping[str, object] = {
    "application.id": "simulated",
    "bootstrap.servers": "simulated:1",
    "processing.guarantee": "exactly_once_v2",
    "statestore.cache.max.bytes": 0,
    "poll.ms": 500,
    "max.poll.records": 20,
    "task.timeout.ms": 4_000,
    "consumer.session.timeout.ms": 6_000,
    "repartition.purge.interval.ms": 2_000,
}
"""Default settings of a run. Small batches and short time-outs increase the coverage."""


class SimulationError(AssertionError):
    """Raised if the results differ from a run without faults; the message starts with the seed.

    Args:
        problems: descriptions of the differences.
        seed: the seed of the run.
    """

    def __init__(self, problems: Sequence[str], seed: int) -> None:
        self.problems = tuple(problems)
        self.seed = seed
        super().__init__(f"seed {seed}: " + "; ".join(problems))


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Result of a simulated run.

    Args:
        seed: the seed of the run.
        problems: errors during the run: a failed worker, a hanging transaction, offsets committed
            by a worker that did not own the partition, unprocessed input.
        refusals: the errors that reported the injected disaster and ended the application, as they
            should.
        faults: the number of faults, by call and kind.
        conflicts: the number of starts refused because live workers ran another version.
        coverage: the calls, faults and reactions in each phase of the workers.
        virtual_seconds: the duration in virtual time.

    Examples:
        >>> from headrace import MemorySink, StreamsBuilder, serdes
        >>> from headrace.simulation import simulate
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
        >>> words.to_sink(MemorySink(), name="store-words")
        >>> result = simulate(builder.build(), inputs={"words": [("a", "to")]}, seed=7)
        >>> result.check().inputs("words"), [row.value for row in result.sink("store-words")]
        ([('a', 'to')], ['to'])
        >>> len(result.history.splitlines()) > 5, result.virtual_seconds > 1
        (True, True)
    """

    seed: int
    problems: Sequence[str]
    refusals: Sequence[str]
    faults: Counter[tuple[str, str]]
    conflicts: int
    coverage: Coverage
    virtual_seconds: float
    _simulation: Simulation = field(repr=False)
    _cluster: SimulatedCluster = field(repr=False)
    _outcome: Outcome = field(repr=False)
    _tables: Tables = field(repr=False)

    @property
    def history(self) -> str:
        """The history of the run: number, virtual time, actor, event. The seed determines it."""
        return str(self._cluster.kernel.history)

    def outputs(self, topic: str) -> list[tuple[Any, Any]]:
        """Return the keys and values in a topic for a read_committed reader, by partition."""
        key, value = self._simulation.names.written(topic, self._cluster.topics)
        return self._read(topic, key, value)

    def sink(self, name: str) -> list[SinkRow]:
        """Return the rows of an external sink, in the order of their writes."""
        table = self._tables.by_node.get(name)
        return [] if table is None else table.rows

    def inputs(self, topic: str) -> list[tuple[Any, Any]]:
        """Return the keys and values in an input topic at the end of the run."""
        return self._read(topic, *self._simulation.names.read(topic))

    def _read(self, topic: str, key: AnySerde, value: AnySerde) -> list[tuple[Any, Any]]:
        return [
            (_decoded(key, m.key()), _decoded(value, m.value()))
            for tp in self._cluster.partitions(topic)
            for m in self._cluster.log(tp).records()
        ]

    def store(self, name: str) -> dict[Any, Any]:
        """Return the rows in a store's changelog, without expired rows."""
        plan, store = self._simulation.names.store(name)
        key, value = self._simulation.names.serdes_of(store)
        topic = plan.changelogs[name]
        rows: dict[Any, Any] = {}
        for tp in self._cluster.partitions(topic):
            for k, data in _unexpired(store.spec, _latest_rows(self._cluster, tp)).items():
                rows[key.deserialize(k)] = value.deserialize(data[1])
        return rows

    def check(self) -> SimulationResult:
        """Compare the results with a run of the same input without faults; return this object.

        Under exactly-once the values of each key in the output topics and in the stores must be
        equal: all values in the same order with ``statestore.cache.max.bytes`` of 0 (the default
        here), otherwise the last value. Under at-least-once each key must exist. In both cases
        local state must match the changelogs, and all input must be processed.

        If the order of a key's records depends on more than one input partition, compare `outputs`
        yourself.

        Raises:
            SimulationError: the results differ.
        """
        problems = [*self.problems, *self._check_states()]
        if not problems:
            problems += self._compare(self._simulation.reference())
        if problems:
            raise SimulationError(problems, self.seed)
        return self

    def _check_states(self) -> list[str]:
        found = []
        for plan in self._simulation.plans:
            for store in plan.program.sub_topology.stores:
                topic = plan.changelogs.get(store.spec.name)
                for tp in self._cluster.partitions(topic) if topic is not None else ():
                    found += self._check_state(plan, store.spec, tp)
        return found

    def _check_state(self, plan: SubPlan, spec: StoreSpec, tp: TopicPartition) -> list[str]:
        store = spec.name
        held = [
            rows[store]
            for task_id, rows in self._outcome.states.items()
            if task_id.sub_topology == plan.id and task_id.partition == tp.partition
        ]
        changelog = _latest_rows(self._cluster, tp)
        if not held:
            return [f"nobody has store {store} of partition {tp.partition}"] if changelog else []
        local = {key: decode_timestamped(row) for key, row in held[0].items()}
        # Expired rows may still be on the disk, equal to the changelog, or be deleted.
        return [
            f"store {store}, key {key!r}: {local.get(key)} locally, {changelog.get(key)} in {tp}"
            for key in sorted({*local, *_unexpired(spec, changelog)})
            if local.get(key) != changelog.get(key)
        ][:5]

    def _compare(self, expected: SimulationResult) -> list[str]:
        differences, found = self._simulation.differences, list[str]()
        for topic in self._simulation.output_topics():
            found += differences(topic, self.outputs(topic), expected.outputs(topic))
        for plan in self._simulation.plans:
            if plan.sink_node is not None:
                name = plan.sink_node.name
                rows = _pairs(self.sink(name)), _pairs(expected.sink(name))
                found += differences(f"table {name}", *rows)
            for store in plan.changelogs:
                items = self.store(store).items(), expected.store(store).items()
                found += differences(f"store {store}", *items)
        return found[:10]


class Simulation:
    """Topology with its input, to run with many seeds; see `simulate` for the arguments.

    Args:
        next_version: a topology to which the workers are upgraded, one after the other. Its results
            must be compared by the caller, because they depend on the time of each upgrade.

    Examples:
        >>> from headrace import StreamsBuilder, serdes
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
        >>> words.map_values(str.upper).to("loud")
        >>> rows = [("a", "to"), ("b", "be")]
        >>> simulation = Simulation(builder.build(), inputs={"words": rows})
        >>> for seed in range(3):
        ...     result: SimulationResult = simulation.run(seed).check()
        >>> expected = simulation.reference().outputs("loud")
        >>> simulation.output_topics(), sorted(expected), sorted(result.outputs("loud"))
        (['loud'], [('a', 'TO'), ('b', 'BE')], [('a', 'TO'), ('b', 'BE')])
        >>> simulation.differences("loud", [("a", "TO")], expected)
        ["loud, key 'b': [] instead of ['BE']"]
    """

    def __init__(
        self,
        topology: Topology,
        *,
        inputs: Mapping[str, Sequence[tuple[Any, Any]]],
        settings: Mapping[str, object] | None = None,
        workers: int = 2,
        partitions: int | Mapping[str, int] = 2,
        faults: FaultPlan | None = None,
        next_version: Topology | None = None,
    ) -> None:
        config = StreamsConfig.parse({**DEFAULTS, **(settings or {})})
        first = plan_application(topology, config)
        upgraded = () if next_version is None else plan_application(next_version, config)
        self.plans = upgraded or first
        global_plans = plan_global_tables(topology, config)
        self.names = DriverNames((*first, *upgraded), config, global_plans)
        self._config = config
        plan = faults or FaultPlan()
        if not config.exactly_once:
            # A read_uncommitted reader would process records that are aborted later.
            plan = replace(plan, foreign_transactions=False)
        encoded = {topic: self._encoded(topic, rows) for topic, rows in inputs.items()}
        tables = {plan.topic for plan in global_plans}
        self._setup = Setup(
            config,
            first,
            {topic: rows for topic, rows in encoded.items() if topic not in tables},
            self._count_partitions([*inputs, *tables], partitions),
            workers,
            plan,
            global_plans,
            {topic: rows for topic, rows in encoded.items() if topic in tables},
            upgraded,
        )
        self._reference: SimulationResult | None = None

    def run(self, seed: int, *, state_dir: str | Path | None = None) -> SimulationResult:
        """Run the simulation with a seed.

        Args:
            seed: determines all random decisions.
            state_dir: directory for local state in RocksDB; None keeps state in memory.
        """
        return self._run(self._setup, seed, state_dir)

    def reference(self) -> SimulationResult:
        """Return the result of a single worker without faults."""
        if self._reference is None:
            calm = replace(self._setup, workers=1, plan=CALM)
            self._reference = self._run(calm, 0, None)
            if self._reference.problems:
                raise SimulationError(self._reference.problems, 0)
        return self._reference

    def _run(self, setup: Setup, seed: int, state_dir: str | Path | None) -> SimulationResult:
        run = SimulatedRun(setup, seed, None if state_dir is None else Path(state_dir))
        outcome = run.go()
        return SimulationResult(
            seed=seed,
            problems=tuple(outcome.problems),
            refusals=tuple(outcome.refusals),
            conflicts=outcome.conflicts,
            faults=run.faults.counts,
            coverage=run.faults.coverage,
            virtual_seconds=run.kernel.now_us / 1e6,
            _simulation=self,
            _cluster=run.cluster,
            _outcome=outcome,
            _tables=run.tables,
        )

    def output_topics(self) -> list[str]:
        """Return the external topics that the topology writes under constant names."""
        return sorted({topic for plan in self.plans for topic in plan.sinks})

    def differences(
        self, where: str, own: Iterable[tuple[Any, Any]], expected: Iterable[tuple[Any, Any]]
    ) -> list[str]:
        """Return the differences between a run and the run without faults, in the values by key."""
        mine, theirs = _by_key(own), _by_key(expected)
        if not self._config.exactly_once:
            missing = [key for key in theirs if key not in mine]
            return [f"{where}: {key} is missing" for key in missing]
        found = []
        for key in sorted({*mine, *theirs}):
            a, b = mine.get(key, []), theirs.get(key, [])
            if self._config.statestore_cache_max_bytes:
                a, b = a[-1:], b[-1:]
            if a != b:
                found.append(f"{where}, key {key}: {_shortened(a)} instead of {_shortened(b)}")
        return found

    def _encoded(self, topic: str, rows: Sequence[tuple[Any, Any]]) -> list[Row]:
        key, value = self.names.read(topic)
        return [
            (
                None if k is None else key.serialize(k),
                None if v is None else value.serialize(v),
                number + 1,
            )
            for number, (k, v) in enumerate(rows)
        ]

    def _count_partitions(
        self, inputs: Iterable[str], partitions: int | Mapping[str, int]
    ) -> dict[str, int]:
        sources = {topic for plan in self.plans for topic in plan.topics.sources}
        names = sorted({*sources, *inputs, *self.output_topics()})
        if isinstance(partitions, int):
            return dict.fromkeys(names, partitions)
        return {name: partitions.get(name, 1) for name in {**dict.fromkeys(names), **partitions}}


def simulate(
    topology: Topology,
    *,
    inputs: Mapping[str, Sequence[tuple[Any, Any]]],
    seed: int,
    settings: Mapping[str, object] | None = None,
    workers: int = 2,
    partitions: int | Mapping[str, int] = 2,
    faults: FaultPlan | None = None,
    state_dir: str | Path | None = None,
) -> SimulationResult:
    """Run a topology's workers on a failing cluster, in virtual time.

    The workers are production code, down to the calls of the Kafka client. The seed determines
    which calls fail and how, which workers are killed or suspended, and which thread runs next.
    Equal seeds give equal runs.

    Args:
        topology: the result of ``StreamsBuilder().build()``.
        inputs: keys and values of each input topic, in this order. The input of global tables is
            written before the first worker starts: joins with a global table depend on the time of
            the read, so otherwise there would be no result to compare with.
        seed: determines all random decisions.
        settings: settings of the application, which override
            `headrace.streams.simulation.api.DEFAULTS`.
        workers: number of workers.
        partitions: partition count of the external topics: one number for all, or counts by name,
            with 1 for topics that are not named.
        faults: kinds and rates of faults.
        state_dir: directory for local state in RocksDB; None keeps state in memory.

    Examples:
        >>> from headrace import serdes
        >>> from headrace.topology.dsl.builder import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
        >>> by_word = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
        >>> by_word.count(store="counts").to_stream().to("counts")
        >>> words = [(None, word) for word in "to be or not to be".split()]
        >>> result = simulate(builder.build(), inputs={"words": words}, seed=7)
        >>> sorted(result.check().store("counts").items())
        [('be', 2), ('not', 1), ('or', 1), ('to', 2)]
    """
    simulation = Simulation(
        topology,
        inputs=inputs,
        settings=settings,
        workers=workers,
        partitions=partitions,
        faults=faults,
    )
    return simulation.run(seed, state_dir=state_dir)


def _decoded(serde: AnySerde, data: bytes | None) -> Any:
    return None if data is None else serde.deserialize(data)


def _latest_rows(cluster: SimulatedCluster, tp: TopicPartition) -> dict[bytes, tuple[int, bytes]]:
    """Return the last committed timestamp and value of each key of a changelog."""
    rows: dict[bytes, tuple[int, bytes]] = {}
    for message in cluster.log(tp).records():
        key, value = message.key(), message.value()
        assert key is not None
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = (message.timestamp()[1], value)
    return rows


def _unexpired(
    spec: StoreSpec, rows: dict[bytes, tuple[int, bytes]]
) -> dict[bytes, tuple[int, bytes]]:
    """Remove rows that have expired for every reader."""
    time_of = spec.rows.time_of
    if time_of is None or spec.retention_ms is None or not rows:
        return rows
    horizon = max(timestamp for timestamp, _ in rows.values()) - spec.retention_ms
    return {key: row for key, row in rows.items() if time_of(key) > horizon}


def _by_key(rows: Iterable[tuple[Any, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for key, value in rows:
        found.setdefault(repr(key), []).append(value)
    return found


def _pairs(rows: Sequence[SinkRow]) -> list[tuple[Any, Any]]:
    return [(row.key, row.value) for row in rows]


def _shortened(values: list[Any]) -> str:
    return repr(values) if len(values) <= 12 else f"{len(values)} values, ...{values[-6:]!r}"
