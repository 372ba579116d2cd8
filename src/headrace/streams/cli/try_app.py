"""The command `headrace try`: an application on an in-memory cluster, with files as topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.streams.cli.known_topics import Known
from headrace.streams.cli.options import cli_errors, load, settings_option, target_argument
from headrace.streams.cli.record_lines import (
    STANDARD_INPUT,
    LineError,
    opened,
    read_records,
    record_line,
)
from headrace.streams.errors import RecordError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.topology import serdes

if TYPE_CHECKING:
    from headrace.streams.testing.driver import TopologyTestDriver

LINES_MAX = 3
"""Maximum number of candidate lines that are printed as a record's origin."""
SKIPPED_MAX = 10
"""Maximum number of skipped records that are listed individually."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """Input file of a topic."""

    topic: str
    file: str


def _parse_inputs(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> tuple[InputFile, ...]:
    found = []
    for text in texts:
        topic, equals, file = text.partition("=")
        if not topic or not equals or not file:
            raise click.BadParameter(f"{text!r} is not TOPIC=FILE.")
        if file != STANDARD_INPUT and not Path(file).is_file():
            raise click.BadParameter(f"file {file} does not exist.")
        found.append(InputFile(topic, file))
    if sum(input_file.file == STANDARD_INPUT for input_file in found) > 1:
        raise click.BadParameter("standard input is allowed for a single topic.")
    return tuple(found)


@click.command("try")
@target_argument
@click.option("--input", "inputs", multiple=True, metavar="TOPIC=FILE", callback=_parse_inputs,
              help="File of an input topic, or - for standard input; may be repeated.")  # fmt: skip
@click.option("--show", "shown", multiple=True, metavar="TOPIC",
              help="Output topic to print; may be repeated.  [default: all]")  # fmt: skip
@click.option("--each", is_flag=True, help="Commit each record, to print each update.")
@click.option("--partitions", type=click.IntRange(min=1),
              help="Partitions of each topic.  [default: 4 if keys are repartitioned]")  # fmt: skip
@settings_option
def try_app(
    target: str,
    inputs: tuple[InputFile, ...],
    shown: tuple[str, ...],
    *,
    each: bool,
    partitions: int | None,
    settings: dict[str, Any],
) -> None:
    """Run an application in this process on files, without Kafka.

    A line of a file is a value in JSON (or the text itself, if the topic contains text), or a
    whole record: {"key": "a", "value": {"price": 5}, "timestamp": 1700000000000}. As a key or a
    value, {"base64": "/w=="} stands for bytes that no serde has written. The output has the same
    form. The application reads all input from the beginning, and each key is printed once, unless
    --each is given.

    Records without a timestamp are read after each other: those of tables first, then the first
    line of each other file in the order of the options, then the second lines. No more records are
    awaited at the end: max.task.idle.ms does not delay records, and window.close.idle.ms closes
    windows.
    """
    with cli_errors():
        from headrace.streams.testing.driver import TopologyTestDriver

        app = load(target, settings, needs_cluster=False)
        now_ms = round(time.time() * 1000)
        driver = TopologyTestDriver(
            app.topology,
            # All input is there, so that a wait for more would never end.
            {**app.settings, "max.task.idle.ms": min(app.config.max_task_idle_ms, 0)},
            partitions=partitions,
            now=now_ms,
            commit="each_record" if each else "manual",
        )
        with driver:
            trial = Trial(driver)
            trial.check(inputs)
            trial.fill(inputs, Known.by(app).tables, now_ms)
            trial.run()
            trial.close_idle(app.config.window_close_idle_ms, rounds=len(app.plans) + 1)
            trial.check_shown(shown)
            for line in trial.outputs(shown):
                click.echo(line)
            for line in trial.summary():
                click.echo(line, err=True)


@dataclass(slots=True)
class Trial:
    """Run of an application over files."""

    driver: TopologyTestDriver
    _locations: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """File and line of each input record, by topic, partition and offset."""
    _lines_of_time: dict[int | None, list[str]] = field(default_factory=dict)
    """Files and lines by timestamp, which derived records inherit."""

    def check(self, inputs: Sequence[InputFile]) -> None:
        sources = self.driver.input_topics
        for input_file in inputs:
            _refuse_unknown(input_file.topic, sources, "reads")
        if not inputs:
            options = " ".join(f"--input {name}=FILE" for name in sources)
            raise click.UsageError(f"an input is required: {options}")

    def check_shown(self, shown: Sequence[str]) -> None:
        """Check that the application has written the topics; dynamic topics are known by now."""
        for topic in shown:
            _refuse_unknown(topic, self.driver.output_topics, "wrote")

    def fill(self, inputs: Iterable[InputFile], tables: AbstractSet[str], time_ms: int) -> None:
        """Write the records of the files; records without a timestamp start at `time_ms`."""
        of_tables = [one for one in inputs if one.topic in tables]
        others = [one for one in inputs if one.topic not in tables]
        for input_file in of_tables:
            time_ms = self._fill(input_file, time_ms, step_ms=1)
        for number, input_file in enumerate(others):
            self._fill(input_file, time_ms + number, step_ms=len(others))

    def _fill(self, input_file: InputFile, time_ms: int, *, step_ms: int) -> int:
        topic = self.driver.input(input_file.topic)
        count = len(self.driver.cluster.topics[input_file.topic].logs)
        with opened(input_file.file) as lines:
            for record in read_records(
                lines, input_file.file, key=topic.key_serde, value=topic.value_serde
            ):
                if record.partition is not None and record.partition >= count:
                    reason = f"partition {record.partition} of {count}. Set --partitions"
                    raise LineError(input_file.file, record.line, reason)
                tp = topic.append(
                    record.key,
                    record.value,
                    timestamp=time_ms if record.timestamp is None else record.timestamp,
                    headers=record.headers,
                    partition=record.partition,
                )
                time_ms += step_ms if record.timestamp is None else 0
                where = f"{input_file.file}, line {record.line}"
                at = (input_file.topic, tp[0].partition, tp[1])
                self._locations[at] = where
                self._lines_of_time.setdefault(self._time_of(*at), []).append(where)
        return time_ms

    def close_idle(self, idle_ms: int, *, rounds: int) -> None:
        """Let window.close.idle.ms pass once per sub-topology, as their windows close in turn."""
        for _ in range(rounds if idle_ms else 0):
            self.run(timedelta(milliseconds=idle_ms))

    def run(self, duration: timedelta = timedelta(0)) -> None:
        try:
            self.driver.advance(duration)
            self.driver.commit()
        except RecordError as error:
            error.told_for(None)
            where = self._where(error.topic, error.partition, error.offset)
            if where is not None:
                click.echo(f"At {where}:", err=True)
            raise

    def _where(self, topic: str, partition: int, offset: int) -> str | None:
        """Return file and line of a record, or of the input records that it may be derived from."""
        own = self._locations.get((topic, partition, offset))
        if own is not None:
            return own
        lines = self._lines_of_time.get(self._time_of(topic, partition, offset), [])
        return " or ".join(lines) if 0 < len(lines) <= LINES_MAX else None

    def _time_of(self, topic: str, partition: int, offset: int) -> int | None:
        log = self.driver.cluster.log(TopicPartition(topic, partition))
        found = log.read(offset, 1, committed=False)[0]
        return found[0].timestamp()[1] if found else None

    def outputs(self, shown: Sequence[str]) -> Iterator[str]:
        """Yield output records as lines; parts that a serde rejects are shown as bytes."""
        from headrace.topology.serdes.documents import decoded

        topics = shown or self.driver.output_topics
        for topic in topics:
            known = self.driver.output(topic)
            raw = self.driver.output(topic, key=serdes.bytes, value=serdes.bytes)
            for record in raw.read_all():
                yield record_line(
                    decoded(record.key, known.key_serde),
                    decoded(record.value, known.value_serde),
                    timestamp=record.timestamp,
                    partition=record.partition,
                    headers=record.headers or (),
                    more={"topic": topic} if len(topics) > 1 else None,
                )

    def summary(self) -> Iterator[str]:
        skipped = [e for e in self.driver.events if e["event"] == "record_skipped"]
        for event in skipped[:SKIPPED_MAX]:
            yield f"Skipped: {self._skip_text(event)}"
        for (node, reason), count in sorted(self.driver.dropped.items()):
            yield f"Skipped in total: {count} at {node} ({reason})"
        if waiting := self.driver.waiting:
            yield (
                f"Not printed: results of {', '.join(waiting)}, whose windows are still open. Add "
                "a record with a later timestamp, or --set window.close.idle.ms=1000."
            )

    def _skip_text(self, event: Mapping[str, Any]) -> str:
        tp = (event["topic"], event["partition"], event["offset"])
        where = self._where(*tp) or f"{tp[0]}-{tp[1]} offset {tp[2]}"
        why = event.get("reason") or f"{event['error']} in {event.get('function') or 'a serde'}"
        return f"{where}, at {event['node']}: {why}"


def _refuse_unknown(topic: str, known: Sequence[str], verb: str) -> None:
    if topic in known:
        return
    near = get_close_matches(topic, known, n=1)
    meant = f"Did you mean {near[0]}?" if near else f"Its topics are {', '.join(known)}."
    raise click.UsageError(f"{topic} is not a topic that the application {verb}. {meant}")
