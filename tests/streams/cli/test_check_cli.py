"""`headrace check`, which asks no cluster."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.streams.cli.main import main
from headrace.streams.supervisor.exit_codes import ExitCode

APP = """
from headrace.streams import KafkaStreams
from headrace.topology import StreamsBuilder

builder = StreamsBuilder()
builder.stream("lines").group_by_key().count({store}).to_stream().to("out")
app = KafkaStreams(builder.build(), {{"application.id": "a", "bootstrap.servers": "localhost:1"}})
"""


KEYS = """
from headrace.streams import KafkaStreams
from headrace.topology import StreamsBuilder, serdes

builder = StreamsBuilder()
orders = builder.stream("orders", key=serdes.string)
{steps}
app = KafkaStreams(builder.build(), {{"application.id": "a", "bootstrap.servers": "localhost:1"}})
"""


def _check(directory: Path, store: str, *arguments: str) -> Result:
    return _checked(directory, APP.format(store=store), *arguments)


def _checked(directory: Path, program: str, *arguments: str) -> Result:
    file = directory / f"app_{uuid.uuid4().hex}.py"
    file.write_text(program)
    return CliRunner().invoke(main, ["check", f"{file}:app", *arguments])


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--strict"], 1)])
def test_what_has_no_name_is_listed_and_fails_where_that_is_asked_for(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    done = _check(tmp_path, "", *arguments)
    assert done.exit_code == code
    first = done.output.splitlines()[0]
    assert first.startswith("store KSTREAM-AGGREGATE-STATE-STORE-0000000001")
    assert first.endswith('downstream of lines: write count(store="...")')
    assert "use the names that are printed here" in done.output


def test_what_writes_to_its_own_changelog_is_refused(tmp_path: Path) -> None:
    program = APP.format(store='store="counts"').replace('"out"', '"a-counts-changelog"')
    done = _checked(tmp_path, program)
    assert done.exit_code != 0
    assert "'a-counts-changelog', which is the changelog of store 'counts'" in done.output


def test_an_application_with_names_passes(tmp_path: Path) -> None:
    done = _check(tmp_path, 'store="counts"', "--strict")
    assert done.exit_code == 0, done.output
    assert "All stores and repartition topics are named" in done.output


FEWER = """
from datetime import timedelta
minute = timedelta(minutes=1)
fewer = orders.select_key(lambda key, order: order["id"]).deduplicate(within=minute{named})
fewer.sample(0.5).to("some", key=serdes.string)
"""


def test_of_steps_that_let_fewer_records_go_on_all_that_lacks_a_name_is_told(
    tmp_path: Path,
) -> None:
    done = _checked(tmp_path, KEYS.format(steps=FEWER.format(named="")), "--strict")
    assert done.exit_code == 1, done.output
    assert "at the step that writes them: key_serde=serdes.json, which they have now" in done.output
    for what, argument in (("store", "store"), ("repartition topic", "name")):
        (line,) = [one for one in done.output.splitlines() if one.startswith(f"{what} KSTREAM")]
        assert line.endswith(f'write deduplicate({argument}="...")')
    named = ', key_serde=serdes.string, store="seen", name="once"'
    done = _checked(tmp_path, KEYS.format(steps=FEWER.format(named=named)), "--strict")
    assert done.exit_code == 0, done.output


def test_wrong_settings_have_their_exit_code(tmp_path: Path) -> None:
    done = _check(tmp_path, "", "--set", "poll.ms=-1")
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "poll.ms (from --set) must be at least 0" in done.output


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--strict"], 1)])
def test_keys_whose_serde_nobody_named_are_told_of(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    change = "orders.select_key(lambda key, order: order['customer']).to('out')"
    done = _checked(tmp_path, KEYS.format(steps=change), *arguments)
    assert done.exit_code == code
    assert "written to out by KSTREAM-SINK-0000000002 with the default serde 'json'" in done.output
    assert "All stores and repartition topics are named" in done.output


def test_keys_that_may_not_meet_are_told_of_and_are_no_failure(tmp_path: Path) -> None:
    other = "builder.stream('b', key=serdes.json_of(list[str]))"
    merge = f"builder.stream('a').merge({other}).group_by_key().count(store='counts')"
    done = _checked(tmp_path, KEYS.format(steps=merge), "--strict")
    assert done.exit_code == 0, done.output
    assert "Equal keys match only if both serdes encode them equally" in done.output


@pytest.mark.parametrize("command", ["check", "run"])
def test_keys_that_would_never_meet_do_not_start(
    tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "app_that_never_meets.py"
    join = "orders.join(builder.table('customers'), max)"
    file.write_text(KEYS.format(steps=join))
    done = CliRunner().invoke(main, [command, f"{file}:app"])
    assert done.exit_code == ExitCode.CONFIGURATION
    said = done.output + capfd.readouterr().err
    assert "orders with serde 'string'" in said
    assert "customers with serde 'json' (the default)" in said


@pytest.mark.parametrize("rule", ["slowest", "fastest"])
def test_a_window_after_a_repartition_topic_is_noted_if_time_is_the_fastest(
    rule: str, tmp_path: Path
) -> None:
    file = tmp_path / f"app_{uuid.uuid4().hex}.py"
    file.write_text(f"""
from datetime import timedelta
from headrace import KafkaStreams, StreamsBuilder, TimeWindows

builder = StreamsBuilder()
grouped = builder.stream("lines").group_by(lambda k, v: v, name="by-line")
grouped.windowed_by(TimeWindows(size=timedelta(hours=1))).count(store="counts")
settings = {{"application.id": "shop", "bootstrap.servers": "localhost:1", "stream.time": "{rule}"}}
app = KafkaStreams(builder.build(), settings)
""")
    result = CliRunner().invoke(main, ["check", f"{file}:app"])
    assert ("Note: shop-by-line-repartition: stream.time is fastest" in result.output) == (
        rule == "fastest"
    )


@pytest.mark.parametrize("command", [["check"], ["describe"]])
def test_a_function_that_raises_is_named_with_its_line(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / f"app_{uuid.uuid4().hex}.py"
    file.write_text("import json\ndef app():\n    return json.loads('{')\n")
    done = CliRunner().invoke(main, [*command, f"{file}:app"])
    assert done.exit_code == ExitCode.CONFIGURATION
    assert f"Error: {file}:app cannot be called: JSONDecodeError: " in done.output
    assert f" at {file}:3. Correct the code" in done.output
    assert "Traceback" not in done.output
