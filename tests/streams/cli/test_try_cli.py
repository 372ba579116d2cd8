"""`headrace try`: whole applications on files, in one process."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.streams.cli.main import main

HEAD = """
from dataclasses import dataclass
from datetime import timedelta
from headrace import JoinWindows, KafkaStreams, StreamsBuilder, TimeWindows, serdes

builder = StreamsBuilder()
"""
TAIL = """
settings = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
app = KafkaStreams(builder.build(), settings)
"""
WORDS = """
(
    builder.stream("lines", value=serdes.string)
    .flat_map_values(str.split)
    .group_by(lambda _, word: word, key=serdes.string, name="by-word")
    .count(store="counts")
    .to_stream()
    .to("counts")
)
"""
ORDERS = """
@dataclass(frozen=True)
class Order:
    user: str
    amount: float

orders = builder.stream("orders", key=serdes.long, value=serdes.json_of(Order))
users = builder.table("users", key=serdes.string, value=serdes.json)
(
    orders.select_key(lambda _, order: order.user)
    .join(users, lambda order, user: {"amount": order.amount, "city": user["city"]},
          key=serdes.string, value=serdes.json_of(Order))
    .to("placed", key=serdes.string, value=serdes.json)
)
(
    orders.group_by_key().windowed_by(TimeWindows(size=timedelta(seconds=10)))
    .count().to_stream().to("per-window")
)
"""
FAILS = """
builder.stream("in", value=serdes.json).map_values(lambda v: 1 / v).to("out")
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def run(
        program: str, *arguments: str, text: str | None = None, tail: str = TAIL, **files: str
    ) -> Result:
        app = tmp_path / f"app_{uuid.uuid4().hex}.py"
        app.write_text(HEAD + program + tail)
        inputs = []
        for topic, lines in files.items():
            file = tmp_path / f"{topic}.jsonl"
            file.write_text(lines)
            inputs += ["--input", f"{topic}={file}"]
        command = ["try", f"{app}:app", *inputs, *arguments]
        return CliRunner().invoke(main, command, input=text, catch_exceptions=False)

    return run


def printed(done: Result) -> list[dict[str, Any]]:
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_words_of_standard_input_are_counted(run: Any) -> None:
    done = run(WORDS, "--input", "lines=-", text="to be or\nnot to be\n")
    assert {r["key"]: r["value"] for r in printed(done)} == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_each_update_is_printed_where_it_is_asked_for(run: Any) -> None:
    done = run(WORDS, "--each", lines="to be\nto do\n")
    counts = [r["value"] for r in printed(done) if r["key"] == "to"]
    assert counts == [1, 2]


def test_inputs_are_read_in_the_order_of_their_times(run: Any) -> None:
    """As the application reads topics that are full: the table's row of that time is found."""
    order = '{"key": 7, "value": {"user": "ann", "amount": 2.5}, "timestamp": 2000}\n'
    user = '{"key": "ann", "value": {"city": "Bern"}, "timestamp": 1000}\n'
    done = run(ORDERS, orders=order, users=user)
    found = {record["topic"]: record for record in printed(done)}
    assert found["placed"]["key"] == "ann"
    assert found["placed"]["value"] == {"amount": 2.5, "city": "Bern"}
    assert found["placed"]["timestamp"] == 2000
    window = {"start_ms": 0, "end_ms": 10_000}
    assert found["per-window"]["key"] == {"key": 7, "window": window}


def test_one_output_is_printed_as_it_can_be_read_again(run: Any) -> None:
    order = '{"key": 7, "value": {"user": "ann", "amount": 2.5}, "timestamp": 2000}\n'
    done = run(ORDERS, "--show", "per-window", "--partitions", "1", orders=order)
    (record,) = printed(done)
    assert set(record) == {"key", "value", "timestamp", "partition"}
    assert record["partition"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "an input is required: --input in=FILE"),
        (["--input", "in"], "'in' is not TOPIC=FILE"),
        (["--input", "in=nowhere.jsonl"], "file nowhere.jsonl does not exist"),
        (["--input", "in=-", "--input", "in=-"], "standard input is allowed for a single topic"),
        (["--input", "inn=-"], "inn is not a topic that the application reads. Did you mean in?"),
        (
            ["--input", "in=-", "--show", "x"],
            "x is not a topic that the application wrote. Its topics are",
        ),
    ],
)
def test_what_was_written_wrong_is_said(run: Any, arguments: list[str], said: str) -> None:
    done = run(FAILS, *arguments, text="")
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_line_that_is_none_is_named_by_its_file_and_number(run: Any) -> None:
    done = run(FAILS, **{"in": "1\n{\n"})
    assert done.exit_code != 0
    assert "in.jsonl, line 2: is not JSON" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_partition_that_is_not_there_is_named(run: Any) -> None:
    done = run(FAILS, "--partitions", "2", **{"in": '{"value": 1, "partition": 2}\n'})
    assert "in.jsonl, line 1: partition 2 of 2. Set --partitions" in done.stderr


def test_a_record_that_fails_is_named_by_its_line(run: Any) -> None:
    done = run(FAILS, **{"in": "4\n\n2\n0\n1\n"})
    assert done.exit_code != 0
    assert "in.jsonl, line 4:" in done.stderr
    assert "KSTREAM-MAPVALUES" in done.stderr
    assert "Traceback" not in done.stderr
    assert "correct the code" in done.stderr
    assert "skip" not in done.stderr, "there is no cluster"


def test_what_is_left_out_is_said(run: Any) -> None:
    late = '{"key": 1, "value": {"user": "a", "amount": 1}, "timestamp": %d}\n'
    program = ORDERS.replace(
        "TimeWindows(size=timedelta(seconds=10))",
        "TimeWindows(size=timedelta(seconds=10), grace=timedelta(0))",
    )
    done = run(program, "--partitions", "1", orders=late % 100_000 + late % 5)
    assert done.exit_code == 0, done.output
    assert "Skipped in total: 1 at " in done.stderr


def test_topics_that_a_function_names_are_printed_too(run: Any) -> None:
    program = 'builder.stream("in", value=serdes.json).to(lambda k, v: f"to-{v}")\n'
    done = run(program, **{"in": "1\n2\n"})
    assert {r["topic"]: r["value"] for r in printed(done)} == {"to-1": 1, "to-2": 2}


SKIPS = """
from headrace import Continue

def skip(failure):
    return Continue((failure.dead_letter("letters"),))

settings = {"deserialization.exception.handler": skip, "processing.exception.handler": skip}
(
    builder.stream("in", value=serdes.long)
    .map_values(lambda v: 1 // v)
    .to("out", value=serdes.long)
)
"""


def test_what_handlers_skip_is_named_with_its_line_and_their_dead_letters_printed(run: Any) -> None:
    program = SKIPS.replace("settings = {", "more = {")
    tail_settings = TAIL.replace('"localhost:1"}', '"localhost:1", **more}')
    lines = '4\n0\n{"value": {"base64": "/w=="}}\n2\n'
    done = run(program, tail=tail_settings, **{"in": lines})
    found = printed(done)
    assert [r["value"] for r in found if r["topic"] == "out"] == [0, 0]
    assert len([r for r in found if r["topic"] == "letters"]) == 2
    assert "in.jsonl, line 2, at KSTREAM-MAPVALUES" in done.stderr
    assert "ZeroDivisionError in " in done.stderr
    assert "in.jsonl, line 3, at KSTREAM-SOURCE" in done.stderr
    assert "serde 'long' cannot decode 1 byte" in done.stderr


MOVED = """
(
    builder.stream("in", value=serdes.json)
    .select_key(lambda _, value: value["user"])
    .group_by_key(key=serdes.string)
    .aggregate(lambda: 0.0, lambda _, value, sum_: sum_ + 1 / value["n"], store="sums",
               value=serdes.double)
    .to_stream().to("out")
)
"""


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_record_that_fails_behind_a_repartition_is_named_by_its_line(
    run: Any, policy: str
) -> None:
    lines = "".join(f'{{"user": "u{n % 3}", "n": {n}}}\n' for n in (3, 2, 0, 1))
    done = run(MOVED, "--set", f"processing.exception.handler={policy}", **{"in": lines})
    assert (done.exit_code == 0) == (policy == "continue")
    assert "in.jsonl, line 3" in done.stderr
    assert "Traceback" not in done.stderr


JOINED = """
table = builder.table({table!r}, key=serdes.string, value=serdes.string, store="t")
stream = builder.stream("orders", key=serdes.string, value=serdes.string)
stream.left_join(table, "{{}} {{}}".format).to("out", value=serdes.string)
"""
IN_STAGES = """
words = builder.stream("words", key=serdes.string, value=serdes.string)
windows = TimeWindows(size=timedelta(seconds=10))
first = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
counts = first.windowed_by(windows, emit="on_window_close").count(store="counts").to_stream()
sizes = counts.group_by(lambda key, count: str(count), key=serdes.string, name="by-count")
(
    sizes.windowed_by(windows, emit="on_window_close").count(store="sizes")
    .to_stream().to("sizes")
)
"""
LINES = '{"key": "k", "value": "a", "timestamp": 1}\n{"key": "k", "value": "b", "timestamp": 2}\n'


@pytest.mark.parametrize("each", [(), ("--each",)])
@pytest.mark.parametrize("idle", ["-1", "0", "1000", "PT1H"])
def test_a_wait_for_other_inputs_withholds_no_record(
    run: Any, idle: str, each: tuple[str, ...]
) -> None:
    idle = "3600000" if idle == "PT1H" else idle
    row = '{"key": "a", "value": "y", "timestamp": 4}'
    order = '{"key": "a", "value": "x", "timestamp": 5}'
    setting = ("--set", f"max.task.idle.ms={idle}")
    done = run(JOINED.format(table="t"), *setting, *each, t=row, orders=order)
    assert [record["value"] for record in printed(done)] == ["x y"]


@pytest.mark.parametrize("table", ["users", "customers"])
def test_rows_of_tables_without_a_time_come_before_other_records(run: Any, table: str) -> None:
    lines = "".join(f'{{"key": "a", "value": "{n}"}}\n' for n in range(3))
    for files in ({table: lines, "orders": lines}, {"orders": lines, table: lines}):
        done = run(JOINED.format(table=table), "--each", **files)
        assert [record["value"] for record in printed(done)] == ["0 2", "1 2", "2 2"]


@pytest.mark.parametrize("names", [("one", "two"), ("two", "one")])
def test_lines_of_streams_without_a_time_alternate_in_the_order_of_the_options(
    run: Any, names: tuple[str, str]
) -> None:
    program = """
one = builder.stream("one", key=serdes.string, value=serdes.string)
one.merge(builder.stream("two", key=serdes.string, value=serdes.string)).to("out")
"""
    files = {
        name: "".join(f'{{"key": "a", "value": "{name}{n}"}}\n' for n in (1, 2)) for name in names
    }
    first, second = names
    found = [record["value"] for record in printed(run(program, "--partitions", "1", **files))]
    assert found == [f"{first}1", f"{second}1", f"{first}2", f"{second}2"]


def test_windows_that_are_still_open_are_named(run: Any) -> None:
    done = run(IN_STAGES, words=LINES)
    assert printed(done) == []
    assert "Not printed: results of KSTREAM-" in done.stderr
    assert "whose windows are still open" in done.stderr


@pytest.mark.parametrize("each", [(), ("--each",)])
@pytest.mark.parametrize("idle", ["0", "1000"])
def test_idle_windows_close_at_the_end_of_the_input(
    run: Any, idle: str, each: tuple[str, ...]
) -> None:
    """The windows of the second stage have records only after those of the first are closed."""
    settings = ("--set", "window.close.idle.ms=60000", "--set", f"max.task.idle.ms={idle}")
    done = run(IN_STAGES, *settings, *each, words=LINES)
    assert [(r["key"]["key"], r["value"]) for r in printed(done)] == [("1", 2)]
    assert "still open" not in done.stderr
