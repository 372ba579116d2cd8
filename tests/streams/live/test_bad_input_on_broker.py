"""A record that cannot be processed stops the application; put right, it goes on exactly there."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog

from headrace.streams.errors import RecordError, StreamsError
from headrace.streams.kafka.admin import LiveAdmin
from headrace.topology import KStream, Materialized, StreamsBuilder, Topology, serdes
from tests.support import kafka, oracle
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once_v2", "at_least_once"
KEYS = (b"a", b"b", b"c")
SECRET = "SECRET"
BAD_OFFSET = 5
RECORDS = 10

TOLERANT = serdes.serde_from(
    name="tolerant",
    serialize=str.encode,
    deserialize=lambda data: data.decode(errors="replace"),
    immutable=True,
)

Bytes = tuple["bytes | None", "bytes | None"]
Stream = KStream[Any, Any]
Values = dict["bytes | None", list["bytes | None"]]


def good(offset: int) -> Bytes:
    return KEYS[offset % 3], b"v%d" % offset


def refuse(value: str) -> str:
    if SECRET in value:
        raise KeyError(value)
    return value


def instead(other: Any) -> Callable[[str], Any]:
    """Replace the secret value by another one."""
    return lambda value: other if SECRET in value else value


def counted(stream: Stream) -> Stream:
    rows = stream.group_by_key().count(store="rows", name="step")
    return rows.map_values(str).to_stream()


def kept(other: Any, **config: str) -> Callable[[Stream], Stream]:
    """The last value of each key goes into a store, and the stream goes on beside it."""

    def steps(stream: Stream) -> Stream:
        stream.group_by_key().aggregate(
            str,
            lambda _, value, __: instead(other)(value),
            store=Materialized("rows", topic_config=config),
            value=serdes.string,
            name="fold",
        )
        return stream

    return steps


@dataclass(frozen=True)
class Case:
    """What is wrong, and what the error must say.

    Args:
        bad: the record.
        steps: between the source "read" and the sink "write".
        message: a part of the error's message.
        node: that the error names.
        store: that the error names.
        exact: whether the error knows the record, and not only a range.
        repartitions: whether the output may be behind what is committed of the input.
        counts: whether counts come out, instead of the values.
        settings: further ones.
        output: configs of the output topic.
    """

    bad: Bytes
    steps: Callable[[Stream], Stream]
    message: str
    node: str | None = None
    store: str | None = None
    exact: bool = True
    counts: bool = False
    repartitions: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    output: Mapping[str, str] = field(default_factory=dict)


SECRET_VALUE: Bytes = (b"a", SECRET.encode())
CASES = {
    "a value that cannot be decoded": Case(
        (b"a", b"\xff" + SECRET.encode()),
        counted,
        "serde 'string' cannot decode 7 bytes",
        node="read",
        counts=True,
    ),
    "a key that cannot be decoded": Case(
        (b"\xff" + SECRET.encode(), b"v"),
        counted,
        "serde 'string' cannot decode 7 bytes",
        node="read",
        counts=True,
    ),
    "a null key in front of a fold": Case(
        (None, SECRET.encode()),
        counted,
        "the key is null, and 'step' requires a key, because the rows of store 'rows' have keys",
        node="step",
        store="rows",
        counts=True,
    ),
    "a null key in front of a repartition": Case(
        SECRET_VALUE,
        lambda s: (
            s.group_by(lambda k, v: None if SECRET in v else k, key=serdes.string, name="again")
            .reduce(lambda _, value: value, store="rows")
            .to_stream()
        ),
        "the key is null",
        node="again-repartition-filter",
        repartitions=True,
    ),
    "a null key in a table": Case(
        (None, SECRET.encode()),
        lambda s: s.to_table(store="rows", name="step").to_stream(),
        "the key is null, and 'step' requires a key",
        node="step",
        store="rows",
    ),
    "a function that raises": Case(
        SECRET_VALUE,
        lambda s: counted(s.map_values(refuse, name="broken")),
        "a user function raised KeyError",
        node="broken",
        counts=True,
    ),
    "a value that the sink cannot encode": Case(
        SECRET_VALUE,
        lambda s: s.map_values(instead({SECRET})),
        "serde 'string' cannot encode a value of type set",
        node="write",
    ),
    "a row that cannot be encoded": Case(
        SECRET_VALUE,
        kept({SECRET}),
        "serde 'string' cannot encode a value of type set",
        node="fold",
        store="rows",
    ),
    "a row that is too large for the changelog": Case(
        SECRET_VALUE,
        kept(SECRET * 1_000, **{"max.message.bytes": "1000"}),
        "a record of 6000 bytes is larger than the max.message.bytes of 1000 of",
        store="rows",
        exact=False,
    ),
    "a row that is too large by what surrounds it": Case(
        SECRET_VALUE,
        kept((SECRET * 200)[:995], **{"max.message.bytes": "1000"}),
        "larger than the max.message.bytes of 1000 of",
        store="rows",
        exact=False,
        settings={"producer.compression.type": "none"},
    ),
    "an output that is too large for the client": Case(
        SECRET_VALUE,
        lambda s: s.map_values(instead(SECRET * 1_000)),
        "a record of 6001 bytes is larger than",
        node="write",
        settings={"producer.message.max.bytes": 5_000, "producer.batch.size": 5_000},
    ),
    "an output that is too large for its topic": Case(
        SECRET_VALUE,
        lambda s: s.map_values(instead(SECRET * 1_000)),
        "larger than the max.message.bytes of 500 of",
        node="write",
        exact=False,
        settings={"producer.compression.type": "none"},
        output={"max.message.bytes": "500"},
    ),
    "an output without a key for a compacted topic": Case(
        SECRET_VALUE,
        lambda s: s.select_key(lambda k, v: None if SECRET in v else k),
        "rejects a record",
        node="write",
        exact=False,
        output={"cleanup.policy": "compact"},
    ),
}


class Bench:
    """An application with one bad record in its input."""

    def __init__(self, case: Case, guarantee: str, topics: Topics, directory: Path) -> None:
        self.case = case
        self.guarantee = guarantee
        self.bootstrap = topics.bootstrap
        self.input = topics.create("in")
        self.output = topics.create("out", config=case.output)
        self.settings = {
            **settings_of(topics, directory, processing_guarantee=guarantee, max_poll_records=2),
            **case.settings,
        }
        self.records = [good(offset) for offset in range(RECORDS)]
        self.records.insert(BAD_OFFSET, case.bad)
        kafka.write(self.bootstrap, self.input, self.records)

    def topology(self) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream(self.input, key=serdes.string, value=serdes.string, name="read")
        self._write(self.case.steps(stream))
        return builder.build()

    def repaired(self) -> Topology:
        """The same steps behind a filter that leaves out the bad record."""
        builder = StreamsBuilder()
        stream = builder.stream(self.input, key=TOLERANT, value=TOLERANT, name="read")
        kept = stream.filter(lambda k, v: k is not None and SECRET not in k + v)
        self._write(self.case.steps(kept))
        return builder.build()

    def _write(self, stream: Stream) -> None:
        stream.to(self.output, key=serdes.string, value=serdes.string, name="write")

    def committed(self) -> int:
        found = kafka.committed(self.bootstrap, self.settings["application.id"], self.input)
        return found.get(0, 0)

    def outputs(self) -> Values:
        found: Values = defaultdict(list)
        for record in kafka.read(self.bootstrap, self.output):
            found[record.key].append(record.value)
        return dict(found)

    def expected(self, records: Iterable[Bytes]) -> Values:
        found: Values = defaultdict(list)
        for key, value in records:
            found[key].append(b"%d" % (len(found[key]) + 1) if self.case.counts else value)
        return dict(found)

    def is_complete(self) -> bool:
        """Under at-least-once there may be repeats, and what came of the bad record, before."""
        found = self.outputs()
        others = self.expected(record for record in self.records if record != self.case.bad)
        return all(_is_subsequence(values, found.get(key, ())) for key, values in others.items())

    def check(self, records: Iterable[Bytes]) -> None:
        """The output is that of these records: exactly, or at least once."""
        found, expected = self.outputs(), self.expected(records)
        if self.guarantee == EXACTLY_ONCE:
            assert found == expected
        else:
            assert found.keys() == expected.keys()
            for key, values in expected.items():
                assert _is_subsequence(values, found[key]), (key, found[key])


def _is_subsequence(values: Iterable[object], found: Iterable[object]) -> bool:
    rest = iter(found)
    return all(value in rest for value in values)


def check_error(error: Exception, bench: Bench) -> None:
    case = bench.case
    assert isinstance(error, RecordError)
    assert case.message in str(error)
    assert (error.topic, error.partition) == (bench.input, 0)
    assert (error.node, error.store, error.task_id) == (case.node, case.store, "0_0")
    if "raised" in case.message:
        assert error.function is not None
        assert error.function.endswith(" refuse")
        assert error.function in str(error)
    if error.first == error.offset:
        assert f"{bench.input}-0 offset {error.offset}" in str(error)
    else:
        assert f"{bench.input}-0 offsets {error.first} to {error.offset}" in str(error)
    if case.exact:
        assert error.first == error.offset == BAD_OFFSET
    else:
        offsets = rf"offsets? (\d+)(?: and (\d+))? of {bench.input}-0"
        found = re.search(offsets, str(error))
        assert found, str(error)
        assert int(found[1]) <= BAD_OFFSET <= int(found[2] or found[1]) == error.offset


# Where the guarantee makes no difference, one is enough.
AT_LEAST_ONCE_TOO = (
    "a function that raises",
    "a null key in front of a repartition",
    "a row that cannot be encoded",
    "a row that is too large by what surrounds it",
    "an output that is too large for its topic",
)


@pytest.mark.parametrize(
    ("guarantee", "name"),
    [
        *((EXACTLY_ONCE, name) for name in CASES),
        *((AT_LEAST_ONCE, name) for name in AT_LEAST_ONCE_TOO),
    ],
)
@pytest.mark.timeout(60)
def test_the_application_stops_at_a_bad_record_and_goes_on_exactly_there_when_it_is_put_right(
    name: str, guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    """Nothing at or past the record is committed; what was committed before it is kept."""
    bench = Bench(CASES[name], guarantee, topics, tmp_path)
    with structlog.testing.capture_logs() as events:
        error = Live(bench.topology(), bench.settings).failure()
    check_error(error, bench)
    assert events[-1]["event"] == "state_changed"
    assert SECRET not in str(error) + repr(events)
    committed = bench.committed()
    assert committed <= BAD_OFFSET
    if guarantee == EXACTLY_ONCE and not bench.case.repartitions:
        bench.check(bench.records[:committed])
    with live(bench.repaired(), bench.settings) as app:
        app.wait(bench.is_complete, what="all other records in the output")
    bench.check(record for record in bench.records if record != bench.case.bad)


def test_a_limit_that_is_lowered_while_running_is_reported_as_it_is_now(
    topics: Topics, tmp_path: Path
) -> None:
    source, sink = topics.create("in"), topics.create("out", config={"max.message.bytes": "5000"})
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string, value=serdes.string).to(sink)
    settings = settings_of(topics, tmp_path) | {"producer.compression.type": "none"}
    error = "larger than the max.message.bytes of 1000 of"
    app = Live(builder.build(), settings)
    app.app.start()
    kafka.write(topics.bootstrap, source, [(b"k", b"v" * 2_000)])
    app.wait_processed(1)
    admin = LiveAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=PATIENCE_S)
    admin.alter_config(sink, {"max.message.bytes": "1000"})
    kafka.write(topics.bootstrap, source, [(b"k", b"v" * 2_000)])
    with pytest.raises(StreamsError, match=error):
        app.wait(lambda: False, what="an error")


def test_a_limit_that_is_raised_while_running_is_used(topics: Topics, tmp_path: Path) -> None:
    source = topics.create("in", config={"max.message.bytes": "9000"})
    builder = StreamsBuilder()
    small = Materialized("rows", topic_config={"max.message.bytes": "1000"})
    builder.stream(source, key=serdes.string, value=serdes.string).to_table(store=small)
    settings = settings_of(topics, tmp_path) | {"producer.compression.type": "none"}
    with live(builder.build(), settings) as app:
        kafka.write(topics.bootstrap, source, [(b"k", b"v")])
        app.wait_processed(1)
        changelog = f"{settings['application.id']}-rows-changelog"
        admin = LiveAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=PATIENCE_S)
        admin.alter_config(changelog, {"max.message.bytes": "9000"})
        kafka.write(topics.bootstrap, source, [(b"k", b"v" * 2_000)])
        app.wait_processed(2)
        wait_until(lambda: len(kafka.read(topics.bootstrap, changelog)) == 2)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_records_that_fit_alone_are_not_refused_for_being_sent_together(
    guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    """A topic bounds batches, not records, and the client does not divide a refused batch."""
    source = topics.create("in")
    small = {"max.message.bytes": "1000"}
    sink = topics.create("out", config=small)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    stream.to_table(store=Materialized("rows", topic_config=small)).to_stream().to(sink)
    values = random.Random(0).randbytes(40 * 500).hex()
    records = [(b"%d" % i, values[i * 80 :][:80].encode()) for i in range(500)]
    kafka.write(topics.bootstrap, source, records)
    settings = settings_of(topics, tmp_path, processing_guarantee=guarantee)
    with live(builder.build(), settings | {"producer.compression.type": "none"}) as app:
        app.wait_processed(len(records))
    assert [(r.key, r.value) for r in kafka.read(topics.bootstrap, sink)] == records


@pytest.mark.parametrize("timestamp", [-5, -1])
def test_a_record_with_a_negative_timestamp_stops_the_application_until_it_is_passed_over(
    timestamp: int, topics: Topics, tmp_path: Path
) -> None:
    """Brokers take them, -1 for none; no filter sees them, so the group's offset must be moved."""
    source, sink = topics.create("in"), topics.create("out")
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string, name="read")
    stream.group_by_key().count(store="rows").to_stream().to(sink)
    kafka.write(topics.bootstrap, source, [(b"k", b"x")] * 2)
    kafka.write(topics.bootstrap, source, [(b"k", SECRET.encode())], timestamp=timestamp)
    kafka.write(topics.bootstrap, source, [(b"k", b"x")] * 2)
    settings = settings_of(topics, tmp_path, max_poll_records=1)
    error = Live(builder.build(), settings).failure()
    assert isinstance(error, RecordError)
    assert (error.node, error.offset, error.timestamp) == ("read", 2, timestamp)
    assert f"the timestamp {timestamp} is negative" in str(error)
    group = settings["application.id"]
    assert kafka.committed(topics.bootstrap, group, source) == {0: 2}
    kafka.set_committed(topics.bootstrap, group, source, {0: 3})
    with live(builder.build(), settings) as app:
        app.wait_processed(2)
    oracle.check_exact(kafka.read(topics.bootstrap, sink), {b"k": 4})


def test_null_keys_are_left_out_where_the_policy_says_so(topics: Topics, tmp_path: Path) -> None:
    """In front of a fold, of a repartition and of a table; whatever else there is goes on.

    The row b is deleted without ever having been there, so nothing is said of it.
    """
    source, rows = topics.create("in"), topics.create("rows")
    counts, others, changes = topics.create("out"), topics.create("out"), topics.create("out")
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    stream.group_by_key().count(store="counts").to_stream().to(counts)
    by_value = stream.group_by(
        lambda _, value: None if value == "none" else value, key=serdes.string, name="by-value"
    )
    by_value.count(store="others").to_stream().to(others)
    table = builder.table(rows, key=serdes.string, value=serdes.string, store="table")
    table.to_stream().to(changes)
    inputs = [(None, b"x"), (b"a", b"none"), (b"a", b"x"), (b"b", b"x")]
    kafka.write(topics.bootstrap, source, inputs)
    kafka.write(topics.bootstrap, rows, [(b"a", b"1"), (None, b"2"), (b"b", None), (b"c", b"3")])
    settings = settings_of(topics, tmp_path, null_key_policy="drop")
    with structlog.testing.capture_logs() as events, live(builder.build(), settings) as app:
        app.wait(lambda: len(kafka.read(topics.bootstrap, others)) == 3, what="others")
        app.wait(lambda: len(kafka.read(topics.bootstrap, changes)) == 2, what="changes")
    oracle.check_exact(kafka.read(topics.bootstrap, counts), {b"a": 2, b"b": 1})
    oracle.check_exact(kafka.read(topics.bootstrap, others), {b"x": 3})
    assert [(r.key, r.value) for r in kafka.read(topics.bootstrap, changes)] == [
        (b"a", b"1"), (b"c", b"3")
    ]  # fmt: skip
    group = settings["application.id"]
    assert kafka.committed(topics.bootstrap, group, source) == {0: 4}
    assert kafka.committed(topics.bootstrap, group, rows) == {0: 4}
    dropped = [e["reason"] for e in events if e["event"] == "records_dropped"]
    assert dropped == ["null key"] * 3
