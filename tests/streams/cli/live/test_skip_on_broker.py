"""`headrace skip` on a real broker: past a poison record, and past no other."""

from __future__ import annotations

import shlex
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from headrace.streams.cli.main import main
from headrace.streams.errors import RecordError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.progress import OffsetMetadata, left_out
from headrace.topology.serdes.partials import marked, write_count
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics

APP = """
from headrace import KafkaStreams, StreamsBuilder, serdes

def whole(_, line):
    if "p0ison" in line:
        raise ValueError(line)
    return line

builder = StreamsBuilder()
lines = builder.stream({lines!r}, key=serdes.string, value=serdes.string)
words = lines.map_values(whole, with_key=True).flat_map_values(str.split)
by_word = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
counts = by_word.count(store="counts").to_stream()
counts.to({counts!r})
app = KafkaStreams(builder.build(), {settings!r})
"""


class Counting:
    """A word count that stops at a line with "p0ison" in it."""

    def __init__(self, topics: Topics, directory: Path, guarantee: str) -> None:
        self.bootstrap = topics.bootstrap
        any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
        self.lines, self.counts = topics.create("lines", config=any_time), topics.create("counts")
        self.is_exact = guarantee == "exactly_once_v2"
        self.settings = settings_of(topics, directory, processing_guarantee=guarantee)
        text = APP.format(lines=self.lines, counts=self.counts, settings=self.settings)
        self.file = directory / f"app_{uuid.uuid4().hex}.py"
        self.file.write_text(text)
        made: dict[str, Any] = {}
        exec(text, made)  # the same application, to run it here
        self.app = made["app"]

    def write(self, *lines: str) -> None:
        kafka.write(self.bootstrap, self.lines, [(None, line.encode()) for line in lines])

    def partial_count(self, number: int) -> tuple[str, int, int]:
        """Write one to the repartition topic; returns its place."""
        topic = f"{self.settings['application.id']}-by-word-repartition"
        written: list[Any] = []
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(
            topic,
            write_count(number),
            b"a",
            0,
            headers=marked(None, "count"),
            on_delivery=lambda _, message: written.append(message.offset()),
        )
        assert producer.flush(PATIENCE_S) == 0
        return topic, 0, written[0]

    def failure(self) -> RecordError:
        error = Live(self.app.topology, self.settings).failure()
        assert isinstance(error, RecordError)
        return error

    def result(self) -> dict[str, int]:
        """The last count of each word, as the topic has it."""
        found = kafka.read(self.bootstrap, self.counts)
        return {(r.key or b"").decode(): int.from_bytes(r.value or b"") for r in found}

    def shows(self, **expected: int) -> bool:
        """Whether the counts are these; at-least-once may have counted more."""
        found = self.result()
        if self.is_exact:
            return found == expected
        return found.keys() == expected.keys() and all(found[w] >= n for w, n in expected.items())

    def skip(self, *arguments: str | int) -> Result:
        line = ["skip", *map(str, arguments)]
        return CliRunner().invoke(main, line, catch_exceptions=False)

    def skip_as_told(self, error: RecordError, *options: str) -> Result:
        """Run the very command that the message names."""
        told = str(error).rpartition("headrace ")[2].replace("MODULE:APP", f"{self.file}:app")
        return self.skip(*shlex.split(told)[1:], *options)

    def stands_at(self) -> tuple[int, list[int]]:
        admin = GroupAdmin(self.app.config.admin_config(), timeout_s=20)
        group = self.settings["application.id"]
        found = admin.committed(group, decided=True)[TopicPartition(self.lines, 0)]
        return found.offset, left_out(OffsetMetadata.decode(found.metadata).values)


@pytest.fixture(params=["exactly_once_v2", "at_least_once"])
def counting(request: pytest.FixtureRequest, topics: Topics, tmp_path: Path) -> Counting:
    return Counting(topics, tmp_path, request.param)


def test_the_command_of_the_message_leaves_out_a_record_of_the_year_2036(
    counting: Counting,
) -> None:
    """It is folded before the repartition topic, which refuses its time."""
    counting.write("a b")
    far_ms = 2_082_758_400_000
    kafka.write(counting.bootstrap, counting.lines, [(None, b"a b c")], timestamp=far_ms)
    counting.write("a d")
    error = counting.failure()
    assert (error.topic, error.first, error.offset) == (counting.lines, 1, 1), str(error)
    result = counting.skip_as_told(error, "--yes")
    assert result.exit_code == 0, result.output
    with live(counting.app.topology, counting.settings) as app:
        app.wait(lambda: counting.shows(a=2, b=1, d=1), what="all but the record of 2036")


def test_the_command_of_the_message_leaves_out_that_record_and_no_other(
    counting: Counting,
) -> None:
    """The good records of the batch are void with it; they are counted once all the same."""
    counting.write("a b", "a", "p0ison c4n4ry", "a c", "b")
    error = counting.failure()
    assert error.offset == 2
    done = counting.skip_as_told(error, "--yes")
    assert done.exit_code == 0, done.output
    assert "offset 2, timestamp 2023-11-14T22:13:20.002+00:00, key null, value 13 bytes" in (
        done.output
    )
    assert "c4n4ry" not in done.output
    offset, marked = counting.stands_at()
    assert (offset, marked) in [(3, []), (0, [2]), (1, [2])]
    with live(counting.app.topology, counting.settings) as app:
        app.wait(lambda: counting.shows(a=3, b=2, c=1), what="all others")
    assert counting.stands_at() == (5, [])


def test_one_record_after_the_other_is_left_out(counting: Counting) -> None:
    counting.write("a", "p0ison", "p0ison", "b", "p0ison")
    for offset in (1, 2, 4):
        error = counting.failure()
        assert error.offset == offset
        assert counting.skip_as_told(error, "--yes").exit_code == 0
    with live(counting.app.topology, counting.settings) as app:
        app.wait(lambda: counting.shows(a=1, b=1), what="the others")
        counting.write("a")
        app.wait(lambda: counting.shows(a=2, b=1), what="what comes after")
    assert counting.stands_at() == (6, [])


def test_at_the_record_itself_the_offset_is_set_behind_it(counting: Counting) -> None:
    counting.write("a")
    with live(counting.app.topology, counting.settings) as app:
        app.wait(lambda: counting.shows(a=1), what="the first")
    counting.write("p0ison")
    done = counting.skip_as_told(counting.failure(), "--yes")
    assert f"{counting.lines}-0  1 -> 2" in done.output
    assert counting.stands_at() == (2, [])
    counting.write("a")
    with live(counting.app.topology, counting.settings) as app:
        app.wait(lambda: counting.shows(a=2), what="what comes after")


def test_what_cannot_be_meant_is_refused(topics: Topics, tmp_path: Path) -> None:
    counting = Counting(topics, tmp_path, "exactly_once_v2")
    app = ("--app", f"{counting.file}:app")
    counting.write("a", "b")
    assert "has no usable offset of" in counting.skip(counting.lines, 0, 0, *app, "--yes").output
    with live(counting.app.topology, counting.settings) as running:
        running.wait(lambda: counting.result() == {"a": 1, "b": 1}, what="both")
        counting.write("c")
        running.wait(lambda: "c" in counting.result(), what="the third")
        done = counting.skip(counting.lines, 0, 3, *app, "--dry-run")
        assert "has no record at offset 3, and no later record exists" in done.output
        done = counting.skip(counting.lines, 0, 3, *app, "--yes")
        assert "stop all its workers" in done.output
        assert "has no record" not in done.output
        counting.write("p0ison")
        with pytest.raises(RecordError):
            running.wait(lambda: False, what="its end")
    for topic, partition, offset, error in (
        (counting.lines, 0, 2, "has already passed offset 2 of"),
        (counting.lines, 0, 4, "has no record at offset 4"),
        (counting.lines[:-1], 0, 3, "Did you mean"),
        (counting.lines, 1, 3, "and no 1"),
    ):
        done = counting.skip(topic, partition, offset, *app, "--yes")
        assert error in done.output
        assert done.exit_code == 1, error
    done = counting.skip(counting.lines, 0, 3, *app, "--dry-run", "--show")
    assert '"value":"p0ison"' in done.output
    assert "No operator of the application receives it." in done.output
    assert "Nothing was done (--dry-run)." in done.output
    assert "Run it again with --yes" in counting.skip(counting.lines, 0, 3, *app).output
    assert counting.stands_at() == (3, [])
    done = counting.skip(*counting.partial_count(7), *app, "--dry-run")
    assert "It is a partial aggregate of 'count', of 7 records, which are skipped with it." in (
        done.output
    )


def test_nothing_is_set_while_the_group_has_a_member(topics: Topics, tmp_path: Path) -> None:
    counting = Counting(topics, tmp_path, "exactly_once_v2")
    counting.write("a", "p0ison")
    error = counting.failure()
    before = counting.stands_at()
    member = kafka.reader(counting.bootstrap, **{"group.id": counting.settings["application.id"]})
    member.subscribe([counting.lines])
    wait_until(lambda: (member.poll(0.1), member.assignment())[1] != [], what="it has joined")
    done = counting.skip_as_told(error, "--yes")
    member.close()
    assert done.exit_code != 0
    assert "stop all its workers" in done.output
    assert counting.stands_at() == before
