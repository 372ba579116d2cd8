"""Structured logging to standard error, for programs without logging of their own.

The library logs through structlog and configures nothing. The command `headrace run` calls
`configure`, and your program can. Tracebacks keep file and line, and omit the texts of errors and
all values, because those may quote records.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, Protocol, TextIO, get_args

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from headrace.state.log import LINE_LISTS, get_logger, replace_exception
from headrace.streams.bounded_writer import BoundedWriter

LogFormat = Literal["console", "json"]


class Stream(Protocol):
    """Output of log lines, such as a file opened for text."""

    def write(self, text: str, /) -> object:
        """Write a text."""

    def flush(self) -> object:
        """Write buffered text."""

    def isatty(self) -> bool:
        """Return whether the output is a terminal."""


LEVELS = ("debug", "info", "warning", "error")


def configure(
    log_format: LogFormat = "console",
    *,
    level: str = "info",
    stream: Stream | None = None,
    colors: bool | None = None,
    fields: Mapping[str, object] | None = None,
) -> None:
    """Write structlog's events to a stream, a line each.

    Args:
        log_format: ``console`` for terminals, ``json`` for log collectors.
        level: the lowest level that is logged: debug, info, warning or error.
        colors: whether the console format has colors; None enables them on a terminal.
        fields: default fields of every event.

    Raises:
        ValueError: the format or level does not exist.

    Examples:
        >>> import sys, structlog
        >>> configure("json", stream=sys.stdout, fields={"host": "a"})
        >>> structlog.get_logger().info("task_started", task="0_1")  # doctest: +ELLIPSIS
        {"host": "a", "task": "0_1", "event": "task_started", "level": "info", "timestamp": ...}
        >>> structlog.reset_defaults()
    """
    if log_format not in get_args(LogFormat):
        raise ValueError(f"log_format must be 'console' or 'json', not {log_format!r}")
    level_number(level)
    target = sys.stderr if stream is None else stream
    renderer: Processor
    to_people: tuple[Processor, ...] = ()
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer(default=str)
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=target.isatty() if colors is None else colors,
            exception_formatter=structlog.dev.plain_traceback,
        )
        to_people = (_lay_out_lines,)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _with_defaults(dict(fields or {})),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _keep_places_only,
            *to_people,
            renderer,
        ],
        wrapper_class=_WRAPPERS[level],
        logger_factory=structlog.WriteLoggerFactory(_SafeStream(target)),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


_STDERR = 2


def bounded(stream: TextIO) -> BoundedWriter:
    """Return a writer for `configure` that does not block if a stream has no reader."""

    def say(lines: int) -> None:
        get_logger().warning(
            "log_lines_dropped",
            lines=lines,
            reason="the log was not read for some time, and its buffer in memory was full",
        )

    with suppress(OSError, ValueError):
        stream.flush()
    try:
        file = stream.fileno()
    except io.UnsupportedOperation:  # standard error was replaced by a stream in memory
        file = _STDERR
    return BoundedWriter(file, on_dropped=say, is_terminal=stream.isatty())


def set_level(level: str) -> None:
    """Change the log level of `configure` and of the logger ``headrace`` of `logging`.

    >>> import sys, structlog
    >>> configure("json", stream=sys.stdout)
    >>> set_level("error")
    >>> structlog.get_logger().info("task_started")
    >>> structlog.reset_defaults()
    """
    logging.getLogger("headrace").setLevel(level_number(level))
    if structlog.is_configured() and structlog.get_config()["wrapper_class"] in _WRAPPERS.values():
        structlog.configure(wrapper_class=_WRAPPERS[level])


def level_number(level: str) -> int:
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
    number: int = getattr(logging, level.upper())
    return number


LEVEL_SAID = "events of level {level} and above are logged"
DEBUG_IS = "debug adds the log of the Kafka clients, which is often empty."
_WRAPPERS = {level: structlog.make_filtering_bound_logger(level_number(level)) for level in LEVELS}
"""Wrapper class of each level; `set_level` changes only configurations with one of them."""


def _with_defaults(fields: Mapping[str, object]) -> Processor:
    def add(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**fields, **event}

    return add


def _keep_places_only(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    replace_exception(event)
    return event


def _lay_out_lines(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Move list fields with lines of text below the event, as the renderer does with tracebacks."""
    lines = [line for name in LINE_LISTS if name in event for line in event.pop(name)]
    if lines:
        event["exception"] = "\n".join(f"    {line}" for line in lines)
    return event


class _SafeStream:
    """Stream that ignores write errors: a lost log line must not stop a worker."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except (OSError, ValueError):
            return

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return
