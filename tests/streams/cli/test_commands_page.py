"""The page on commands says what the commands say."""

from __future__ import annotations

import click

from headrace.streams.cli.main import main
from tests.support import generated_pages
from tests.support.processes import ROOT

PAGE = ROOT / "docs/commands.md"


def test_the_page_is_the_one_that_the_commands_make() -> None:
    assert PAGE.read_text() == generated_pages.commands(), (
        "run: python -m tests.support.generated_pages commands > docs/commands.md"
    )


def test_an_example_is_code_to_its_end() -> None:
    text = PAGE.read_text()
    example = '{"key": "a", "value": {"price": 5}, "timestamp": 1700000000000}'
    assert text.count(f"`{example}`") == text.count('{"key": "a", ') == 2


def commands(group: click.Group, path: str = "headrace") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                found |= commands(command, f"{path} {name}")
            else:
                found[f"{path} {name}"] = command
    return found


def test_every_command_and_every_option_stands_on_it() -> None:
    text = PAGE.read_text()
    found = commands(main)
    assert {"headrace run", "headrace topics tail", "headrace backfill"} <= found.keys()
    for path, command in found.items():
        section = text.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
        for option in command.params:
            if isinstance(option, click.Option):
                assert max(option.opts, key=len) in section, (path, option.opts)


def test_one_thing_is_spelt_alike_in_all_commands() -> None:
    """What lands in a command as the same name is the same option everywhere."""
    spelt: dict[str, set[str]] = {}
    for command in commands(main).values():
        for option in command.params:
            if isinstance(option, click.Option) and option.name in (
                "settings", "target", "yes", "dry_run", "as_json", "state_dir",
            ):  # fmt: skip
                spelt.setdefault(option.name, set()).add(max(option.opts, key=len))
    assert {name: len(options) for name, options in spelt.items() if len(options) > 1} == {}
