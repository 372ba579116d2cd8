"""The page docs/reference/errors.md, generated from the docstrings of the error classes.

python -m tests.support.generated_pages errors > docs/reference/errors.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

from headrace.spark_bridge.cli import backfill
from headrace.streams.supervisor import exit_codes
from headrace.streams.supervisor.exit_codes import ExitCause
from headrace.topology.errors import BadRecordError, RegistryError, SerdeError
from tests.support.public_api import public_objects

_HEAD = """\
# Errors

Find an error class here to learn what it means, what causes it, and what to do. The message of an
error names the place and the next step, and is often enough. Messages contain neither keys nor
values of records. The runtime's errors are subclasses of `StreamsError`.

This page is generated from the docstrings by `python -m tests.support.generated_pages errors`.
[Exit codes](exit-codes.md) lists the codes, and [Log events](log-events.md) the events.
"""

_CAUSES: dict[type[BaseException], ExitCause] = {
    cause.error: cause for cause in (*exit_codes.TABLE, *backfill.TABLE) if cause.error is not None
}
_MODULES = ("headrace.streams.queries.errors", "headrace.streams.devbroker.errors")
"""Modules whose errors users get from functions that no public module exports."""


def _cause(error: type[BaseException]) -> ExitCause | None:
    """Return the row of the table of exit codes for an error, or for its base class."""
    return next((_CAUSES[kind] for kind in error.__mro__ if kind in _CAUSES), None)


class Section(NamedTuple):
    """Errors with the same reaction."""

    title: str
    about: str
    has: Callable[[type[BaseException]], bool]


def _from(*modules: str) -> Callable[[type[BaseException]], bool]:
    return lambda error: error.__module__ in {f"headrace.{module}" for module in modules}


SECTIONS = (
    Section(
        "Errors that stop the application",
        "A worker stops with one of these errors, and nothing after its last commit is visible. "
        "`headrace run` exits with the code. An `uncaught_error_handler` receives them, too.",
        lambda error: _cause(error) is not None,
    ),
    Section(
        "Errors of single records",
        "An exception handler receives them and can skip the record. Without a handler the worker "
        "stops with a `RecordError`. Correct the function, the serde or the producer of the "
        "record: see [Errors and time](../errors.md).",
        lambda error: (
            issubclass(error, BadRecordError | SerdeError | RegistryError)
            or error.__name__ in ("DeadLetterRequested", "HandlerFailedError")
        ),
    ),
    Section(
        "Errors of external sinks",
        "A `SinkConnection` raises them to tell the worker how to react: see "
        "[External sinks](../sinks.md).",
        _from("topology.external_sink"),
    ),
    Section(
        "Errors of interactive queries",
        "A query raises them, and the HTTP API answers with the message: see "
        "[Interactive queries](../interactive-queries.md).",
        _from("streams.queries.errors"),
    ),
    Section(
        "Errors that the worker handles",
        "You see their messages as `reason` of warnings such as `transaction_aborted`. Act only "
        "if a warning repeats.",
        lambda error: error.__module__ == "headrace.streams.errors",
    ),
    Section(
        "Errors of feeds, backfills and the dev broker",
        "A command prints the message and exits; functions raise them.",
        _from("spark_bridge.errors", "streams.connectors.source", "streams.devbroker.errors"),
    ),
    Section(
        "Errors and warnings of tests",
        "The test driver and the simulation raise or warn with them.",
        lambda error: issubclass(error, AssertionError | Warning),
    ),
)


def errors() -> str:
    parts = [_HEAD]
    found = _public_errors()
    for section in SECTIONS:
        own = [error for error in found if section_of(error) is section]
        parts.append(f"\n## {section.title}\n\n{section.about}\n\n")
        parts += _rows(own, with_codes=section is SECTIONS[0])
    return "".join(parts)


def section_of(error: type[BaseException]) -> Section | None:
    """Return the first section that has an error; None if no section has it."""
    return next((section for section in SECTIONS if section.has(error)), None)


def _public_errors() -> list[type[BaseException]]:
    """Return the public error classes by name, without the private ones."""
    found = {one for one in public_objects() if inspect.isclass(one)} | set(_CAUSES)
    for name in _MODULES:
        found |= {one for one in vars(import_module(name)).values() if inspect.isclass(one)}
    return sorted(
        (
            one
            for one in found
            if issubclass(one, BaseException)
            and one.__module__.startswith("headrace.")
            and not one.__name__.startswith("_")
        ),
        key=lambda error: error.__name__,
    )


def errors_without_section() -> list[str]:
    return [error.__name__ for error in _public_errors() if section_of(error) is None]


def _rows(found: list[type[BaseException]], *, with_codes: bool) -> Iterator[str]:
    yield "| error | meaning |" + (" exit code | start it again? |" if with_codes else "") + "\n"
    yield "|---|---|" + ("---|---|" if with_codes else "") + "\n"
    for error in found:
        base = error.__bases__[0]
        name = f"`{error.__name__}`"
        if base.__name__ not in ("StreamsError", "Exception", "_TasksError", "BadRecordError"):
            name += f" (`{base.__name__}`)"
        cells = [name, _meaning(error)]
        if with_codes:
            cause = _cause(error)
            assert cause is not None, "the section has errors with an exit code"
            cells += [str(int(cause.code)), _linked(cause.again)]
        yield "| " + " | ".join(cells) + " |\n"


def _meaning(error: type[BaseException]) -> str:
    """Return the prose of a class's docstring, without its sections."""
    text = inspect.cleandoc(error.__doc__ or "")
    prose = re.split(r"^(?:Args|Attributes|Examples?|Raises):$|^>>> ", text, flags=re.M)[0]
    return re.sub(r"\s+", " ", prose).strip().replace("``", "`").replace("|", "/")


def _linked(text: str) -> str:
    """Return text with links of docs/operations.md, as a page in docs/reference has them."""
    text = re.sub(r"\]\(#", "](../operations.md#", text)
    return re.sub(r"\]\((?!\.\./|https?:)", "](../", text)
