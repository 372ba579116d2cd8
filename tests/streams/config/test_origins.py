"""The error of a wrong setting says where the setting was given."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from headrace import KafkaStreams, StreamsBuilder
from headrace.streams.cli.main import main
from headrace.streams.cli.options import read_settings, settings_option
from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.environment import settings_of
from headrace.streams.config.secrets import Secret, guarded, over
from headrace.streams.config.settings import Given, given_by, placed
from headrace.streams.errors import ConfigError
from headrace.streams.supervisor.channel import Launch, decode, encode
from headrace.streams.tasks.restore import RestoreListeners
from headrace.streams.worker.protocols import WorkerListeners

APP = """
from headrace import KafkaStreams, StreamsBuilder

builder = StreamsBuilder()
builder.stream("in").to("out")
app = KafkaStreams(builder.build(), {settings!r})
"""
OWN = {"application.id": "copy", "bootstrap.servers": "localhost:1"}
FILE = """# where it runs
"poll.ms" = -1
[consumer]
session.timeout.ms = 6_000
"fetch.min.bytess" = 5  # misspelt
[sasl]
password.file = "/nowhere/password"
"""


def refused(settings: Mapping[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        StreamsConfig.parse({**OWN, **settings} if type(settings) is dict else over(OWN, settings))
    return str(raised.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "app.toml"
    file.write_text(FILE)
    return file


def test_a_file_and_its_line_are_named(file: Path) -> None:
    said = refused(guarded(read_settings(file)))
    assert f"- poll.ms (from {file}, line 2) must be at least 0" in said
    assert f"- consumer.fetch.min.bytess (from {file}, line 5) is unknown; did you" in said
    assert f"- sasl.password.file (from {file}, line 7) names /nowhere/password" in said


@pytest.mark.parametrize(
    "text",
    [
        "poll = { ms = -1 }",
        'note = """\n"poll.ms" = 5\n"""\n"poll.ms" = -1',
    ],
)
def test_a_line_that_is_not_sure_is_not_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "app.toml"
    file.write_text(text)
    assert f"poll.ms (from {file}) must be" in refused(read_settings(file))


def test_a_variable_is_named() -> None:
    said = refused(settings_of({"HEADRACE_POLL_MS": "-1", "HEADRACE_SASL_PASSWORD_FILE": "/no"}))
    assert "poll.ms (from HEADRACE_POLL_MS) must be at least 0" in said
    assert "sasl.password.file (from HEADRACE_SASL_PASSWORD_FILE) names /no" in said


def test_what_lies_over_others_is_where_it_comes_from(file: Path) -> None:
    of_file = Given({"poll.ms": 5}, {"poll.ms": "app.toml"})
    said = refused(over(of_file, given_by({"poll.ms": "-1"}, "--set")))
    assert "poll.ms (from --set) must" in said
    assert "poll.ms must" in refused(over(of_file, {"poll.ms": "-1"}))


def test_both_places_of_settings_that_do_not_go_together_are_named() -> None:
    given = given_by({"consumer.session.timeout.ms": "600"}, "--set")
    own = given_by({**OWN, "consumer.heartbeat.interval.ms": 700}, "the program")
    said = refused(over(own, given))
    assert "consumer.heartbeat.interval.ms (from the program) 700 must be shorter" in said
    assert "consumer.session.timeout.ms (from --set) 600" in said
    both = given_by({"sasl.password": "a", "sasl.password.file": "b"}, "a.toml")
    assert (
        "sasl.password (from a.toml) and sasl.password.file (from a.toml) are both set"
        in refused(both)
    )


def test_a_setting_of_the_program_that_is_only_wrong_with_others_is_named() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    app = KafkaStreams(builder.build(), {**OWN, "consumer.heartbeat.interval.ms": 700})
    with pytest.raises(ConfigError) as raised:
        app.derived(
            given_by({"consumer.session.timeout.ms": "600"}, "HEADRACE_X"),
            worker_listener=WorkerListeners(),
            restore_listener=RestoreListeners(),
        )
    assert "heartbeat.interval.ms (from the program) 700" in str(raised.value)
    assert "session.timeout.ms (from HEADRACE_X) 600" in str(raised.value)


def test_kafkas_client_is_said_to_refuse_the_setting_that_was_given() -> None:
    """It has two names for some of them, and its errors say the other one."""
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    for name, value in (("producer.linger.ms", "x"), ("consumer.max.partition.fetch.bytes", "y")):
        with pytest.raises(ConfigError) as raised:
            KafkaStreams(builder.build(), over(OWN, given_by({name: value}, "--set")))
        bare = name.partition(".")[2]
        assert f'"{bare}" (from --set)' in str(raised.value)


def test_what_kafkas_client_refuses_has_its_place_too() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    given = given_by({"consumer.fetch.min.bytes": "many"}, "--set")
    with pytest.raises(ConfigError, match=r'"fetch.min.bytes" \(from --set\)'):
        KafkaStreams(builder.build(), over(OWN, given))


def test_a_place_is_kept_through_all_that_settings_pass() -> None:
    given = guarded(given_by({"sasl.password": "hunter2", "poll.ms": 1}, "--set"))
    assert given["sasl.password"] == Secret("hunter2")
    for same in (given, pickle.loads(pickle.dumps(given)), given_by(given, "elsewhere")):
        assert isinstance(same, Given)
        assert same == given
        assert same.origins == {"sasl.password": "--set", "poll.ms": "--set"}
    launch = Launch(target="a:b", settings=given)
    told = decode(encode(launch)[4:])
    assert isinstance(told, Launch)
    assert told.origins == given.origins


def test_names_that_are_a_part_of_others_or_advice_are_left_alone() -> None:
    origins = {"poll.ms": "--set", "max.poll.ms": "a.toml"}
    said = placed("max.poll.ms is unknown; did you mean poll.ms?", origins)
    assert said == "max.poll.ms (from a.toml) is unknown; did you mean poll.ms?"
    assert placed("x must not be 'poll.ms'", origins) == "x must not be 'poll.ms'"


def _run(tmp_path: Path, *arguments: str, **environ: str) -> Result:
    file = tmp_path / "copy_app.py"
    file.write_text(APP.format(settings=OWN))
    command = ["describe", f"{file}:app", *arguments]
    return CliRunner().invoke(main, command, env=environ)


def test_a_command_names_each_place(tmp_path: Path, file: Path) -> None:
    said = _run(tmp_path, "--config", str(file)).stderr
    assert f"poll.ms (from {file}, line 2)" in said
    assert "poll.ms (from HEADRACE_POLL_MS)" in _run(tmp_path, HEADRACE_POLL_MS="-1").stderr
    assert "poll.ms (from --set)" in _run(tmp_path, "--set", "poll.ms=-1").stderr
    said = _run(tmp_path, "--bootstrap-servers", "nowhere").stderr
    assert "bootstrap.servers (from --bootstrap-servers) must be" in said


def test_settings_of_a_command_are_a_plain_mapping_to_who_reads_them() -> None:
    @click.command()
    @settings_option
    def command(settings: dict[str, Any]) -> None:
        click.echo(json.dumps({**settings}))

    found = CliRunner().invoke(command, ["--set", "poll.ms=1"], env={"HEADRACE_POLL_MS": "2"})
    assert json.loads(found.stdout) == {"poll.ms": "1"}
