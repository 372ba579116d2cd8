"""`simulate`: a topology's workers on a cluster that fails, and what came out of it."""

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
from headrace.streams.simulation.inputs import Row
from headrace.streams.simulation.run import Run
from headrace.streams.simulation.setup import Outcome, Setup
from headrace.streams.simulation.world.cluster import Cluster
from headrace.streams.simulation.world.coverage import Coverage
from headrace.streams.simulation.world.faults import CALM, FaultPlan
from headrace.streams.simulation.world.tables import Tables
from headrace.streams.testing.driver_names import Names
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
"""Settings of a run, unless it is given others. Small batches and short time-outs meet more."""


class SimulationError(AssertionError):
    """What came out is not what it would be without faults; the text begins with the seed.

    Args:
        problems: one sentence or more each.
        seed: of the run.
    """

    def __init__(self, problems: Sequence[str], seed: int) -> None:
        self.problems = tuple(problems)
        self.seed = seed
        super().__init__(f"seed {seed}: " + "; ".join(problems))


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What happened in one run.

    Args:
        seed: of the run.
        problems: what went wrong on the way: a worker that failed, a transaction that hangs,
            offsets committed by who did not own them, input left over.
        refusals: the errors that named a disaster and ended the application, which is right.
        faults: how often each fault happened, by call and kind.
        conflicts: how many starts were refused as live workers ran another version.
        coverage: what was met in which phase of the workers.
        virtual_seconds: how long it took on the run's own clock.
    """

    seed: int
    problems: Sequence[str]
    refusals: Sequence[str]
    faults: Counter[tuple[str, str]]
    conflicts: int
    coverage: Coverage
    virtual_seconds: float
    _simulation: Simulation = field(repr=False)
    _cluster: Cluster = field(repr=False)
    _outcome: Outcome = field(repr=False)
    _tables: Tables = field(repr=False)

    @property
    def history(self) -> str:
        """Everything that happened: number, virtual time, who, what. The same for the same seed."""
        return str(self._cluster.kernel.history)

    def outputs(self, topic: str) -> list[tuple[Any, Any]]:
        """Keys and values that a reader of committed records finds, partition by partition."""
        key, value = self._simulation.names.written(topic, self._cluster.topics)
        return self._read(topic, key, value)

    def sink(self, name: str) -> list[SinkRow]:
        """The rows of a table outside of Kafka, in the order in which they were written."""
        table = self._tables.by_node.get(name)
        return [] if table is None else table.rows

    def inputs(self, topic: str) -> list[tuple[Any, Any]]:
        """The same of an input topic: what is there in the end."""
        return self._read(topic, *self._simulation.names.read(topic))

    def _read(self, topic: str, key: AnySerde, value: AnySerde) -> list[tuple[Any, Any]]:
        return [
            (_decoded(key, m.key()), _decoded(value, m.value()))
            for place in self._cluster.places(topic)
            for m in self._cluster.log(place).records()
        ]

    def store(self, name: str) -> dict[Any, Any]:
        """A store's rows as its changelog has them, without those that have expired."""
        plan, store = self._simulation.names.store(name)
        key, value = self._simulation.serdes_of(store)
        topic = plan.changelogs[name]
        rows: dict[Any, Any] = {}
        for place in self._cluster.places(topic):
            for k, data in _unexpired(store.spec, _folded(self._cluster, place)).items():
                rows[key.deserialize(k)] = value.deserialize(data[1])
        return rows

    def check(self) -> SimulationResult:
        """Compare with the same input without faults; returns itself.

        Under exactly-once every key's values in the output topics and in the stores must be the
        same: each in the same order with ``statestore.cache.max.bytes`` of 0 (the default here),
        else the last one. Under at-least-once every key must be there. In both, local state must
        be what the changelogs say, and nothing may be left undone.

        Where the order of the records of a key depends on more than one input partition, compare
        `outputs` yourself.

        Raises:
            SimulationError: it is not the same.
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
                for place in self._cluster.places(topic) if topic is not None else ():
                    found += self._check_state(plan, store.spec, place)
        return found

    def _check_state(self, plan: SubPlan, spec: StoreSpec, place: TopicPartition) -> list[str]:
        store = spec.name
        held = [
            rows[store]
            for task_id, rows in self._outcome.states.items()
            if task_id.sub_topology == plan.id and task_id.partition == place.partition
        ]
        changelog = _folded(self._cluster, place)
        if not held:
            return [f"nobody has store {store} of partition {place.partition}"] if changelog else []
        local = {key: decode_timestamped(row) for key, row in held[0].items()}
        # What has expired may be on the disk still, as the changelog has it, or be gone.
        return [
            f"store {store}, key {key!r}: {local.get(key)} locally, {changelog.get(key)} in {place}"
            for key in sorted({*local, *_unexpired(spec, changelog)})
            if local.get(key) != changelog.get(key)
        ][:5]

    def _compare(self, expected: SimulationResult) -> list[str]:
        found = []
        for topic in self._simulation.output_topics():
            mine, theirs = _by_key(self.outputs(topic)), _by_key(expected.outputs(topic))
            found += self._simulation.differences(topic, mine, theirs)
        for plan in self._simulation.plans:
            if plan.outside is not None:
                name = plan.outside.name
                mine, theirs = (
                    _by_key(_pairs(self.sink(name))),
                    _by_key(_pairs(expected.sink(name))),
                )
                found += self._simulation.differences(f"table {name}", mine, theirs)
        for plan in self._simulation.plans:
            for store in plan.changelogs:
                mine = {repr(k): [v] for k, v in self.store(store).items()}
                theirs = {repr(k): [v] for k, v in expected.store(store).items()}
                found += self._simulation.differences(f"store {store}", mine, theirs)
        return found[:10]


class Simulation:
    """A topology with its input, to be run with many seeds; see `simulate` for the arguments.

    Args:
        next_version: a topology that the workers are upgraded to, one after the other. Its results
            are compared by the caller, as they depend on when each worker is upgraded.
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
        self.names = Names((*first, *upgraded), config, global_plans)
        self._config = config
        plan = faults or FaultPlan()
        if not config.exactly_once:
            # Who reads what is not committed reads what is aborted later.
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
        """Run once.

        Args:
            seed: decides everything that is left to chance.
            state_dir: keep local state in RocksDB there; None keeps it in memory.
        """
        return self._run(self._setup, seed, state_dir)

    def reference(self) -> SimulationResult:
        """What comes out of one worker without faults."""
        if self._reference is None:
            calm = replace(self._setup, workers=1, plan=CALM)
            self._reference = self._run(calm, 0, None)
            if self._reference.problems:
                raise SimulationError(self._reference.problems, 0)
        return self._reference

    def _run(self, setup: Setup, seed: int, state_dir: str | Path | None) -> SimulationResult:
        run = Run(setup, seed, None if state_dir is None else Path(state_dir))
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

    def serdes_of(self, store: Any) -> tuple[AnySerde, AnySerde]:
        """The serdes of a store's keys and values."""
        return (
            store.key or self._config.default_key_serde,
            store.value or self._config.default_value_serde,
        )

    def output_topics(self) -> list[str]:
        """The topics outside of the application that it writes, as far as they are known."""
        return sorted({topic for plan in self.plans for topic in plan.sinks})

    def differences(
        self, where: str, mine: Mapping[str, list[Any]], theirs: Mapping[str, list[Any]]
    ) -> list[str]:
        """What differs between the values by key of a run, and of the one without faults."""
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
    """Run a topology's workers on a cluster that fails, on a clock of its own.

    The workers are those that run live, down to the calls of the Kafka client. The seed decides
    which calls fail and how, who is killed or left standing, and who goes on meanwhile; the same
    seed does the same again.

    Args:
        topology: what ``StreamsBuilder().build()`` returned.
        inputs: keys and values of each input topic, in this order. Those of global tables are
            there before the first worker starts: what a record finds in one depends on when it is
            read, and otherwise there would be no result to compare with.
        seed: decides everything that is left to chance.
        settings: the application's own, over `headrace.streams.simulation.api.DEFAULTS`.
        workers: how many there are.
        partitions: partition count of the topics that the application does not make itself: for
            all, or by name with 1 for the others.
        faults: how much goes wrong.
        state_dir: keep local state in RocksDB there; None keeps it in memory.

    Example:
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


def _folded(cluster: Cluster, place: TopicPartition) -> dict[bytes, tuple[int, bytes]]:
    """The last committed timestamp and value of each key of a changelog."""
    rows: dict[bytes, tuple[int, bytes]] = {}
    for message in cluster.log(place).records():
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
    """The rows that are not so old that they are gone for every reader."""
    time_of = spec.rows.time_of
    if time_of is None or spec.retention_ms is None or not rows:
        return rows
    horizon = max(timestamp for timestamp, _ in rows.values()) - spec.retention_ms
    return {key: row for key, row in rows.items() if time_of(key) > horizon}


def _by_key(rows: Sequence[tuple[Any, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for key, value in rows:
        found.setdefault(repr(key), []).append(value)
    return found


def _pairs(rows: Sequence[SinkRow]) -> list[tuple[Any, Any]]:
    return [(row.key, row.value) for row in rows]


def _shortened(values: list[Any]) -> str:
    return repr(values) if len(values) <= 12 else f"{len(values)} values, ...{values[-6:]!r}"
