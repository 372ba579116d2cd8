"""The whole group is deleted, with a repartition topic in between, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.streams.cli.check import _compare
from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of
from headrace.streams.tasks.lost_offsets import StateWithoutOffsetsError
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics

WORDS = 7


def counted(topics: Topics) -> tuple[Topology, str, str]:
    source, out = topics.create("in", partitions=2), topics.create("out")
    builder = StreamsBuilder()
    lines = builder.stream(source, key=serdes.string, value=serdes.string)
    words = lines.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    words.count(store="n").to_stream().to(out)
    return builder.build(), source, out


def counts(topics: Topics, out: str) -> dict[str, int]:
    records = kafka.read(topics.bootstrap, out)
    return {(r.key or b"").decode(): int.from_bytes(r.value or b"", "big") for r in records}


def write(topics: Topics, source: str, count: int) -> None:
    rows = [(f"k{number}".encode(), f"w{number % WORDS}".encode()) for number in range(count)]
    kafka.write(topics.bootstrap, source, rows)


def refused(topology: Topology, settings: dict[str, object]) -> str:
    error = Live(topology, settings).failure()
    assert isinstance(error, StateWithoutOffsetsError)
    assert exit_code_of(error) is ExitCode.OFFSETS
    return str(error)


def test_a_group_that_was_deleted_is_refused_until_all_of_it_is_set(
    topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topology, source, out = counted(topics)
    settings = settings_of(topics, tmp_path)
    group = settings["application.id"]
    between = f"{group}-by-word-repartition"
    admin = GroupAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=30)
    write(topics, source, 300)
    with live(topology, settings) as app:
        app.wait_processed(600)
    before = admin.committed(group, decided=True)
    assert {tp.topic for tp in before} == {source, between}
    ends = kafka.ends(topics.bootstrap, between)

    def deleted() -> bool:
        try:
            admin.delete_groups([group])
        except FatalClientError:  # the member is still leaving
            return False
        return True

    wait_until(deleted, what="the group is deleted")
    message = refused(topology, settings)
    assert f"no committed offsets for {between}-0..1, {source}-0..1:" in message
    assert admin.committed(group, decided=True) == {}
    assert kafka.ends(topics.bootstrap, between) == ends
    assert _compare(Live(topology, settings).app) == 1
    assert "Refused: the application" in capsys.readouterr().out

    def set_again(topic: str) -> None:
        bare = {p: CommittedOffset(c.offset) for p, c in before.items() if p.topic == topic}
        admin.set_offsets(group, bare)

    set_again(between)
    message = refused(topology, settings)
    assert f"no committed offsets for {source}-0..1:" in message
    assert kafka.ends(topics.bootstrap, between) == ends
    assert TopicPartition(source, 0) not in admin.committed(group, decided=True)

    set_again(source)
    write(topics, source, 3 * WORDS)
    with live(topology, settings) as app:
        app.wait_processed(6 * WORDS)
    expected = [300 // WORDS + (number < 300 % WORDS) + 3 for number in range(WORDS)]
    assert counts(topics, out) == {f"w{number}": count for number, count in enumerate(expected)}


def test_at_least_once_tells_of_a_deleted_group_before_the_start_and_how_to_go_around_it(
    topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topology, source, out = counted(topics)
    settings = {**settings_of(topics, tmp_path), "processing.guarantee": "at_least_once"}
    group = str(settings["application.id"])
    admin = GroupAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=30)
    write(topics, source, 300)
    with live(topology, settings) as app:
        app.wait_processed(600)
    before = counts(topics, out)

    def deleted() -> bool:
        try:
            admin.delete_groups([group])
        except FatalClientError:  # the member is still leaving
            return False
        return True

    wait_until(deleted, what="the group is deleted")
    assert _compare(Live(topology, settings).app) == 0
    told = capsys.readouterr().out
    options = f"--topic {group}-by-word-repartition --topic {source}"
    assert f"headrace offsets set MODULE:APP {options} --to end" in told
    assert "Note: records_counted_twice: the group " in told
    last = "can be started, but see the notes.\n"
    assert told.endswith(f"{last}The code of functions is not compared.\n")

    ends = {t: kafka.ends(topics.bootstrap, t) for t in (f"{group}-by-word-repartition", source)}
    tps = {TopicPartition(t, p): end for t, some in ends.items() for p, end in some.items()}
    admin.set_offsets(group, {tp: CommittedOffset(end) for tp, end in tps.items()})
    write(topics, source, WORDS)
    with live(topology, settings) as app:
        app.wait_processed(2 * WORDS)
    assert counts(topics, out) == {word: count + 1 for word, count in before.items()}
