"""An application does not start while a backfill is handed over to it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from headrace.streams.admin.backfill_gate import (
    TOPICS_MAX,
    BackfillGate,
    BackfillNote,
    NoteState,
    backfill_group,
    note_topics,
)
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import BackfillOpenError
from headrace.streams.kafka.acls import GroupDeniedError
from headrace.streams.kafka.group_offsets import MemberlessGroup
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.plan import plan_application
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of, is_crash
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.topics import Topics


class Kept:
    """A group's offsets, without a cluster."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.asked: list[TopicPartition] = []
        self.topics_max = 0

    def committed_at(
        self, group: str, tps: Iterable[TopicPartition], *, decided: bool, topics_max: int
    ) -> dict[TopicPartition, CommittedOffset]:
        self.asked, self.topics_max = list(tps), topics_max
        found = self.committed(group, decided=decided)
        return {tp: found[tp] for tp in self.asked if tp in found}

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        assert group == "app.backfill"
        assert not decided, "an open transaction would keep the application waiting"
        return {
            TopicPartition(f"t{i}", 0): CommittedOffset(0, text)
            for i, text in enumerate(self.texts)
        }


class Denied:
    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        raise GroupDeniedError("no")


def note(state: NoteState, *, index: int = 0) -> str:
    return BackfillNote(state, "bf-1", "0f", index, 2, "text").encode()


def gate(cluster: Any) -> BackfillGate:
    return BackfillGate("app", cluster, structlog.get_logger())


@pytest.mark.parametrize("texts", [(), ("",), ("{}",), (note("done"),), (note("dropped"),)])
def test_an_application_starts_where_nothing_is_open(texts: tuple[str, ...]) -> None:
    gate(Kept(*texts)).check()


@pytest.mark.parametrize(
    ("state", "way_out"),
    [
        ("open", "`headrace backfill ... --id bf-1`"),
        ("dropping", "finish the drop with `headrace backfill"),
    ],
)
def test_an_open_note_is_refused_with_the_way_out(state: NoteState, way_out: str) -> None:
    """Notes of earlier backfills, of other first inputs, do not hide it."""
    with pytest.raises(BackfillOpenError) as raised:
        gate(Kept(note("done"), note(state))).check()
    assert way_out in str(raised.value)
    assert "--drop --id bf-1" in str(raised.value)


def test_a_later_part_of_a_plan_says_nothing() -> None:
    """It is not written again when the plan is done."""
    gate(Kept(note("done"), note("open", index=1))).check()


def test_the_exit_code_is_its_own_and_nothing_starts_again() -> None:
    code = exit_code_of(BackfillOpenError("app", "bf-1"))
    assert code is ExitCode.BACKFILL
    assert not is_crash(code)


def test_without_the_right_to_look_the_application_starts_and_says_so() -> None:
    with capture_logs() as logs:
        gate(Denied()).check()
    assert [entry["event"] for entry in logs] == ["backfill_check_denied"]


def test_the_second_look_is_at_what_is_needed_in_any_case() -> None:
    """The topics of the program, and where the first look has found notes."""
    kept = Kept(note("done"))
    gated = gate(kept)
    gated.check()
    gated.check_at(["in", "app-n-changelog"])
    assert kept.asked == [
        TopicPartition("app-n-changelog", 0),
        TopicPartition("in", 0),
        TopicPartition("t0", 0),
    ]
    assert kept.topics_max == TOPICS_MAX
    kept.texts[0] = note("open")
    with pytest.raises(BackfillOpenError):
        gated.check_at(["in"])


def test_notes_of_this_program_and_of_what_is_deployed_are_looked_for() -> None:
    config = StreamsConfig.parse({"application.id": "app", "bootstrap.servers": "none:1"})
    now, before = (plan_application(topology(name), config) for name in ("now", "before"))
    found = note_topics(now, Deployment.of(before, config))
    assert found == {"now", "before", "app-n-changelog"}


def topology(source: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string, value=serdes.string).group_by_key().count(store="n")
    return builder.build()


def put(topics: Topics, application: str, topic: str, state: NoteState) -> None:
    """Write a note as a hand-over does."""
    settings = {"bootstrap.servers": topics.bootstrap}
    group = MemberlessGroup(settings, timeout_s=20, stopping=lambda: False)
    offset = CommittedOffset(0, note(state))
    group.set_offsets(backfill_group(application), {TopicPartition(topic, 0): offset})


def test_a_look_at_places_is_at_every_topic_where_there_are_few(topics: Topics) -> None:
    application, asked, other = topics.name("app"), topics.create("in"), topics.create("other")
    put(topics, application, other, "open")
    settings = {"bootstrap.servers": topics.bootstrap}
    cluster = MemberlessGroup(settings, timeout_s=20, stopping=lambda: False)
    group, tps = backfill_group(application), [TopicPartition(asked, 0)]
    found = cluster.committed_at(group, tps, decided=False, topics_max=10_000)
    assert found.keys() == {TopicPartition(other, 0)}
    assert cluster.committed_at(group, tps, decided=False, topics_max=1) == {}


def test_an_application_refuses_on_a_broker_before_it_makes_a_topic(
    topics: Topics, tmp_path: Path
) -> None:
    settings = settings_of(topics, tmp_path)
    source = topics.create("in")
    put(topics, settings["application.id"], source, "open")
    error = Live(topology(source), settings).failure()
    assert isinstance(error, BackfillOpenError)
    assert topics.partitions(f"{settings['application.id']}-n-changelog") == 0
    put(topics, settings["application.id"], source, "done")
    with live(topology(source), settings) as app:
        app.wait_running()


@pytest.mark.parametrize("of", ["this program", "another program"])
def test_a_hand_over_that_begins_while_a_worker_starts_is_seen_before_its_first_record(
    topics: Topics, tmp_path: Path, of: str
) -> None:
    """The note is written behind the first look, before the worker is in the group."""
    settings = settings_of(topics, tmp_path)
    source = topics.create("in")
    head = source if of == "this program" else topics.create("other")
    kafka.write(topics.bootstrap, source, [(b"k", b"v")])
    app = Live(topology(source), settings)
    original = app.app._memberless_group

    def group() -> Any:
        cluster = original()
        looked = cluster.committed

        def committed(name: str, *, decided: bool) -> Any:
            found = looked(name, decided=decided)
            if name == backfill_group(settings["application.id"]):
                put(topics, settings["application.id"], head, "open")
            return found

        cluster.committed = committed  # type: ignore[method-assign, assignment]
        return cluster

    app.app._memberless_group = group  # type: ignore[method-assign]
    assert isinstance(app.failure(), BackfillOpenError)
    assert app.processed == 0
    assert kafka.committed(topics.bootstrap, settings["application.id"], source) == {}
