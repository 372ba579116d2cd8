"""Hand-overs to an application on a real broker: what is visible when, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.handover.drop import drop_backfill, drop_from
from headrace.spark_bridge.handover.handover import choose_handover
from headrace.spark_bridge.handover.notes import marker_group
from headrace.spark_bridge.handover.target import HandoverTarget
from headrace.spark_bridge.handover.units import RowSummary, units_of
from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.streams.admin.backfill_gate import backfill_group
from headrace.streams.errors import OutcomeUnknownError, TopologyChangedError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.plan.identity import changelog_numbers, committed_id, shown
from headrace.streams.plan.progress import OffsetMetadata
from headrace.topology import Materialized, StreamsBuilder, TimeWindows, Topology, serdes
from tests.spark_bridge.support.handed import START_MS, Handed
from tests.spark_bridge.support.local_rows import (
    LocalResults,
    Row,
    Work,
    batches_of,
    computed,
    plan_of,
)
from tests.spark_bridge.support.ways import (
    check_target,
    find,
    finish_partitioned,
    hand_over_by_driver,
    hand_over_partitioned,
    unit_writer,
)
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics

LINES = 60
RECORDS_A_LINE = 5
"""Itself, and one of the repartition topic for each of its words."""
WAYS = {"driver": hand_over_by_driver, "partitioned": hand_over_partitioned}
BOTH = pytest.mark.parametrize("how", WAYS)


@pytest.fixture
def handed(topics: Topics, tmp_path: Path) -> Handed:
    made = Handed(topics, tmp_path)
    made.write(LINES)
    return made


def hand_over(handed: Handed, how: str, backfill_id: str = "bf-1", **more: Any) -> Any:
    """Compute everything and hand it over."""
    local = handed.computed(handed.plan(backfill_id))
    return WAYS[how](local, handed.application, summary=local.local.summary(), **more)


def admin(topics: Topics) -> GroupAdmin:
    return GroupAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=30)


class Stopped(Exception):  # noqa: N818 - no error: a driver that is gone
    """Ends a hand-over in this process."""


def stop_at(wanted: str) -> Callable[[str], None]:
    def probe(step: str) -> None:
        if step == wanted:
            raise Stopped

    return probe


# -- what is visible when ----------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("guarantee", "cache"),
    [
        ("exactly_once_v2", 10 << 20),
        ("at_least_once", 0),
        pytest.param("exactly_once_v2", 0, marks=pytest.mark.long),
        pytest.param("at_least_once", 10 << 20, marks=pytest.mark.long),
    ],
)
def test_the_live_application_goes_on_at_the_next_record(
    topics: Topics, tmp_path: Path, how: str, guarantee: str, cache: int
) -> None:
    """Under either guarantee; nothing is the application's before all is."""
    more: dict[str, Any] = {"statestore_cache_max_bytes": cache}
    handed = Handed(topics, tmp_path, processing_guarantee=guarantee, **more)
    handed.write(LINES)
    seen = []

    def look(step: str) -> None:
        if step == "handover_written":
            assert handed.offsets() == {}
            if how == "driver":
                handed.check_empty()
            seen.append(step)

    report = hand_over(handed, how, probe=look)
    assert seen
    assert report.how == how
    assert report.counts.changelog == len(handed.words)
    assert report.counts.sink == sum(map(len, handed.outputs().values()))
    handed.check_recount()
    handed.go_on_live()


@BOTH
def test_offsets_are_handed_over_with_the_ids_of_their_topics(handed: Handed, how: str) -> None:
    """A source that is made anew before the first start is another one."""
    hand_over(handed, how)
    source = handed.source
    texts = kafka.committed_metadata(handed.bootstrap, handed.id, source)
    ids = {committed_id(source, OffsetMetadata.decode(text).values) for text in texts.values()}
    assert ids == {shown(admin(handed.topics).describe([source])[source].topic_id)}


@BOTH
def test_offsets_are_handed_over_with_the_numbers_of_their_changelogs(
    handed: Handed, how: str
) -> None:
    """One that is made anew before the first start is not taken for an empty one."""
    hand_over(handed, how)
    descriptions = admin(handed.topics).describe([handed.changelog])
    numbers = changelog_numbers({name: found.topic_id for name, found in descriptions.items()})
    assert len(numbers) == 1
    texts = kafka.committed_metadata(
        handed.bootstrap, handed.id, f"{handed.id}-by-word-repartition"
    )
    assert texts
    for text in texts.values():
        assert numbers.items() <= OffsetMetadata.decode(text).values.items()


def test_an_application_without_transactions_may_have_any_settings_of_its_producer(
    topics: Topics, tmp_path: Path
) -> None:
    """The hand-over's producers need others, and take them."""
    handed = Handed(topics, tmp_path)
    handed.settings |= {
        "processing.guarantee": "at_least_once",
        "producer.max.in.flight": 100,
        "producer.delivery.timeout.ms": 1_000,
    }
    handed.write(LINES)
    hand_over(handed, "driver")
    handed.check_recount()


@BOTH
def test_outputs_can_be_left_out(handed: Handed, how: str) -> None:
    hand_over(handed, how, outputs="skip")
    assert handed.outputs() == {}
    assert handed.state() == dict(handed.words)
    assert handed.offsets() == kafka.ends(handed.bootstrap, handed.source)


def test_the_markers_of_a_finished_hand_over_are_taken_away(handed: Handed) -> None:
    plan = handed.plan("bf-1")
    local = handed.computed(plan)
    hand_over_partitioned(local, handed.application, summary=local.local.summary())
    assert kafka.committed(handed.bootstrap, marker_group(plan), handed.source) == {}
    assert kafka.committed(handed.bootstrap, backfill_group(handed.id), handed.source)


class Merged(LocalResults):
    """Results of which Spark has put all units into one partition."""

    def run(self, work: Work, ddl: str) -> list[Row]:
        return [row for batch in work(self.batches()) for row in batch.to_pylist()]


class Mixed(LocalResults):
    """Results of which the rows of one unit are on both sides of another's."""

    def run(self, work: Work, ddl: str) -> list[Row]:
        batches = list(self.batches())
        return [row for batch in work(iter([*batches, batches[0]])) for row in batch.to_pylist()]


class Gone(LocalResults):
    """Results whose JVM ends in the middle."""

    def batches(self, largest: int | None = None) -> Iterator[Any]:
        yield from list(super().batches())[:3]
        raise EOFError("the JVM has gone")


def test_what_spark_cannot_bring_is_said_and_nothing_after_it_hides_that(
    handed: Handed, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = handed.plan("bf-1")
    local = handed.computed(plan)
    close = TransactionalProducer.close

    def close_and_fail(producer: TransactionalProducer) -> None:
        close(producer)
        raise ConnectionRefusedError("nobody is there")

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "close", close_and_fail)
        with pytest.raises(BackfillError, match=r"EOFError: the JVM has gone.*driver\.memory"):
            hand_over_by_driver(
                Gone(local.local, plan), handed.application, summary=local.local.summary()
            )
    assert handed.state() == {}
    assert handed.offsets() == {}
    assert HandoverTarget.live(handed.application).notes().open_head is None


def test_units_in_one_partition_of_spark_are_written_one_after_the_other(handed: Handed) -> None:
    """So Spark does it with topics of one partition."""
    local = handed.computed(handed.plan("bf-1"))
    merged: Any = Merged(local.local, local.plan)
    report = hand_over_partitioned(merged, handed.application, summary=local.local.summary())
    assert report.units == 4
    handed.check_recount()
    handed.go_on_live()


def test_units_that_are_mixed_are_refused(handed: Handed) -> None:
    """What came behind a unit that is committed would be lost."""
    local = handed.computed(handed.plan("bf-1"))
    mixed: Any = Mixed(local.local, local.plan)
    with pytest.raises(BackfillError, match="are mixed in a Spark partition"):
        hand_over_partitioned(mixed, handed.application, summary=local.local.summary())
    assert handed.offsets() == {}


# -- refusals ----------------------------------------------------------------------------------


@pytest.fixture
def joined(handed: Handed) -> Iterator[Callable[[], None]]:
    """Joins the application's group, as a worker would that does not look at the gate."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": handed.bootstrap, "group.id": handed.id}
    )

    def join() -> None:
        consumer.subscribe([handed.source])
        cluster = admin(handed.topics)

        def is_member() -> bool:
            consumer.poll(0.1)
            return bool(cluster.members(handed.id))

        wait_until(is_member, what="a member of the group")

    yield join
    consumer.close()


def test_a_group_with_a_member_is_refused_before_anything_is_written(
    handed: Handed, joined: Callable[[], None]
) -> None:
    plan = handed.plan("bf-1")
    check_target(handed.application, plan, reset=False)
    joined()
    with pytest.raises(CannotBackfillError, match="Stop all its workers"):
        check_target(handed.application, plan, reset=True)
    with pytest.raises(CannotBackfillError, match="Stop all its workers"):
        hand_over(handed, "driver")
    assert find(handed.application, "bf-1").plan is None
    handed.check_empty()


@BOTH
def test_a_member_that_joins_meanwhile_is_seen_right_before_the_offsets(
    handed: Handed, joined: Callable[[], None], how: str
) -> None:
    def probe(step: str) -> None:
        if step == "handover_written":
            joined()

    with pytest.raises(CannotBackfillError, match="Stop all its workers"):
        hand_over(handed, how, probe=probe)
    assert handed.offsets() == {}
    # One transaction leaves nothing; parts stay, and keep the application from starting.
    assert (find(handed.application, "bf-1").plan is None) == (how == "driver")
    if how == "driver":
        handed.check_empty()


def test_committed_offsets_and_rows_without_any_are_refused(handed: Handed) -> None:
    plan = handed.plan("bf-1")
    kafka.write(handed.bootstrap, handed.changelog, [(b"k", b"v")])
    with pytest.raises(
        CannotBackfillError, match=r"changelogs of application .* have rows.*reset=True"
    ):
        check_target(handed.application, plan, reset=False)
    kafka.set_committed(handed.bootstrap, handed.id, handed.source, {1: 3})
    with pytest.raises(CannotBackfillError, match=r"committed offsets .*reset=True"):
        hand_over(handed, "driver")
    check_target(handed.application, plan, reset=True)
    assert handed.outputs() == {}


def uncommitted(handed: Handed) -> list[kafka.Record]:
    return kafka.read(handed.bootstrap, handed.changelog, "read_uncommitted")


def test_what_an_aborted_attempt_left_in_a_changelog_is_no_row(handed: Handed) -> None:
    """Its records are there, and nobody reads them."""

    def stop_when_they_are_there(step: str) -> None:
        if step == "handover_written":
            wait_until(lambda: bool(uncommitted(handed)), what="rows that are sent come")
            raise Stopped

    with pytest.raises(Stopped):
        hand_over(handed, "driver", probe=stop_when_they_are_there)
    # For how long they are there is the broker's affair: their times are older than the marker
    # behind them, which begins another segment, so that they may be compacted at once.
    assert find(handed.application, "bf-1").plan is None
    hand_over(handed, "driver")
    handed.check_recount()


def test_versions_of_before_cannot_be_replaced_row_by_row(topics: Topics, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    source = topics.create("in")
    builder.table(
        source,
        key=serdes.string,
        value=serdes.string,
        store=Materialized("v", history=timedelta(days=1)),
    )
    settings = settings_of(topics, tmp_path)
    topology = builder.build()
    plan = plan_of(topology, settings, "bf-1")
    kafka.write(topics.bootstrap, f"{settings['application.id']}-v-changelog", [(b"k", b"v")])
    with pytest.raises(CannotBackfillError, match="with headrace reset"):
        check_target(CompiledApplication.of(topology, settings), plan, reset=True)


def test_a_sink_that_would_delete_the_records_is_refused_with_the_way_out(
    topics: Topics, tmp_path: Path
) -> None:
    handed = Handed(topics, tmp_path)
    handed.write(LINES)
    admin(topics).alter_config(handed.sink, {"retention.ms": "86400000"})
    with pytest.raises(CannotBackfillError) as raised:
        hand_over(handed, "partitioned")
    assert f"headrace topics set {handed.sink} retention.ms=-1" in str(raised.value)
    assert find(handed.application, "bf-1").plan is None
    hand_over(handed, "partitioned", outputs="skip")
    assert handed.state() == dict(handed.words)


def test_rows_that_take_too_long_for_one_transaction_are_refused(handed: Handed) -> None:
    local = handed.computed(handed.plan("bf-1"))
    summary = local.local.summary()
    for much in (replace(summary, rows=100_000_000), replace(summary, size=1 << 40)):
        with pytest.raises(CannotBackfillError, match="handover='partitioned'"):
            hand_over_by_driver(local, handed.application, summary=much)


def test_auto_looks_at_rows_at_bytes_and_at_what_is_replaced(handed: Handed) -> None:
    plan, target = handed.plan("bf-1"), HandoverTarget.live(handed.application)

    def way(summary: RowSummary, **more: Any) -> str:
        return choose_handover(plan, target, summary, **{"reset": False, **more})

    assert way(RowSummary(5_000_000, {}, 1 << 20)) == "driver"
    assert way(RowSummary(5_000_001, {}, 1 << 20)) == "partitioned"
    assert way(RowSummary(50_000, {}, 1 << 30)) == "partitioned"
    # What a heap of Spark's default size can hold besides all else.
    assert way(RowSummary(50_000, {}, 256 << 20)) == "driver"
    assert way(RowSummary(50_000, {}, 257 << 20)) == "partitioned"
    assert way(RowSummary(50_000, {}, 257 << 20), heap=4 << 30) == "driver"
    assert way(RowSummary(4_999_999), reset=True) == "driver"
    kafka.write(handed.bootstrap, handed.changelog, [(b"k", b"v")] * 2)
    assert way(RowSummary(4_999_999), reset=True) == "partitioned"
    assert way(RowSummary(4_999_999)) == "driver"


def test_transactions_of_rows_last_as_long_as_the_brokers_allow(handed: Handed) -> None:
    """However few rows there are: the user's own setting counts where it is larger."""
    plan = handed.plan("bf-1")
    with pytest.raises(Stopped):
        hand_over(handed, "partitioned", probe=stop_at("handover_opened"))

    def timeout_ms(application: CompiledApplication, allowed_ms: int | None) -> int:
        target = HandoverTarget.live(application)
        if allowed_ms is not None:
            target.admin.transaction_timeout_max_ms = lambda: allowed_ms  # type: ignore[method-assign]
        head = target.notes().open_head
        assert head is not None
        units = units_of(application, plan)
        writer = unit_writer(target, head, plan, units, reset=False)
        assert writer.timeout_s * 1000 == writer.producer["transaction.timeout.ms"]
        return int(writer.producer["transaction.timeout.ms"])

    assert timeout_ms(handed.application, None) == 900_000
    assert timeout_ms(handed.application, 3_600_000) == 3_600_000
    settings = {**handed.settings, "producer.transaction.timeout.ms": 1_800_000}
    own = CompiledApplication.of(handed.topology, settings)
    assert timeout_ms(own, 900_000) == 1_800_000
    assert timeout_ms(own, 3_600_000) == 3_600_000


# -- replacing what is there -------------------------------------------------------------------


@BOTH
def test_a_reset_replaces_rows_offsets_and_what_waits_between_sub_topologies(
    handed: Handed, how: str
) -> None:
    """Old keys get tombstones, also in the local state of the host; old records are not counted."""
    with live(handed.topology, handed.settings) as app:
        app.wait_processed(LINES * RECORDS_A_LINE)
    old = set(handed.state())
    ends = kafka.ends(handed.bootstrap, handed.source)
    admin(handed.topics).delete_records(
        {TopicPartition(handed.source, p): end for p, end in ends.items()}
    )
    kafka.write(handed.bootstrap, f"{handed.id}-by-word-repartition", [(b"waits", b"waits")])
    handed.words.clear()
    handed.write(LINES)
    report = hand_over(handed, how, reset=True)
    assert report.counts.tombstones == len(old - handed.words.keys()) > 0
    assert handed.state() == dict(handed.words)
    assert handed.offsets() == kafka.ends(handed.bootstrap, handed.source)
    repartition = f"{handed.id}-by-word-repartition"
    committed = kafka.committed(handed.bootstrap, handed.id, repartition)
    assert committed == kafka.ends(handed.bootstrap, repartition)
    handed.write(10, live=True)
    with live(handed.topology, handed.settings) as app:
        app.wait_processed(10 * RECORDS_A_LINE)
    assert handed.state() == dict(handed.words)


@pytest.mark.parametrize(
    ("how", "lost"), [("driver", None), ("driver", OutcomeUnknownError), ("partitioned", Stopped)]
)
def test_a_reset_lets_another_topology_start_with_what_it_was_given(
    handed: Handed, monkeypatch: pytest.MonkeyPatch, how: str, lost: type[Exception] | None
) -> None:
    """Where state would be lost the application refuses to start; here it is replaced.

    Also where the answer to the last commit is lost, or the driver ends before it comes.
    """
    with live(handed.topology, handed.settings) as app:
        app.wait_processed(LINES * RECORDS_A_LINE)
    builder = StreamsBuilder()
    (
        builder.stream(handed.source, key=serdes.string, value=serdes.string)
        .group_by_key()
        .count(store="by-key")
    )
    changed = builder.build()
    assert isinstance(Live(changed, handed.settings).failure(), TopologyChangedError)
    local: Any = computed(changed, handed.settings, plan_of(changed, handed.settings, "bf-1"))
    application = CompiledApplication.of(changed, handed.settings)
    commit, is_last = TransactionalProducer.commit, False

    def commit_and_lose(producer: TransactionalProducer) -> None:
        nonlocal is_last
        commit(producer)
        if is_last and lost is not None:
            is_last = False
            raise lost("planted")

    def probe(step: str) -> None:
        nonlocal is_last
        is_last = step == "handover_checked"

    monkeypatch.setattr(TransactionalProducer, "commit", commit_and_lose)
    dies = pytest.raises(Stopped) if lost is Stopped else nullcontext()
    with dies:
        WAYS[how](local, application, summary=local.local.summary(), reset=True, probe=probe)
    with live(changed, handed.settings) as app:
        app.wait_running()


# -- joins that go round in a circle ------------------------------------------------------------


@BOTH
def test_sub_topologies_that_write_to_each_other_are_handed_over_together(
    topics: Topics, tmp_path: Path, how: str
) -> None:
    """A join by foreign key: one unit has the tasks of both, with all their partitions."""
    builder = StreamsBuilder()
    orders, customers = topics.create("orders", partitions=2), topics.create("customers")
    sink = topics.create("joined", partitions=2)
    text: Any = {"key": serdes.string, "value": serdes.string}
    table = builder.table(orders, **text, store="orders")
    others = builder.table(customers, **text, store="customers")
    joined = table.join(
        others, foreign_key=lambda order: order.split(":")[0], joiner=lambda o, c: f"{o}={c}"
    )
    joined.to_stream().to(sink, **text)
    topology = builder.build()
    settings = settings_of(topics, tmp_path)
    kafka.write(topics.bootstrap, customers, [(b"c1", b"Ada"), (b"c2", b"Bob")])
    given = [(f"o{n}".encode(), f"c{1 + n % 2}:{n}".encode()) for n in range(20)]
    kafka.write(topics.bootstrap, orders, given, timestamp=START_MS)
    plan = plan_of(topology, settings, "bf-1")
    application = CompiledApplication.of(topology, settings)
    units = units_of(application, plan)
    assert any(len({sub for sub, _ in unit.tasks}) > 1 for unit in units)
    local: Any = computed(topology, settings, plan)
    WAYS[how](local, application, summary=local.local.summary())
    kafka.write(topics.bootstrap, customers, [(b"c1", b"Eve")])
    with live(topology, settings) as app:
        app.wait(lambda: len(kafka.read(topics.bootstrap, sink)) == 30, what="joined rows")
    last = {r.key: r.value for r in kafka.read(topics.bootstrap, sink)}
    names = {b"c1": b"Eve", b"c2": b"Bob"}
    assert last == {key: value + b"=" + names[value[:2]] for key, value in given}


# -- windows -----------------------------------------------------------------------------------


def test_old_windows_are_kept_until_the_live_application_has_them(
    topics: Topics, tmp_path: Path
) -> None:
    builder = StreamsBuilder()
    source = topics.create("in")
    (
        builder.stream(source, key=serdes.string, value=serdes.string)
        .group_by_key()
        .windowed_by(TimeWindows(size=timedelta(minutes=1)))
        .count(store="w")
    )
    topology: Topology = builder.build()
    settings = settings_of(topics, tmp_path)
    kafka.write(topics.bootstrap, source, [(b"k", b"v")] * 5, timestamp=START_MS)
    local: Any = computed(topology, settings, plan_of(topology, settings, "bf-1"))
    changelog = f"{settings['application.id']}-w-changelog"
    assert admin(topics).describe([changelog])[changelog].retention_ms != -1
    hand_over_by_driver(
        local, CompiledApplication.of(topology, settings), summary=local.local.summary()
    )
    assert admin(topics).describe([changelog])[changelog].retention_ms == -1
    kafka.write(topics.bootstrap, source, [(b"k", b"v")], timestamp=START_MS + 10)
    with live(topology, settings) as app:
        app.wait_processed(1)
    last = kafka.read(topics.bootstrap, changelog)[-1]
    assert last.value is not None
    assert serdes.long.deserialize(last.value) == 6


# -- one backfill at a time, and the way back ---------------------------------------------------


def test_another_backfill_is_refused_while_one_is_open(handed: Handed) -> None:
    with pytest.raises(Stopped):
        hand_over(handed, "partitioned", probe=stop_at("handover_written"))
    with pytest.raises(CannotBackfillError, match="--drop --id bf-1"):
        find(handed.application, "bf-2")
    with pytest.raises(CannotBackfillError, match="--drop --id bf-1"):
        hand_over(handed, "driver", "bf-2")
    # Nor may it go on otherwise than it was begun: parts with outputs are visible.
    with pytest.raises(CannotBackfillError, match="with another plan or other options"):
        hand_over(handed, "driver", "bf-1")
    plan = find(handed.application, "bf-1").plan
    assert plan is not None
    local = handed.computed(plan)
    with pytest.raises(CannotBackfillError, match="with another plan or other options"):
        hand_over_partitioned(
            local, handed.application, outputs="skip", summary=local.local.summary()
        )
    hand_over_partitioned(local, handed.application, summary=local.local.summary())
    handed.check_recount()


def test_each_attempt_commits_again_what_says_that_the_plan_is_open(
    handed: Handed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets expire by their age, and with them the gate and the markers of what is written."""
    plan = handed.plan("bf-1")
    units = units_of(handed.application, plan)

    def fail(step: str, unit: str) -> None:
        if unit == units[-1].name:
            raise ValueError("planted")

    with pytest.raises(BackfillError, match=r"cannot start before.*offsets\.retention\.minutes"):
        hand_over(handed, "partitioned", unit_probe=fail)
    notes = HandoverTarget.live(handed.application).notes().notes
    sent: list[Any] = []
    send = TransactionalProducer.send_offsets

    def listen(producer: TransactionalProducer, offsets: Any, metadata: Any) -> None:
        sent.append(dict(offsets))
        send(producer, offsets, metadata)

    monkeypatch.setattr(TransactionalProducer, "send_offsets", listen)
    hand_over(handed, "partitioned")
    assert [n.metadata for n in sent[0].values()] == [note.encode() for note in notes.values()]
    assert sent[0].keys() == notes.keys()
    assert sent[1].keys() == {place for unit in units[:-1] for place in unit.inputs}
    handed.check_recount()


def test_a_plan_is_not_gone_on_with_when_a_topic_was_made_again(handed: Handed) -> None:
    """Its markers vouch for rows that are gone; a drop begins anew."""

    def make_again() -> None:
        admin(handed.topics).delete_topics([handed.changelog])
        handed.topics.create_named(handed.changelog, partitions=2)

    def look(step: str) -> None:
        if step == "handover_written":
            make_again()

    again = rf"{handed.changelog} was deleted and created again.*--drop --id bf-1"
    plan = handed.plan("bf-1")
    with pytest.raises(CannotBackfillError, match=again):
        hand_over(handed, "partitioned", probe=look)
    assert handed.offsets() == {}
    with pytest.raises(CannotBackfillError, match=again):
        find(handed.application, "bf-1")
    with pytest.raises(CannotBackfillError, match=again):
        finish_partitioned(handed.application, plan)
    assert drop_backfill(handed.topology, handed.settings, id="bf-1").restarts
    local = handed.computed(handed.plan("bf-2"))
    make_again()
    with pytest.raises(CannotBackfillError, match="created again"):
        hand_over_by_driver(local, handed.application, summary=local.local.summary())
    assert find(handed.application, "bf-2").plan is None


def test_a_plan_is_not_gone_on_with_by_another_topology(handed: Handed) -> None:
    """It drops the plan, with what is written under names that it does not know."""
    with pytest.raises(Stopped):
        hand_over(handed, "partitioned", probe=stop_at("handover_written"))
    builder = StreamsBuilder()
    builder.stream(handed.source, key=serdes.string, value=serdes.string).to(handed.sink)
    other = builder.build()
    with pytest.raises(CannotBackfillError, match=r"another topology.*--drop --id bf-1"):
        find(CompiledApplication.of(other, handed.settings), "bf-1")
    assert find(handed.application, "bf-1").plan is not None
    report = drop_backfill(other, handed.settings, id="bf-1")
    assert report.restarts
    assert set(report.deleted) == {handed.changelog, f"{handed.id}-by-word-repartition"}
    with live(handed.topology, handed.settings) as app:
        app.wait_processed(LINES * RECORDS_A_LINE)
    assert handed.state() == dict(handed.words)


def test_an_id_is_used_once(handed: Handed) -> None:
    hand_over(handed, "driver")
    assert find(handed.application, "bf-1").is_done
    with pytest.raises(CannotBackfillError, match="another id"):
        hand_over(handed, "driver", reset=True)


def test_dropping_what_nobody_wrote_leaves_everything_as_it_was(handed: Handed) -> None:
    with pytest.raises(Stopped):
        hand_over(handed, "partitioned", probe=stop_at("handover_opened"))
    with pytest.raises(CannotBackfillError, match=r"bf-1 of .* is open"):
        drop_backfill(handed.topology, handed.settings, id="bf-2")
    report = drop_backfill(handed.topology, handed.settings, id="bf-1")
    assert not report.restarts
    assert report.deleted == ()
    with pytest.raises(BackfillError, match=r"not open \(dropped\): there is nothing to drop"):
        drop_backfill(handed.topology, handed.settings, id="bf-1")
    hand_over(handed, "partitioned")
    handed.check_recount()


def test_dropping_parts_lets_the_application_begin_anew(handed: Handed) -> None:
    """What is half written is deleted, and a writer that comes too late refuses."""
    plan = handed.plan("bf-1")
    local = handed.computed(plan)
    with pytest.raises(Stopped):
        hand_over_partitioned(
            local,
            handed.application,
            summary=local.local.summary(),
            probe=stop_at("handover_written"),
        )
    target = HandoverTarget.live(handed.application)
    head = target.notes().open_head
    assert head is not None
    units = units_of(handed.application, plan)
    late = unit_writer(target, head, plan, units, reset=False)
    report = drop_backfill(handed.topology, handed.settings, id="bf-1")
    assert report.restarts
    assert handed.changelog in report.deleted
    with pytest.raises(BackfillError, match="no longer open"):
        list(late(batches_of(local.local.of(units[-1]))))
    with live(handed.topology, handed.settings) as app:
        app.wait_processed(LINES * RECORDS_A_LINE)
    assert handed.state() == dict(handed.words)


def test_a_drop_that_was_interrupted_is_done_again(handed: Handed) -> None:
    with pytest.raises(Stopped):
        hand_over(handed, "partitioned", probe=stop_at("handover_written"))
    application = handed.application
    for step in ("drop_noted", "drop_deleted"):
        with pytest.raises(Stopped):
            drop_from(HandoverTarget.live(application), application, "bf-1", probe=stop_at(step))
        with pytest.raises(CannotBackfillError, match="being dropped"):
            find(application, "bf-1")
    assert drop_backfill(handed.topology, handed.settings, id="bf-1").restarts
    hand_over(handed, "driver")
    assert handed.state() == dict(handed.words)
