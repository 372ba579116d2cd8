"""Pages generated from tables in the code.

python -m tests.support.generated_pages metrics > docs/metrics.md

`commands` and `configuration` are whole pages, too; the others are tables within a page.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence

import click

from headrace.spark_bridge.cli import backfill
from headrace.streams.cli.main import main
from headrace.streams.config.client_settings import OWNED, OWNED_TOPIC_CONFIGS
from headrace.streams.config.config import table
from headrace.streams.config.java_settings import NOT_SUPPORTED
from headrace.streams.config.secrets import SECRET_NAMES
from headrace.streams.config.settings_reference import CLIENTS, PLACES
from headrace.streams.kafka.acls import TABLE, Needed
from headrace.streams.supervisor import exit_codes
from headrace.streams.supervisor.exit_codes import ExitCause
from headrace.streams_web.metrics import METRICS

# docs/metrics.md


_METRICS_HEAD = """# Metrics

What `/metrics` has, for Prometheus; see [Monitoring](watch.md) for how it is served, and which of
them matter. This page is made of the table in the code.

Counts begin with the worker's process, and those of tasks and stores with the task in that process;
Prometheus' `rate` and `increase` know that. `worker` is the worker's number on its host. Records
processed hold those of aborted transactions again, records committed count none twice. What is
"about" is estimated, or looked at now and then.

| metric | kind | labels | what it is | Kafka Streams' |
|---|---|---|---|---|
"""


def metrics() -> str:
    return _METRICS_HEAD + "".join(f"{line}\n" for line in _metric_rows())


def _metric_rows() -> Iterator[str]:
    for metric in METRICS:
        name = metric.name if metric.kind == "histogram" else metric.sample
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        kafka = ", ".join(f"`{one}`" for one in metric.kafka.split(", ") if one)
        yield f"| `{name}` | {metric.kind} | {labels} | {metric.help} | {kafka} |"


# The ACLs of docs/operations.md


_TOOLS = (
    Needed("groups", ("Delete",), "`headrace backfill --drop` forgets a plan"),
    Needed(
        "cluster", ("DescribeConfigs",), "`headrace backfill` knows how long transactions may take"
    ),
)
"""Additional ACLs for tools."""

_ON = {
    "source": "each source",
    "output": "each output, and the dead-letter topic",
    "internal topics": "topics that begin with the `application.id`",
    "groups": "groups that begin with the `application.id`",
    "transactional ids": "transactional ids that begin with the `application.id`",
    "cluster": "the cluster",
}


def acls() -> str:
    rows = ["| on | right | for | without it |", "|---|---|---|---|"]
    for needed in (*TABLE, *_TOOLS):
        operations = ", ".join(needed.operations)
        on = _ON[needed.subject]
        rows.append(f"| {on} | {operations} | {needed.why} | {needed.without} |")
    return "\n".join(rows) + "\n"


# docs/commands.md


_COMMANDS_HEAD = """\
# Commands

`headrace` and each of its commands say with `--help` what stands here. This page is printed by
`python -m tests.support.generated_pages commands`.

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


def commands() -> str:
    """Return the page docs/commands.md as Markdown."""
    with click.Context(main, info_name="headrace", **main.context_settings) as context:
        return _COMMANDS_HEAD + "".join(_sections(main, context))


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
        # A vertical bar would end the cell.
        names, said = (re.sub(r"\s+", " ", text).replace("|", "/") for text in record)
        yield f"| `{names}` | {_quoted(said)} |\n"


def _quoted(text: str) -> str:
    """Return help text as Markdown, with braces quoted as code."""
    return re.sub(r"(\{(?:[^{}`]|\{[^{}`]*\})*\})(?=[ ,.:]|$)", r"`\1`", text)


# docs/configuration.md


_SETTINGS_HEAD = """\
# Configuration

Settings keep Kafka's dotted names. All of them are checked before anything starts, and all that
is wrong is reported at once. `headrace settings` shows them in a terminal, `headrace settings NAME`
one of them. This page is printed by `python -m tests.support.generated_pages configuration`.

| setting | values | default | meaning |
|---|---|---|---|
"""
_REFUSED = """
## Settings of Kafka Streams that are refused

| setting | what to do |
|---|---|
"""


def configuration() -> str:
    return (
        _SETTINGS_HEAD
        + "".join(_setting_rows())
        + PLACES.format(secrets=", ".join(f"`{name}`" for name in sorted(SECRET_NAMES)))
        + CLIENTS
        + "".join(_owned_rows())
        + _REFUSED
        + "".join(_row(f"`{name}`", why) for name, why in NOT_SUPPORTED.items())
    )


def _setting_rows() -> Iterator[str]:
    for own in table():
        default = own.default_words
        if default not in ("required", "not set") and " " not in default:
            default = f"`{default}`"
        yield _row(f"`{own.name}`", own.kind.words, default, own.doc)


def _owned_rows() -> Iterator[str]:
    for owned in OWNED:
        clients = ", ".join(client.rstrip(".") for client in owned.clients)
        value = "none" if owned.value is None else f"`{owned.value}`"
        if owned.exactly_once_only:
            value += " under exactly-once"
        yield _row(f"`{owned.name}`", clients, value, owned.reason)
    for name, reason in OWNED_TOPIC_CONFIGS.items():
        yield _row(f"`{name}`", "topic", "none", reason)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


# The exit codes of docs/operations.md and docs/backfill.md


def run_exit_codes() -> str:
    return _endings(exit_codes.TABLE, "start it again?")


def backfill_exit_codes() -> str:
    return _endings(backfill.TABLE, "run it again?")


def _endings(endings: Sequence[ExitCause], again: str) -> str:
    rows = [_row("raised", "when", "exit code", again), "|---|---|---|---|\n"]
    for ending in endings:
        raised = "" if ending.error is None else f"`{ending.error.__name__}`"
        rows.append(_row(raised, ending.when, str(int(ending.code)), ending.again))
    return "".join(rows)


_PAGES = {
    "metrics": metrics,
    "acls": acls,
    "commands": commands,
    "configuration": configuration,
    "exit-codes": run_exit_codes,
    "backfill-exit-codes": backfill_exit_codes,
}

if __name__ == "__main__":
    sys.stdout.write(_PAGES[sys.argv[1]]())
