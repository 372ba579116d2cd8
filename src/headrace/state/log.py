"""Loggers of events, which use structlog or Python's `logging`.

    structlog is configured, by `headrace run` or by the program      ─► structlog
    structlog is not configured                                       ─► Python's `logging`

Changes of either configuration take effect immediately: nothing is decided when a logger is
created, and nothing is configured here. In Python's `logging` the logger's name is the name of the
module that logs, for example ``headrace.streams.worker.worker``; ``headrace`` is the parent of all.

The message contains the event and its fields, and each field is also an attribute of the log
record. An error given as ``exc_info`` is replaced by the code locations of its traceback, because
its text may quote a record.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

LINE_LISTS = ("last_output", "traceback")
"""Fields that are lists of lines."""
LogMethod = Callable[..., Any]
"""Log function; its arguments are an event and its fields."""

_RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event"}
"""Attribute names that Python's log records use themselves."""


class ModuleLog:
    """Logger that adds its fields to each event (see the module)."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        self._fields = dict(fields or {})

    def bind(self, **fields: Any) -> ModuleLog:
        """Return a logger with additional fields.

        Examples:
            >>> ModuleLog({"application": "shop"}).bind(task="0_1")
            <ModuleLog application=shop task=0_1>
        """
        return ModuleLog({**self._fields, **fields})

    def __repr__(self) -> str:
        return f"<ModuleLog {_format_fields(self._fields)}>"

    @property
    def debug(self) -> LogMethod:
        return self._log_method("debug")

    @property
    def info(self) -> LogMethod:
        return self._log_method("info")

    @property
    def warning(self) -> LogMethod:
        """Log a problem that the application has handled."""
        return self._log_method("warning")

    @property
    def error(self) -> LogMethod:
        """Log a problem that stops a worker or a part of it."""
        return self._log_method("error")

    def _log_method(self, level: str) -> LogMethod:
        """Return the log function of a level, for the module two frames up the stack.

        Only the properties may call this.
        """
        module = sys._getframe(2).f_globals.get("__name__", "headrace")
        structlog = sys.modules.get("structlog")
        # Its import takes 20 % of the start-up time; a program that configured it has imported it.
        if (
            structlog is None
            or not hasattr(structlog, "get_config")
            or not structlog.is_configured()
        ):
            return _StandardLogMethod(module, level, self._fields)
        factory = structlog.get_config()["logger_factory"]
        names = (module,) if isinstance(factory, structlog.stdlib.LoggerFactory) else ()
        bound = structlog.get_logger(*names).bind(**self._fields)
        if hasattr(bound, "_logger"):
            bound._logger = _WriteErrorsIgnored(bound._logger)
        method: LogMethod = getattr(bound, level)
        return method


def get_logger() -> ModuleLog:
    return ModuleLog()


def traceback_locations(error: BaseException) -> list[str]:
    """Return the code locations of an error's traceback, outermost first: file, line and function,
    no values.

    Examples:
        >>> try:
        ...     int("secret")
        ... except ValueError as error:
        ...     print(traceback_locations(error))
        ['<doctest headrace.state.log.traceback_locations[0]>:2 <module>']
    """
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def replace_exception(event: MutableMapping[str, Any]) -> None:
    """Replace the error in ``exc_info`` by its class name and the locations of its traceback."""
    exc_info = event.pop("exc_info", None)
    error = sys.exc_info()[1] if exc_info is True else exc_info
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        event["places"] = traceback_locations(error)


class _WriteErrorsIgnored:
    """Wrapper of a program's logger that ignores write errors, such as a full disk or a closed
    pipe.

    A lost log line must not stop a worker. Python's `logging` ignores write errors, too.
    """

    __slots__ = ("_logger",)

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        write = getattr(self._logger, name)

        def write_or_ignore(*args: Any, **fields: Any) -> Any:
            with suppress(OSError, ValueError):
                return write(*args, **fields)

        return write_or_ignore if callable(write) else write


class _StandardLogMethod:
    """Log function for a single event that uses Python's `logging`."""

    __slots__ = ("_fields", "_level", "_logger")

    def __init__(self, module: str, level: str, fields: Mapping[str, Any]) -> None:
        self._logger = logging.getLogger(module)
        self._level = getattr(logging, level.upper())
        self._fields = fields

    def __call__(self, event: str, /, **fields: Any) -> None:
        if not self._logger.isEnabledFor(self._level):
            return
        merged = {**self._fields, **fields}
        replace_exception(merged)
        extra = {f"{name}_" if name in _RESERVED else name: merged[name] for name in merged}
        message = _message(event, merged)
        self._logger.log(self._level, "%s", message, extra={"event": event, **extra}, stacklevel=2)


def _message(event: str, fields: Mapping[str, Any]) -> str:
    short = {name: value for name, value in fields.items() if name not in LINE_LISTS}
    first = f"{event} {_format_fields(short)}".rstrip()
    below = [f"    {line}" for name in LINE_LISTS for line in fields.get(name, ())]
    return "\n".join([first, *below])


def _format_fields(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_format_value(value)}" for name, value in fields.items())


def _format_value(value: object) -> str:
    text = str(value)
    return text if text and text.isprintable() and not set(text) & {" ", "=", '"'} else repr(text)
