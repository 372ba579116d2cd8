"""Which versions may run at once: real topologies, compared with a group that a test makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.endpoints import with_version
from headrace.streams.errors import FatalClientError, StopRequestedError, VersionConflictError
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupState,
    Member,
    Offsets,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.plan.deployed import DeployedTopology, delete_description
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.live_versions import (
    DESCRIBED_S,
    UNKNOWN_MORE_S,
    WAIT_MORE_S,
    LiveVersions,
)
from headrace.streams.plan.ownership import TopicOwnership
from headrace.streams.plan.plan import plan_application
from headrace.streams.plan.topic_plan import TopicPlan
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.topology import Materialized, MemorySink, StreamsBuilder, serdes

Write = Callable[[StreamsBuilder], Any]
GIVEN = {"application.id": "app", "bootstrap.servers": "localhost:1"}
SESSION_S = 10.0


def _stream(builder: StreamsBuilder, *topics: str) -> Any:
    return builder.stream(list(topics), key=serdes.string, value=serdes.string)


def through(*topics: str, apart: Sequence[str] = ()) -> Write:
    def write(builder: StreamsBuilder) -> None:
        _stream(builder, *topics).to("out")
        for topic in apart:
            _stream(builder, topic).to("out")

    return write


def joined(table: str) -> Write:
    def write(builder: StreamsBuilder) -> None:
        rows = builder.table(table, key=serdes.string, value=serdes.string, store="rows")
        _stream(builder, "orders").left_join(rows, lambda order, _: order).to("out")

    return write


def counted(*topics: str, again: str | None = None, **options: Any) -> Write:
    def write(builder: StreamsBuilder) -> None:
        stream = _stream(builder, *topics)
        stream = stream if again is None else stream.repartition(name=again)
        stream.group_by_key().count(store=Materialized("counts", **options))

    return write


def sunk(topic: str) -> Write:
    return lambda builder: _stream(builder, topic).to_sink(MemorySink(), name="rows", direct=True)


@dataclass
class Cluster:
    """A group, its description, and topics of two partitions."""

    members: dict[str, str] = field(default_factory=dict)
    """The client.id of each member."""
    given: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The topics that it was assigned."""
    kept: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    state: str = "stable"

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        assert (group, decided) == ("app.topology", False)
        return dict(self.kept)

    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        return {}

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        assert group == "app.topology"
        self.kept.update(offsets)

    def group_state(self, group: str) -> GroupState:
        assert group == "app"
        return GroupState(
            self.state,
            {
                Member(name, client_id, "/h"): tuple(
                    TopicPartition(topic, 0) for topic in self.given.get(name, ())
                )
                for name, client_id in self.members.items()
            },
        )

    def describe(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        return {n: TopicDescription(n, self.partitions.get(n, 2), f"id-{n}", {}) for n in names}


class Worker:
    """A worker of a version, up to its first task."""

    def __init__(self, cluster: Cluster, name: str, write: Write, **settings: Any) -> None:
        builder = StreamsBuilder()
        write(builder)
        self.cluster, self.name = cluster, name
        self.config = config = StreamsConfig.parse(GIVEN | settings)
        plans = plan_application(builder.build(), config)
        self.clock, self.log = ManualClock(0), EventLog()
        self.is_stopping = False
        self.deployed = DeployedTopology(config, plans, cluster, self.log)
        self.versions = LiveVersions(
            config, plans, self.deployed, clock=self.clock, log=self.log,
            stopping=lambda: self.is_stopping,
        )  # fmt: skip

    @property
    def leads(self) -> list[str]:
        counts = {name: f.partitions for name, f in self.cluster.describe(self._topics()).items()}
        return sorted(plan.subscribed_topic(counts) for plan in self.versions.plans)

    def _topics(self) -> list[str]:
        return [topic for plan in self.versions.plans for topic in plan.topics.all_sources]

    def start(self, *, joins: bool = True) -> Worker:
        """Look, and join the group."""
        self.deployed.before = self.deployed.read()
        facts = self.cluster.describe(self._topics())
        self.versions.resolve(self.cluster, TopicPlan((), (), ()), facts)  # type: ignore[arg-type]
        self.versions.take(self.name)
        if joins:
            self.join()
        return self

    def join(self) -> None:
        self.cluster.members[self.name] = with_version("app-consumer", self.versions.version)
        self.cluster.given[self.name] = tuple(self.leads)

    def run(self) -> Worker:
        """Begin the first task, and describe what is deployed."""
        assert self.versions.may_begin()
        assert self.deployed.keep()
        return self

    def leave(self) -> None:
        del self.cluster.members[self.name]


def refusal(worker: Worker) -> str:
    with pytest.raises(VersionConflictError) as found:
        worker.start()
    return str(found.value)


ONE = through("orders")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ONE, through("orders", "products")),
        (ONE, joined("products")),
        (counted("orders"), counted("orders", "products")),
        (ONE, through("orders", apart=["products"])),
        (through("orders", apart=["products"]), ONE),
        (counted("orders"), through("orders")),
    ],
)
def test_what_keeps_the_subscribed_topic_may_run_at_once(before: Write, after: Write) -> None:
    cluster = Cluster()
    Worker(cluster, "a", before).start().run()
    new = [Worker(cluster, name, after).start().run() for name in ("b", "c")]
    assert all("orders" in one.leads for one in new)
    # One that comes back, and one of the next version after that.
    back = Worker(cluster, "e", before).start().run()
    assert back.leads == ["orders"] or "products" in back.leads
    assert Worker(cluster, "d", after).start().run().leads == new[0].leads


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (through("orders", "products"), ONE,
         "topic orders is assigned with orders here and with products there"),
        (through("orders", "products"), through("orders", apart=["products"]),
         "topic orders is assigned with orders here and with products there"),
        (counted("orders"), counted("orders", again="again"),
         "changelog app-counts-changelog is assigned with app-again-repartition here and with ord"),
        (counted("orders", again="again"), counted("orders", again="renamed"),
         "changelog app-counts-changelog is assigned with app-renamed-repartition here"),
        (counted("orders"), counted("orders", logged=False),
         "changelog app-counts-changelog is assigned with no changelog here"),
    ],
)  # fmt: skip
def test_what_two_would_own_is_refused(before: Write, after: Write, reason: str) -> None:
    cluster = Cluster()
    old = Worker(cluster, "a", before).start().run()
    said = refusal(Worker(cluster, "b", after))
    assert reason in said
    assert "1 live member of group app runs another version" in said
    assert said.endswith("Stop all workers, then start the new version")
    assert cluster.members.keys() == {"a"}
    old.leave()
    Worker(cluster, "b", after).start().run()


def test_a_way_back_keeps_the_subscribed_topic_that_is_deployed_then() -> None:
    cluster = Cluster()
    Worker(cluster, "a", through("orders", "products")).start().run().leave()
    new = Worker(cluster, "b", ONE).start().run()
    back = Worker(cluster, "a", through("orders", "products")).start().run()
    assert new.leads == back.leads == ["orders"]


def test_an_external_sink_has_one_owner() -> None:
    """Its positions are its own, whatever is assigned."""
    cluster = Cluster()
    Worker(cluster, "a", sunk("orders")).start().run()
    assert "external sink rows is assigned with products here" in refusal(
        Worker(cluster, "b", sunk("products"))
    )


def test_a_start_waits_until_the_sessions_of_killed_workers_have_ended() -> None:
    cluster = Cluster()
    old = Worker(cluster, "a", through("orders", "products")).start().run()
    new = Worker(cluster, "b", ONE)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        ManualClock.sleep(new.clock, seconds)
        if sum(waited) > SESSION_S:
            cluster.members.pop("a", None)

    new.clock.sleep = sleep  # type: ignore[method-assign]
    new.start().run()
    assert SESSION_S < sum(waited) < SESSION_S + WAIT_MORE_S
    assert [e["event"] for e in new.log.events] == ["start_waits_for_other_version"]
    assert old.name not in cluster.members


def test_a_start_waits_longer_for_a_member_without_a_description() -> None:
    """One that was stopped before it wrote its description, and takes long to close."""
    cluster = Cluster()
    Worker(cluster, "a", ONE).start().run()
    cluster.members["b"] = with_version("app-consumer", "0a1b2c3d")
    new = Worker(cluster, "c", ONE)
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        ManualClock.sleep(new.clock, seconds)
        if sum(waited) > SESSION_S + 2 * WAIT_MORE_S:
            cluster.members.pop("b", None)

    new.clock.sleep = sleep  # type: ignore[method-assign]
    new.start().run()
    assert sum(waited) > SESSION_S + 2 * WAIT_MORE_S


def test_a_start_that_waits_can_be_stopped() -> None:
    cluster = Cluster()
    Worker(cluster, "a", through("orders", "products")).start().run()
    new = Worker(cluster, "b", ONE)
    new.is_stopping = True
    with pytest.raises(StopRequestedError):
        new.start()


def test_of_two_that_start_at_the_same_moment_one_is_refused() -> None:
    cluster = Cluster()
    both = [
        Worker(cluster, name, write).start(joins=False)
        for name, write in (("a", ONE), ("b", through("orders", "products")))
    ]
    for one in both:
        one.join()
    smaller, larger = sorted(both, key=lambda one: one.versions.version)
    assert not smaller.versions.may_begin()
    assert not larger.versions.may_begin()  # the other one may run, and not be described yet
    larger.clock.pass_ms(int(1000 * DESCRIBED_S))
    with pytest.raises(VersionConflictError):
        larger.versions.may_begin()
    larger.leave()
    assert smaller.versions.may_begin()


def test_one_that_sees_a_described_conflict_gives_up_at_once() -> None:
    cluster = Cluster()
    both = [
        Worker(cluster, name, write).start(joins=False)
        for name, write in (("a", ONE), ("b", through("orders", "products")))
    ]
    smaller, larger = sorted(both, key=lambda one: one.versions.version)
    smaller.join()
    smaller.run()
    larger.join()
    with pytest.raises(VersionConflictError):
        larger.versions.may_begin()


def test_a_version_that_is_described_a_moment_later_may_run_beside_it() -> None:
    cluster = Cluster()
    Worker(cluster, "a", ONE).start().run()
    new = Worker(cluster, "b", through("orders", "products")).start()
    assert new.versions.may_begin()
    back = Worker(cluster, "c", ONE)
    back.clock.sleep = lambda seconds: new.deployed.keep()  # type: ignore[method-assign,assignment]
    back.start().run()


def test_a_worker_that_the_group_never_reports_is_started_again() -> None:
    worker = Worker(Cluster(), "a", ONE).start(joins=False)
    assert not worker.versions.may_begin()
    worker.clock.pass_ms(worker.config.task_timeout_ms + 1)
    with pytest.raises(FatalClientError, match="do not report this worker as a member"):
        worker.versions.may_begin()


def test_one_that_stays_is_not_waited_for_for_ever() -> None:
    cluster = Cluster()
    both = [
        Worker(cluster, name, write).start(joins=False)
        for name, write in (("a", ONE), ("b", through("orders", "products")))
    ]
    for one in both:
        one.join()
    smaller = min(both, key=lambda one: one.versions.version)
    assert not smaller.versions.may_begin()
    smaller.clock.pass_ms(int(1000 * (SESSION_S + WAIT_MORE_S + UNKNOWN_MORE_S)) + 1)
    with pytest.raises(VersionConflictError):
        smaller.versions.may_begin()


def test_nothing_begins_before_the_group_has_the_worker() -> None:
    worker = Worker(Cluster(), "a", ONE).start(joins=False)
    assert not worker.versions.may_begin()
    worker.join()
    assert worker.versions.may_begin()


def test_a_predecessor_of_another_version_is_waited_for() -> None:
    """The broker keeps the client.id of a member whose place is taken over."""
    cluster = Cluster()
    Worker(cluster, "a", ONE).start().run()
    Worker(cluster, "a", ONE).start().run()
    assert "the group still has the worker that had this worker.id before" in refusal(
        Worker(cluster, "a", joined("products"))
    )
    del cluster.members["a"]
    Worker(cluster, "a", joined("products")).start().run()


def test_a_version_that_nothing_describes_is_refused() -> None:
    cluster = Cluster(members={"x": with_version("app-consumer", "0123abcd")})
    assert "the partitions that they own are unknown" in refusal(Worker(cluster, "a", ONE))


def test_settings_that_live_workers_must_share() -> None:
    cluster = Cluster()
    Worker(cluster, "a", ONE, **{"processing.guarantee": "at_least_once"}).start().run()
    exact = Worker(cluster, "b", ONE, **{"processing.guarantee": "exactly_once_v2"})
    assert "processing.guarantee is exactly_once_v2 here and at_least_once there" in refusal(exact)


def test_partition_counts_may_take_the_subscribed_topic_away() -> None:
    cluster = Cluster()
    Worker(cluster, "a", ONE).start().run()
    cluster.partitions["products"] = 3
    assert "topic orders is assigned with products here" in refusal(
        Worker(cluster, "b", through("orders", "products"))
    )


def _of_older_release(cluster: Cluster, write: Write, *assigned: str) -> None:
    """A worker that reports no version, and what its release has kept of it."""
    old = Worker(cluster, "old", write)
    described = old.deployed.present
    assert described.subs == ()
    cluster.kept[TopicPartition("orders", 0)] = CommittedOffset(7, described.encode())
    cluster.members["old"] = "app-consumer"
    cluster.given["old"] = assigned


@pytest.mark.parametrize("write", [ONE, counted("orders"), joined("orders-of-old")])
def test_another_release_of_the_same_topology_may_run_beside_it(write: Write) -> None:
    cluster = Cluster()
    topics = Worker(cluster, "old", write).leads
    _of_older_release(cluster, write, *topics)
    Worker(cluster, "a", write).start().run()
    Worker(cluster, "b", write).start().run()


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (counted("orders", "products"), counted("orders"),
         "topic orders is assigned with orders here and with products there"),
        (through("orders", "products"), ONE,
         "topic orders is assigned with orders here and perhaps with products there"),
        (counted("orders"), counted("orders", again="again"),
         "changelog app-counts-changelog is assigned with app-again-repartition here"),
    ],
)  # fmt: skip
def test_a_conflicting_older_release_is_refused(before: Write, after: Write, reason: str) -> None:
    cluster = Cluster()
    _of_older_release(cluster, before, *Worker(cluster, "old", before).leads)
    assert reason in refusal(Worker(cluster, "a", after))


def test_one_more_topic_beside_an_older_release_keeps_its_subscribed_topic() -> None:
    cluster = Cluster()
    _of_older_release(cluster, counted("orders"), "orders")
    assert Worker(cluster, "a", counted("orders", "products")).start().run().leads == ["orders"]


def test_an_older_release_that_joins_later_stops_the_workers_that_are_there() -> None:
    cluster = Cluster()
    worker = Worker(cluster, "a", ONE).start().run()
    worker.versions.refuse_older()
    _of_older_release(cluster, through("orders", "products"), "products")
    cluster.state = "preparing rebalance"
    worker.versions.refuse_older()  # what it was assigned is not known yet
    cluster.state = "stable"
    with pytest.raises(VersionConflictError):
        worker.versions.refuse_older()


def test_a_large_description_keeps_what_decides_ownership() -> None:
    def write(builder: StreamsBuilder) -> None:
        lines = _stream(builder, "orders", "products").group_by_key()
        for number in range(150):
            lines.count(store=f"counts-of-{number:x}-{hash((number, 'name')) & 0xFFFF:x}")

    worker = Worker(Cluster(), "a", write).start().run()
    read = worker.deployed.read()
    assert read is not None
    assert TopicOwnership.of(read, "app").version == worker.versions.version


def test_an_older_release_reads_what_is_described_now() -> None:
    """It leaves out what it does not know."""
    worker = Worker(Cluster(), "a", counted("orders")).start().run()
    read = worker.deployed.read()
    assert read is not None
    older = replace(read, subs=(), settings=(), alongside=(), fresh=())
    assert Deployment.decode(older.encode()) == older
    assert (read.stores, read.topics) == (older.stores, older.topics)


def test_a_topic_that_is_new_has_no_offsets_to_lose() -> None:
    cluster = Cluster()
    Worker(cluster, "a", counted("orders")).start().run()
    worker = Worker(cluster, "b", counted("orders", "products")).start().run()
    read = worker.deployed.read()
    assert read is not None
    assert read.fresh == ("products",)


def test_the_descriptions_of_all_versions_are_deleted() -> None:
    """Each stands at the first input of its version; an older one must not come back."""
    cluster = Cluster()
    for write in (through("orders"), through("clicks")):
        worker = Worker(cluster, "a", write).start().run()
        worker.deployed.keep()
        del cluster.members["a"]
    assert len(cluster.kept) == 2
    delete_description("app", cluster)
    assert Worker(cluster, "b", through("orders")).deployed.read() is None
