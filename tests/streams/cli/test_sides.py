"""The settings of two clusters: whose each of them is."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main
from headrace.streams.cli.mirror import names_of, settings_of_sides
from headrace.streams.errors import ConfigError


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("west", "east"):
        text = f'"bootstrap.servers" = "{name}:9092"\n[sasl]\nusername = "{name}er"\n'
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path / "west.toml", tmp_path / "east.toml"


def test_files_variables_and_single_settings_lie_over_each_other(files: tuple[Path, Path]) -> None:
    environ = {
        "HEADRACE_FROM_SASL_USERNAME": "one",
        "HEADRACE_TO_SASL_PASSWORD_FILE": "/run/secret",
        "HEADRACE_CONFIG": "of-another-command.toml",
    }
    given = ("to.sasl.username=two", "from.client.id=x", "to.sasl.password=hunter2")
    source, target = settings_of_sides(*files, given, environ)
    assert source == {
        "bootstrap.servers": "west:9092",
        "sasl.username": "one",
        "client.id": "x",
    }
    assert target["sasl.username"] == "two"
    assert "sasl.password.file" not in target
    assert "hunter2" not in repr(target)
    assert target["sasl.password"].reveal() == "hunter2"


def test_a_variable_that_says_no_side_is_refused(files: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="HEADRACE_FROM_SASL_USERNAME or HEADRACE_TO_SASL_USER"):
        settings_of_sides(*files, (), {"HEADRACE_SASL_USERNAME": "x"})
    with pytest.raises(ConfigError, match="HEADRACE_NO_SUCH_THING matches no setting"):
        settings_of_sides(*files, (), {"HEADRACE_NO_SUCH_THING": "x"})


def test_a_setting_that_says_no_side_is_refused_without_its_value(files: tuple[Path, Path]) -> None:
    with pytest.raises(
        click.BadParameter, match=r"sasl.password is not from\.NAME=VALUE or to"
    ) as e:
        settings_of_sides(*files, ("sasl.password=hunter2",), {})
    assert "hunter2" not in str(e.value)


def test_what_clusters_are_called(files: tuple[Path, Path]) -> None:
    assert names_of(*files, None) == ("west", "east")
    assert names_of(*files, "a,b") == ("a", "b")
    with pytest.raises(click.UsageError, match="Set --names, such as west,east"):
        names_of(files[0], files[0], None)
    with pytest.raises(click.UsageError, match="--from and --to are required"):
        names_of(files[0], None, None)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 3, "no topics are given"),
        (("--topics", "a b"), 3, "'a b' is neither a topic's name nor a pattern"),
        (("--topics", "a", "--rename", "x"), 3, "--rename 'x' must contain {topic} once"),
        (
            ("--topics", "a", "--name", "a b"),
            3,
            "--name 'a b' cannot be part of the name of",
        ),
        (("--topics", "a", "--set", "to.no.such=1"), 3, "no.such (from --set) is unknown"),
        pytest.param(
            ("--topics", "a", "--set", "from.bootstrap.servers=localhost:1"),
            9,
            "localhost:1",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_begins(
    files: tuple[Path, Path], words: tuple[str, ...], code: int, said: str
) -> None:
    found = CliRunner().invoke(
        main, ["mirror", "--from", str(files[0]), "--to", str(files[1]), *words]
    )
    assert found.exit_code == code, found.output
    assert said in found.output
