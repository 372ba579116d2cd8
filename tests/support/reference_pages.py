"""Pages of docs/reference that are generated from the code: log events and exit codes.

python -m tests.support.generated_pages log-events > docs/reference/log-events.md
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.spark_bridge.cli import backfill
from headrace.streams.supervisor import exit_codes
from headrace.streams.supervisor.exit_codes import ExitCause, ExitCode, is_crash
from tests.support import golden_names

# docs/reference/log-events.md


_LOG_EVENTS_HEAD = """\
# Log events

Find a log event here to learn when it is logged and what to do. Search for the name of the event;
[Operations](../operations.md#logs) describes how to configure the log.

Levels are `debug`, `info`, `warning` and `error`; alert on `error`. An event has only those of its
fields that apply. No field contains keys, values or texts of your errors. `advice` and `next` are
sentences for the reader. This page is generated from the code by
`python -m tests.support.generated_pages log-events`.
"""
_EVENTS: Mapping[str, Mapping[str, tuple[str, str]]] = tomllib.loads(
    Path(__file__).with_name("log_events.toml").read_text()
)
"""Events by title, each with when it is logged and what to do."""
_ACTIONS = {"": "Nothing.", "reason": "Nothing, unless it continues: then act on `reason`."}
LEVELS: Mapping[str, str] = {
    "brokers_not_reached": "warning",
    "topology_changed": "info, warning",
}
"""Levels of events that are logged with a function whose name is not a level."""

MORE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "application_failed": ("worker_index",),
    "batch_size_lowered": ("batch", "sink", "unit"),
    "batch_size_raised": ("batch", "sink", "unit"),
    "brokers_not_reached": ("servers", "reason", "waited_s", "next", "advice"),
    "failure_located": ("traceback", "worker_index"),
    "last_commit_failed": ("tasks", "partitions", "records", "next"),
    "records_counted_twice": ("stores", "writes_to"),
    "records_dropped": (
        "topic", "partition", "offset", "record_time", "stream_time", "behind_by", "skew",
        "advice",
    ),
    "status_reported": (
        "state", "pid", "tasks", "records", "records_per_s", "commits_per_s", "commit_age_s",
        "restored", "to_restore", "restarts",
    ),
    "supervisor_started": ("settings_from",),
    "worker_crashed": ("worker_index", "exit_code", "outcome", "advice", "last_output"),
    "worker_ended": ("worker_index", "exit_code", "outcome", "advice", "last_output"),
    "worker_failed": ("worker_index", "exit_code", "outcome", "advice", "last_output"),
    "worker_abandoned": ("worker_index", "exit_code", "outcome", "advice", "last_output"),
}  # fmt: skip
"""Fields that a call passes as a mapping."""
_LEVEL_NAMES = {"warn": "warning"}
LEVEL_ORDER = ("debug", "info", "warning", "error")


def log_events() -> str:
    levels, fields = _logged()
    parts = [_LOG_EVENTS_HEAD]
    for title, events in _EVENTS.items():
        heading = f"`{title}`" if title.startswith("headrace ") else title
        rows = ["| event | level | logged when | what to do | fields |", "|---|---|---|---|---|"]
        for event, (when, action) in sorted(events.items()):
            action = _ACTIONS.get(action, action)
            level = LEVELS.get(event) or ", ".join(sorted(levels[event], key=LEVEL_ORDER.index))
            names = ", ".join(f"`{name}`" for name in fields[event])
            rows.append(f"| `{event}` | {level} | {when} | {action} | {names} |")
        parts.append(f"\n## {heading}\n\n" + "\n".join(rows) + "\n")
    return "".join(parts)


def described_events() -> list[str]:
    """Return the events of the page, in order, to be compared with those in the code."""
    return sorted(event for events in _EVENTS.values() for event in events)


def levels_of_events() -> Mapping[str, set[str]]:
    """Return the names of the functions that log each event, which are its levels."""
    return _logged()[0]


def events_with_mappings() -> set[str]:
    """Return the events whose calls pass fields as a mapping, which the code does not name."""
    return {event for event, call in golden_names.log_calls() if None in _names(call)}


def _logged() -> tuple[Mapping[str, set[str]], Mapping[str, dict[str, None]]]:
    """Return the levels and the fields of each event, from the calls in the code."""
    levels: defaultdict[str, set[str]] = defaultdict(set)
    fields: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for event, call in golden_names.log_calls():
        function = golden_names.function_of(call)
        levels[event].add(_LEVEL_NAMES.get(function, function))
        fields[event] |= {name: None for name in _names(call) if name is not None}
    for event, more in MORE_FIELDS.items():
        fields[event] |= dict.fromkeys(more)
    return levels, fields


def _names(call: ast.Call) -> list[str | None]:
    """Return the names of a call's fields; None for a mapping of fields."""
    return [keyword.arg for keyword in call.keywords]


# docs/reference/exit-codes.md


_EXIT_CODES_HEAD = """\
# Exit codes

`headrace run` and `headrace backfill` end with a code that tells a service manager whether a
restart can help. This page is generated by `python -m tests.support.generated_pages
exit-code-page`.

| code | name | restart? | causes |
|---|---|---|---|
"""
_SERVICES = """
A code that is not in the table, or the number of a signal, is a crash, too.

## systemd

A restart helps after a crash only. This unit does not restart after the other codes:

```ini
[Service]
ExecStart=/opt/shop/.venv/bin/headrace run shop:app
Restart=on-failure
RestartPreventExitStatus={prevented}
```

## Kubernetes

A pod restarts after each code with `restartPolicy: Always`. This command shows the last code:

```sh
kubectl get pod shop-0 -o jsonpath='{{.status.containerStatuses[0].lastState.terminated.exitCode}}'
```

Alert on {prevented_list}: the next start fails, too, until you have fixed the cause.

## Causes

{causes}"""


def exit_code_page() -> str:
    by_code: defaultdict[ExitCode, list[ExitCause]] = defaultdict(list)
    for cause in (*exit_codes.TABLE, *backfill.TABLE):
        by_code[cause.code].append(cause)
    rows = [_code_row(code, by_code[code]) for code in ExitCode]
    prevented = [
        str(int(code))
        for code in ExitCode
        if code not in (ExitCode.STOPPED, ExitCode.INTERRUPTED)
        and code not in _AFTER_CRASHES
        and not is_crash(code)
    ]
    return (
        _EXIT_CODES_HEAD
        + "".join(rows)
        + _SERVICES.format(
            prevented=" ".join(prevented),
            prevented_list=", ".join(prevented),
            causes="".join(_cause_rows(by_code)),
        )
    )


_AFTER_CRASHES = frozenset({ExitCode.RESTARTS, ExitCode.STOP_TIMEOUT})
"""Codes after which the application may be started again: many crashes, or a slow stop."""


def _code_row(code: ExitCode, causes: list[ExitCause]) -> str:
    if is_crash(code):
        restart = "yes"
    elif code is ExitCode.STOPPED or code is ExitCode.INTERRUPTED:
        restart = "no"
    elif code in _AFTER_CRASHES:
        restart = "yes, after a pause"
    else:
        restart = "after a fix"
    named = dict.fromkeys(f"`{c.error.__name__}`" for c in causes if c.error is not None)
    others = [c.when for c in causes if c.error is None and c in exit_codes.TABLE]
    text = "; ".join([", ".join(named), *others] if named else others)
    return f"| {int(code)} | `{code.name}` | {restart} | {_from_reference(text)} |\n"


def _cause_rows(by_code: Mapping[ExitCode, list[ExitCause]]) -> Iterator[str]:
    yield "| code | raised | when | start it again? |\n|---|---|---|---|\n"
    for code in ExitCode:
        for cause in by_code[code]:
            raised = "" if cause.error is None else f"`{cause.error.__name__}`"
            cells = (str(int(code)), raised, cause.when, _from_reference(cause.again))
            yield "| " + " | ".join(cells) + " |\n"


def _from_reference(text: str) -> str:
    """Return text with links of docs/operations.md, as a page in docs/reference has them."""
    text = re.sub(r"\]\(#", "](../operations.md#", text)
    return re.sub(r"\]\((?!\.\./|https?:)", "](../", text)
