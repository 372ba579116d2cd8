"""The page docs/commands.md, made from the commands themselves."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

import click

from headrace.streams.cli.main import main

_HEAD = """\
# Commands

`headrace` and each of its commands say with `--help` what stands here. This page is printed by
`python -m headrace.streams.cli.commands_page`.

## A tour

With `revenue.py` and `orders.jsonl` of [Getting started](getting-started.md), and a broker on this
machine (`headrace broker start`), what the application computes and what it would trip over:

```sh
headrace describe revenue:app
headrace check revenue:app
headrace try revenue:app --input orders=orders.jsonl
```

Its topics, some records, and a look at them with the application's own serdes:

```sh
headrace topics create --app revenue:app --partitions 4
headrace topics produce orders orders.jsonl --app revenue:app
headrace topics list --app revenue:app
headrace topics tail orders --app revenue:app --max 3 --with all
headrace topics describe orders --app revenue:app
```

`headrace run revenue:app --workers 2` runs it, and `headrace dev revenue:app` does all of this in
one terminal while it is written. How far it is, beside it or when it is stopped:

```sh
headrace lag revenue:app
headrace tasks revenue:app
headrace top revenue:app --times 1
headrace offsets list revenue:app
headrace transactions list revenue:app
```

What it writes, internal topics too, which go by the names of their stores and steps:

```sh
headrace topics tail revenue --app revenue:app
headrace topics tail by-customer --app revenue:app --from beginning --with partition,offset
headrace topics tail sums --app revenue:app
```

And back to the beginning, which is shown before it is done:

```sh
headrace offsets set revenue:app --topic orders --to beginning --process-again --dry-run
headrace reset revenue:app --dry-run
headrace rights revenue:app --user shop
```

Where settings such as `bootstrap.servers` come from is the same for all commands: see
[Configuration](configuration.md#where-settings-come-from). Exit codes are in
[Operations](operations.md#exit-behaviour).
"""


def page() -> str:
    """The whole page, as Markdown."""
    with click.Context(main, info_name="headrace", **main.context_settings) as context:
        return _HEAD + "".join(_sections(main, context))


def _sections(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{name} is listed"
        with click.Context(command, info_name=name, parent=context) as own:
            if isinstance(command, click.Group):
                if command.invoke_without_command:
                    yield _section(command, own)
                yield from _sections(command, own)
            else:
                yield _section(command, own)


def _section(command: click.Command, context: click.Context) -> str:
    path = context.command_path
    pieces = " ".join(command.collect_usage_pieces(context))
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    options = "".join(_options(command, context))
    table = f"\n| option | |\n|---|---|\n{options}" if options else ""
    return f"\n## {path}\n\n```text\n{path} {pieces}\n```\n\n{_quoted(text)}\n{table}"


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    # Without --help, which all have, and which click names otherwise from version to version.
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None or not isinstance(parameter, click.Option):
            continue
        # A stroke would end the cell.
        names, said = (re.sub(r"\s+", " ", text).replace("|", "/") for text in record)
        yield f"| `{names}` | {_quoted(said)} |\n"


def _quoted(text: str) -> str:
    """Help as Markdown: what would be a mark there is code."""
    return re.sub(r"(\{(?:[^{}`]|\{[^{}`]*\})*\})(?=[ ,.:]|$)", r"`\1`", text)


if __name__ == "__main__":
    sys.stdout.write(page())
