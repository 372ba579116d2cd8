"""`headrace settings` and `headrace exit-codes`: what somebody without the documentation finds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main
from headrace.streams.config.client_settings import OWNED
from headrace.streams.config.config import table
from headrace.streams.supervisor.exit_codes import TABLE
from tests.support.processes import ROOT


def said(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == code, done.output
    return done.output


def test_all_settings_are_listed_with_their_meaning() -> None:
    text = said("settings")
    plain = " ".join(text.split())
    for own in table():
        assert f"\n{own.name}\n" in f"\n{text}"
        default = own.default_words.replace("`", "")
        assert f"default {default}; HEADRACE_{own.name.upper().replace('.', '_')}" in plain
    assert "Maximum time between commits, but see commit.interval.max.ms" in plain
    assert "WHERE SETTINGS COME FROM" in text
    assert "HEADRACE_CONFIG" in text
    assert not re.search(r"`|\*\*|\.md", text)


def test_one_setting_is_shown_alone_and_a_part_of_a_name_shows_all_that_have_it() -> None:
    assert said("settings", "poll.ms").splitlines()[0] == "poll.ms"
    assert "commit" not in said("settings", "poll.ms")
    found = said("settings", "commit.interval").splitlines()
    names = ["commit.interval.ms", "commit.interval.min.ms", "commit.interval.max.ms"]
    assert [line for line in found if line[:1] != " "] == names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("consumer.session.timeout.ms", "for the consumer client; HEADRACE_CONSUMER_SESSION"),
        ("session.timeout.ms", "consumer.session.timeout.ms"),
        ("sasl.password", "sasl.password.file names a file that contains it"),
        ("topic.segment.bytes", "a config of the internal topics"),
    ],
)
def test_settings_of_clients_are_known_too(name: str, words: str) -> None:
    assert words in " ".join(said("settings", name).split())


def test_what_the_runtime_owns_says_why() -> None:
    for owned in OWNED:
        if owned.name == "bootstrap.servers":
            continue  # the application's own
        assert owned.reason in " ".join(said("settings", owned.name).split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("comit.interval.ms", "did you mean commit.interval.ms?"),
        ("something.else.entirely", "headrace settings lists all"),
        ("num.stream.threads", "headrace run --workers"),
    ],
)
def test_a_setting_that_is_none_is_refused_with_the_next_step(name: str, words: str) -> None:
    assert words in said("settings", name, code=3)


def test_all_exit_codes_are_shown() -> None:
    text = said("exit-codes")
    for ending in TABLE:
        name = "" if ending.error is None else ending.error.__name__
        assert re.search(rf"^ *{int(ending.code)} +{name} ", text, re.M), ending
    assert not re.search(r"\]\(|`", text)


def messages_of(file: Path) -> list[str]:
    """The texts in a file that are not the words above a module, a class or a function."""
    tree = ast.parse(file.read_text())
    above = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [n.value for n in found if isinstance(n.value, str) and id(n) not in above]


def test_no_message_and_no_help_names_a_page_that_a_wheel_does_not_have() -> None:
    packages = ("state", "topology", "streams", "streams_web", "spark_bridge")
    files = [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]
    named = [(f.name, text) for f in files for text in messages_of(f) if "docs/" in text]
    assert [found for found in named if re.search(r"docs/[\w/-]+\.md", found[1])] == []
    for name in main.list_commands(click.Context(main)):
        assert ".md" not in said(name, "--help"), name


def test_a_former_name_of_a_command_works_and_is_not_listed() -> None:
    assert said("rights", "--help").splitlines()[2:] == said("acls", "--help").splitlines()[2:]
    assert re.search(r"^  acls ", said("--help"), re.MULTILINE)
    assert "rights" not in said("--help")
