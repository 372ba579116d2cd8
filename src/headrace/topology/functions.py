"""Names and source locations of user functions, for errors and for the generated code.

The results contain only names and locations, never a function's variables or arguments.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import PurePath
from types import CodeType, FrameType, TracebackType
from typing import Any, Literal, TypeVar

from headrace.topology.errors import NeverRunError

# Check of a function's first result, for results that are not used otherwise.
#
# A lambda that calls a coroutine function is not a coroutine function itself: as a predicate its
# coroutine is true for every record, and as an action it does nothing. After the first valid result
# the generated code calls the function directly, so later calls have no overhead.


def refuse_never_run(result: object) -> None:
    """Raise if a function's result is a coroutine or generator, which would never run."""
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise NeverRunError(type(result).__name__)
    if inspect.isawaitable(result) or inspect.isasyncgen(result):
        raise NeverRunError(type(result).__name__)


def is_true(result: object) -> bool:
    """Return the truth value of the result of a predicate that another function called."""
    if result is True or result is False:
        return result
    refuse_never_run(result)
    return bool(result)


def looked_at(
    function: Callable[..., Any], keep: Callable[[Callable[..., Any]], None]
) -> Callable[..., Any]:
    """Wrap a function to check its first result; `keep` then replaces the wrapper."""

    def call(*values: Any) -> Any:
        result = function(*values)
        refuse_never_run(result)
        keep(function)
        return result

    return call


F = TypeVar("F", bound=Callable[..., Any])

_DEPTH_MAX = 4
_CALLED = ("process", "transform", "__call__", "__init__")
"""Methods of a user's class that are called, in order of preference."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Source location of a function.

    Args:
        name: The function's name, with its class.
        file: Its file as in Python's code object; None if it is not written in Python.
        line: First line of the function.
        module: The module's name.
    """

    name: str
    file: str | None = None
    line: int = 0
    module: str = ""

    def __str__(self) -> str:
        """Return the location with a path that does not depend on the machine."""
        return self.name if self.file is None else self._in(_tail(self.file, self.module))

    @property
    def absolute(self) -> str | None:
        """Location with the full path, which editors can open."""
        return None if self.file is None else self._in(self.file)

    def _in(self, file: str) -> str:
        return _printable(f"{file}:{self.line} {self.name}")


def location_of(function: object) -> SourceLocation | None:
    """Return the location of a user function; None for this package's functions and other objects.

    >>> [str(location_of(f)) for f in (str.upper, len, functools.partial(int, base=2))]
    ['str.upper', 'len', 'int']
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not callable(function):
        return None
    function = _unwrapped(function)
    module = _module_of(function)
    if is_ours(module):
        return None
    method = _in_python(function)
    if method is None:
        name = str(getattr(function, "__qualname__", type(function).__qualname__))
        known = module.lstrip("_")  # modules in C start with an underscore, such as `_operator`
        return SourceLocation(_printable(name if known in ("", "builtins") else f"{known}.{name}"))
    code: CodeType = method.__code__
    name = str(getattr(method, "__qualname__", code.co_qualname))
    return SourceLocation(_unqualified_name(name), code.co_filename, code.co_firstlineno, module)


def wraps_function(function: Callable[..., Any]) -> Callable[[F], F]:
    """Mark a wrapper with the user function that it wraps."""

    def mark(wrapper: F) -> F:
        wrapper.__wrapped__ = function  # type: ignore[attr-defined]
        return wrapper

    return mark


def functions_in(value: object, depth: int = _DEPTH_MAX) -> Iterator[Callable[..., Any]]:
    """Yield the user functions in a node of a topology, except functions of serdes."""
    if hasattr(value, "serialize") and hasattr(value, "deserialize"):
        return
    if callable(value) and location_of(value) is not None:
        yield value
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for member in fields(value):
            yield from functions_in(getattr(value, member.name, None), depth - 1)
    elif depth and isinstance(value, (tuple, list)):
        for item in value:
            yield from functions_in(item, depth - 1)


def called(traceback: TracebackType | None, generated: str) -> SourceLocation | None:
    """Return the first user function in a traceback outside of the `generated` file, or None."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename != generated and not is_ours(_module_in(frame)):
            code = frame.f_code
            name = _unqualified_name(code.co_qualname)
            return SourceLocation(name, code.co_filename, code.co_firstlineno, _module_in(frame))
        traceback = traceback.tb_next
    return None


def calling_line() -> str:
    """Return file and line of the user code that called this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(_module_in(frame)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _module_in(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _module_of(function: object) -> str:
    module = getattr(function, "__module__", None)
    return str(type(function).__module__ if module is None else module)


def is_ours(module: str) -> bool:
    return module == "headrace" or module.startswith("headrace.")


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        unwrapped: Callable[..., Any] = inspect.unwrap(function)
    except ValueError:  # it wraps itself
        return function
    return unwrapped


def _in_python(function: Any) -> Any:
    """Return the called method if it is a user's and written in Python, or None."""
    if isinstance(function, type):
        candidates = [getattr(function, name, None) for name in _CALLED]
    else:
        candidates = [function, getattr(type(function), "__call__", None)]  # noqa: B004
    for method in candidates:
        code = getattr(method, "__code__", None)
        # Generated methods of a dataclass have no file.
        if isinstance(code, CodeType) and code.co_filename != "<string>":
            return None if is_ours(_module_of(method)) else method
    return None


def _unqualified_name(qualified: str) -> str:
    return qualified.rpartition("<locals>.")[2]


def _tail(file: str, module: str) -> str:
    """Return the end of a path that corresponds to the module: ``examples/word_count.py``."""
    path = PurePath(file)
    names = [*module.split("."), *(["__init__"] if path.stem == "__init__" else [])]
    tail = path.parts[-len(names) :]
    if [*tail[:-1], path.stem] == names:
        return "/".join(tail)
    return path.name


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# Source lines that create nodes and stores, for errors about duplicate names.


Kind = Literal["node", "store"]
CreationLines = Mapping[tuple[Kind, str], tuple[str, ...]]
"""File and line of each call that created a node or store, by kind and name, in order."""


def with_lines(lines: CreationLines, kind: Kind, names: Iterable[str]) -> CreationLines:
    """Return the lines, with the current line of the user's code added for some nodes or stores."""
    line = calling_line()
    return {**lines, **{(kind, n): (*lines.get((kind, n), ()), line) for n in names}}


def at_lines(lines: CreationLines, kind: Kind, name: str) -> str:
    """Return the locations of a name as the end of a sentence; empty if they are unknown.

    >>> at_lines({("node", "by-word"): ("app.py:3", "app.py:9")}, "node", "by-word")
    ', at app.py:3 and at app.py:9'
    >>> at_lines({}, "node", "by-word")
    ''
    """
    known = dict.fromkeys(lines.get((kind, name), ()))
    return f", at {' and at '.join(known)}" if known else ""
