"""Where commands take settings from, and what goes over what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from headrace.streams.cli.main import main
from headrace.streams.cli.options import again, settings_option
from headrace.streams.config.secrets import revealed
from headrace.streams.supervisor.exit_codes import ExitCode

CANARY = "c4n4ry"
APP = """
from headrace import KafkaStreams, StreamsBuilder
builder = StreamsBuilder()
builder.stream("in").to("out")
app = KafkaStreams(builder.build(), {"application.id": "shop", "bootstrap.servers": "own:1"})
"""


def asked(*arguments: str, environ: dict[str, str] | None = None) -> tuple[dict[str, Any], Result]:
    found: dict[str, Any] = {}

    @click.command()
    @settings_option
    def command(settings: dict[str, Any]) -> None:
        found.update(settings)

    done = CliRunner().invoke(command, list(arguments), env=environ)
    return revealed(found), done


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "headrace.toml"
    file.write_text(
        'poll.ms = 1\n"max.poll.records" = 1\nsasl.password = "of the file"\n'
        '[bootstrap]\nservers = "file:1"\n'
    )
    return str(file)


def test_the_command_line_goes_over_the_environment_and_that_over_a_file(config: str) -> None:
    environ = {"HEADRACE_MAX_POLL_RECORDS": "2", "HEADRACE_POLL_MS": "2"}
    found, _ = asked("--config", config, "--set", "poll.ms=3", environ=environ)
    assert (found["bootstrap.servers"], found["max.poll.records"]) == ("file:1", "2")
    assert found["poll.ms"] == "3"


def test_the_file_can_be_named_by_the_environment(config: str) -> None:
    found, _ = asked(environ={"HEADRACE_CONFIG": config})
    assert found["bootstrap.servers"] == "file:1"
    other, _ = asked("--bootstrap-servers", "line:1", environ={"HEADRACE_CONFIG": config})
    assert other["bootstrap.servers"] == "line:1"


def test_a_secret_s_file_goes_over_the_secret_of_a_layer_below(config: str) -> None:
    found, _ = asked("--config", config, environ={"HEADRACE_SASL_PASSWORD_FILE": "/run/s"})
    assert found["sasl.password.file"] == "/run/s"
    assert "sasl.password" not in found


@pytest.mark.parametrize("by_variable", [False, True])
def test_another_command_can_be_given_the_same_settings_but_for_secrets(
    by_variable: bool, config: str
) -> None:
    given = ["--set", "poll.ms=3", "--set", "sasl.password=" + CANARY]
    environ = {"HEADRACE_MAX_POLL_RECORDS": "2"}
    if by_variable:
        environ |= {
            "HEADRACE_CONFIG": config,
            "HEADRACE_BOOTSTRAP_SERVERS": "line:1",
            "HEADRACE_APPLICATION_ID": "shop",
        }
    else:
        given += ["--config", config, "--bootstrap-servers", "line:1"]
        given += ["--set", "application.id=shop"]
    found: list[str] = []

    @click.command()
    @settings_option
    def command(settings: dict[str, Any]) -> None:
        found.extend(again(settings))

    CliRunner().invoke(command, given, env=environ, catch_exceptions=False)
    pairs = set(zip(found[::2], found[1::2], strict=True))
    assert pairs == {
        ("--config", config),
        ("--bootstrap-servers", "line:1"),
        ("--set", "application.id=shop"),
        ("--set", "poll.ms=3"),
        ("--set", "sasl.password=***"),
    }


WRONG = [
    ({"HEADRACE_POL_MS": CANARY}, "did you mean HEADRACE_POLL_MS?"),
    ({"HEADRACE_HOME": CANARY}, "HEADRACE_HOME matches no setting; headrace settings lists all"),
    (
        {"HEADRACE_CONFIG": "/nowhere.toml"},
        "/nowhere.toml cannot be read as TOML: No such file or directory (named by the variable",
    ),
    ({"HEADRACE_CONFIG": ""}, "the variable HEADRACE_CONFIG is empty"),
]
WRONG_WHEN_PARSED = [
    (
        {"HEADRACE_SASL_PASSWORD_FILE": "/nowhere"},
        "sasl.password.file (from HEADRACE_SASL_PASSWORD_FILE) names /nowhere",
    ),
    (
        {"HEADRACE_POLL_MS": "-1", "HEADRACE_SASL_PASSWORD": CANARY},
        "poll.ms (from HEADRACE_POLL_MS) must be",
    ),
]


@pytest.mark.parametrize(
    ("command", "environ", "said"),
    [
        *((c, *wrong) for c in ("check", "lag", "reset", "run", "topics") for wrong in WRONG),
        *((c, *wrong) for c in ("check", "lag", "topics") for wrong in WRONG_WHEN_PARSED),
    ],
)
def test_what_is_wrong_ends_each_command_in_the_same_way(
    command: str, environ: dict[str, str], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(APP)
    target = ["create", "x"] if command == "topics" else [f"{file}:app"]
    done = CliRunner().invoke(main, [command, *target], env=environ)
    assert done.exit_code == ExitCode.CONFIGURATION, done.output
    assert said in done.output
    assert CANARY not in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'"poll.ms" = 1\n"a" = ?\n', "(at line 2, column 7)"),
        (b'"poll.ms" = 1\n"a" = [1,\n\n', "(at the end, line 2)"),
        (b'"poll.ms" = 1\n\n"a" = "\xe4"\n', "line 3 is not UTF-8"),
    ],
)
def test_the_line_is_said_at_which_a_file_is_no_toml(
    text: bytes, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "app.toml"
    file.write_bytes(text)
    done = CliRunner().invoke(main, ["topics", "create", "x", "--config", str(file)])
    assert done.exit_code == ExitCode.CONFIGURATION, done.output
    assert f"{file} cannot be read as TOML: " in done.output
    assert said in done.output


def test_the_application_s_own_settings_lie_below_all(tmp_path: Path, config: str) -> None:
    """What it is told beside its own shows in what a wrong one is said of."""
    file = tmp_path / "shop.py"
    file.write_text(APP)
    environ = {"HEADRACE_BOOTSTRAP_SERVERS": "no port"}
    done = CliRunner().invoke(main, ["check", f"{file}:app", "--config", config], env=environ)
    assert "bootstrap.servers (from HEADRACE_BOOTSTRAP_SERVERS) must be" in done.output
    done = CliRunner().invoke(
        main, ["check", f"{file}:app", "--bootstrap-servers", "line:1"], env=environ
    )
    assert done.exit_code == 0, done.output
