"""Names that users rely on, and the lines of each package, as the files in tests/golden/names.

python -m tests.support.golden_names writes them again.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from headrace.spark_bridge.cli import backfill
from headrace.streams.config.config import table
from headrace.streams.supervisor import exit_codes
from headrace.streams_web.metrics import METRICS
from tests.support.public_api import MODULES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "headrace"
GOLDEN = ROOT / "tests" / "golden" / "names"
LINES = GOLDEN / "lines.txt"
LINES_STEP = 50

_EVENT = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")
_LOG_FUNCTIONS = {"debug", "info", "warning", "error", "log", "say", "warn", "tell", "report"}
"""Names of functions whose first argument is a log event, without leading underscores."""


def exports() -> Iterator[str]:
    for name in MODULES:
        exported = getattr(import_module(name), "__all__", ())
        yield from (f"{name}: {export}" for export in exported)


def settings() -> Iterator[str]:
    return (setting.name for setting in table())


def metrics() -> Iterator[str]:
    for metric in METRICS:
        yield " ".join([metric.sample, metric.kind, ",".join(metric.labels)]).rstrip()


def log_events() -> Iterator[str]:
    yield from {event for event, _ in log_calls()}


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the log events of the code with their calls."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and function_of(node) in _LOG_FUNCTIONS:
                for event in _constants(node.args[0]):
                    if _EVENT.fullmatch(event):
                        yield event, node


def function_of(call: ast.Call) -> str:
    """Return the name of a called function, without leading underscores."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return str(name).lstrip("_")


def _constants(argument: ast.expr) -> Iterator[str]:
    """Yield the event of a call, or both events of a conditional expression."""
    if isinstance(argument, ast.IfExp):
        yield from _constants(argument.body)
        yield from _constants(argument.orelse)
    elif isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value


def exit_code_lines() -> Iterator[str]:
    for command, rows in (("run", exit_codes.TABLE), ("backfill", backfill.TABLE)):
        for row in rows:
            error = row.error.__name__ if row.error is not None else "-"
            yield f"{command} {int(row.code):3} {error}"


NAMES: Mapping[str, Callable[[], Iterator[str]]] = {
    "exports": exports,
    "settings": settings,
    "metrics": metrics,
    "log_events": log_events,
    "exit_codes": exit_code_lines,
}


def lines_of(name: str) -> str:
    """Return the content of a file of names as the code has them."""
    return "".join(f"{line}\n" for line in sorted(NAMES[name]()))


def package_lines() -> dict[str, int]:
    """Return the lines of each package's own modules."""
    counts: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        folder = path.parent.relative_to(PACKAGE.parent).as_posix()
        counts[folder] += len(path.read_text().splitlines())
    return dict(sorted(counts.items()))


def recorded_lines() -> dict[str, int]:
    rows = (line.split() for line in LINES.read_text().splitlines())
    return {package: int(lines) for package, lines in rows}


def write() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (GOLDEN / f"{name}.txt").write_text(lines_of(name))
    bounds = {name: -(-lines // LINES_STEP) * LINES_STEP for name, lines in package_lines().items()}
    LINES.write_text("".join(f"{name} {lines}\n" for name, lines in bounds.items()))


if __name__ == "__main__":
    write()
