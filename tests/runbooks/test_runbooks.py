"""Each runbook has the same sections, and each name in it is one of the package."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import click
import pytest
import yaml

from headrace.state import errors as state_errors
from headrace.streams.cli.main import main
from headrace.streams.config.environment import settings_of, variable_of
from headrace.streams.errors import ConfigError
from headrace.streams.plan.identity import ChangelogLostError
from headrace.streams.supervisor.exit_codes import TABLE, ExitCode
from tests.deploy.files import commands_in, parse
from tests.support.processes import ROOT

FOLDER = ROOT / "docs/runbooks"
RUNBOOKS = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
PAGES = [FOLDER / "index.md", *RUNBOOKS]
SECTIONS = ["Symptom", "What happened", "Check", "Fix", "What is lost", "Prevent"]
EVENTS = set((ROOT / "tests/golden/names/log_events.txt").read_text().split())
METRICS = {
    line.split()[0].removesuffix("_count")
    for line in (ROOT / "tests/golden/names/metrics.txt").read_text().splitlines()
}
RULES = yaml.safe_load((ROOT / "src/headrace/streams_web/grafana/alerts.yml").read_text())
ALERTS = {rule["alert"] for rule in RULES["groups"][0]["rules"]}
CODES = {cause.error.__name__: cause.code for cause in TABLE if cause.error is not None}
BROKERS = {
    "min.insync.replicas",
    "offsets.retention.minutes",
}
"""Settings of brokers and of topics, which the package does not set."""

_pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
_runbooks = pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)


def words(page: Path) -> list[str]:
    """The words in code type of the prose."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", prose)


@_runbooks
def test_a_runbook_has_all_sections(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert "```sh\n" in text
    index = (FOLDER / "index.md").read_text()
    (title,) = re.findall(r"^# (.*)$", text, re.M)
    assert f"| [{title}]({page.name}) |" in index


@_pages
def test_each_event_and_metric_exists(page: Path) -> None:
    named = {word for word in words(page) if re.fullmatch(r"[a-z0-9]+(?:_[a-z0-9]+)+", word)}
    named = {word for word in named if not re.match(r"test_|my_app|last_commit$", word)}
    unknown = {
        word for word in named if word not in (METRICS if word.startswith("headrace_") else EVENTS)
    }
    assert unknown == set()


@_pages
def test_each_alert_and_error_exists(page: Path) -> None:
    errors = {name for name, _ in inspect.getmembers(state_errors, inspect.isclass)} | set(CODES)
    named = set(words(page))
    assert {w for w in named if re.fullmatch(r"Headrace\w+", w)} <= ALERTS
    assert {w for w in named if re.fullmatch(r"[A-Z]\w+Error", w)} <= errors


@_pages
def test_each_setting_exists(page: Path) -> None:
    named = {w for w in words(page) if re.fullmatch(r"[a-z]+(?:\.[a-z]+)+", w)} - BROKERS
    assert {name for name in named if not is_setting(name)} == set()


def is_setting(name: str) -> bool:
    try:
        settings_of({variable_of(name): "1"})
    except ConfigError:
        return False
    return True


def test_an_unknown_setting_is_found() -> None:
    assert is_setting("state.dir")
    assert not is_setting("state.directory")


@_pages
def test_each_command_exists(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "offsets.csv").touch()
    for line in commands_in(page):
        assert parse(line).params, line
    for word in words(page):
        if word.startswith("headrace "):
            assert word.split()[1] in main.list_commands(click.Context(main)), word


@_pages
def test_each_exit_code_is_the_one_of_its_error(page: Path) -> None:
    known = {int(code) for code in ExitCode}
    for line in page.read_text().splitlines():
        codes = {int(number) for number in re.findall(r"[Ee]xit codes? (\d+)", line)}
        assert codes <= known, line
        named = set(re.findall(r"`(\w+Error)`", line)) & CODES.keys()
        if codes and named:
            assert {CODES[name] for name in named} <= codes, line


@_pages
def test_each_event_that_is_shown_has_fields_of_that_event(page: Path) -> None:
    fixed = {"event", "worker", "application", "worker_index", "level", "timestamp"}
    for block in re.findall(r"^```json\n(.*?)^```$", page.read_text(), re.M | re.S):
        for line in block.splitlines():
            shown = json.loads(line)
            assert shown.keys() - fixed <= _fields(shown["event"]), line


def _fields(event: str) -> set[str]:
    """The fields of an event in the generated reference."""
    page = (ROOT / "docs/reference/log-events.md").read_text()
    (row,) = re.findall(rf"^\| `{event}` \|.*\| (.*) \|$", page, re.M)
    return set(re.findall(r"`(\w+)`", row))


def test_the_error_of_a_lost_changelog_is_shown_as_it_is() -> None:
    text = (FOLDER / "changelog-gone.md").read_text()
    assert f"```text\n{ChangelogLostError(['shop-counts-changelog'])}\n```" in text


def test_the_index_has_each_runbook_once() -> None:
    linked = re.findall(r"\| \[[^]]*\]\(([\w-]+\.md)\) \|", (FOLDER / "index.md").read_text())
    assert sorted(linked) == [path.name for path in RUNBOOKS]
