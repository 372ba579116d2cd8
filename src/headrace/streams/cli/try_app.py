"""The command `headrace try`: an application on an in-memory cluster, with files as topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
    """
    with cli_errors():
        from headrace.streams.testing.driver import TopologyTestDriver

        app = load(target, settings, needs_cluster=False)
        driver = TopologyTestDriver(
            app.topology,
            app.settings,
            partitions=partitions,
            now=round(time.time() * 1000),
            commit="each_record" if each else "manual",
        )
        with driver:
            trial = Trial(driver)
            trial.check(inputs)
            trial.fill(inputs)
            trial.run()
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

    def fill(self, inputs: Iterable[InputFile]) -> None:
        for input_file in inputs:
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
                        timestamp=record.timestamp,
                        headers=record.headers,
                        partition=record.partition,
                    )
                    where = f"{input_file.file}, line {record.line}"
                    at = (input_file.topic, tp[0].partition, tp[1])
                    self._locations[at] = where
                    self._lines_of_time.setdefault(self._time_of(*at), []).append(where)

    def run(self) -> None:
        try:
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
