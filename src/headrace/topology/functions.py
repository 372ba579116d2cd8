"""What a user's function is called, and where it stands: for errors, and for the generated code.

Nothing is ever told of what a function holds or is called with: names and places alone.
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

# A look at what a function returns first, where nobody looks at it afterwards.
#
# A lambda that calls a coroutine function is none itself: as a predicate its coroutine holds for
# every record, and as an action it does nothing. The first good result of a task gives the function
# back to the generated code, so that later calls cost nothing more.


def refuse_never_run(result: object) -> None:
    """Raise if something would have to be awaited or asked, which nobody does.

    Raises:
        NeverRunError: it is a coroutine, a generator or the like.
    """
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise NeverRunError(type(result).__name__)
    if inspect.isawaitable(result) or inspect.isasyncgen(result):
        raise NeverRunError(type(result).__name__)


def holds(result: object) -> bool:
    """Whether what a predicate returned is true; for one that is called within another function.

    Raises:
        NeverRunError: it is a coroutine, a generator or the like.
    """
    if result is True or result is False:
        return result
    refuse_never_run(result)
    return bool(result)


def looked_at(
    function: Callable[..., Any], keep: Callable[[Callable[..., Any]], None]
) -> Callable[..., Any]:
    """Return what calls a function and looks at its first result.

    Args:
        keep: called with the function itself once its result is what it should be.
    """

    def call(*values: Any) -> Any:
        result = function(*values)
        refuse_never_run(result)
        keep(function)
        return result

    return call


F = TypeVar("F", bound=Callable[..., Any])

_DEPTH_MAX = 4
_CALLED = ("process", "transform", "__call__", "__init__")
"""What is called of a class that was given, or of what it makes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a function stands.

    Args:
        name: of the function, with that of its class.
        file: as Python has it; None for what is not written in Python.
        line: the function's first one.
        module: the module's name.
    """

    name: str
    file: str | None = None
    line: int = 0
    module: str = ""

    def __str__(self) -> str:
        """The same on every machine: with the end of the path that tells the module."""
        return self.name if self.file is None else self._in(_tail(self.file, self.module))

    @property
    def whole(self) -> str | None:
        """With the whole path, which editors follow."""
        return None if self.file is None else self._in(self.file)

    def _in(self, file: str) -> str:
        return _printable(f"{file}:{self.line} {self.name}")


def place_of(function: object) -> Place | None:
    """Where a function stands; None for what is ours, or is no function.

    >>> str(place_of(str.upper)), str(place_of(len)), str(place_of(functools.partial(int, base=2)))
    ('str.upper', 'len', 'int')
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
        known = module.lstrip("_")  # that of a module in C, such as `operator`'s
        return Place(_printable(name if known in ("", "builtins") else f"{known}.{name}"))
    code: CodeType = method.__code__
    name = str(getattr(method, "__qualname__", code.co_qualname))
    return Place(_own_name(name), code.co_filename, code.co_firstlineno, module)


def made_of(function: Callable[..., Any]) -> Callable[[F], F]:
    """Say of a function of ours which one of the user it stands for."""

    def marked(ours: F) -> F:
        ours.__wrapped__ = function  # type: ignore[attr-defined]
        return ours

    return marked


def functions_in(given: object, depth: int = _DEPTH_MAX) -> Iterator[Callable[..., Any]]:
    """The user's functions in a node of a topology, without those of serdes.

    Args:
        depth: how far to look into it.
    """
    if hasattr(given, "serialize") and hasattr(given, "deserialize"):
        return
    if callable(given) and place_of(given) is not None:
        yield given
    elif depth and is_dataclass(given) and not isinstance(given, type):
        for one in fields(given):
            yield from functions_in(getattr(given, one.name, None), depth - 1)
    elif depth and isinstance(given, (tuple, list)):
        for item in given:
            yield from functions_in(item, depth - 1)


def called(traceback: TracebackType | None, generated: str) -> Place | None:
    """The first function in a traceback that is neither ours nor generated, if there is one.

    Args:
        generated: the file name of the generated code.
    """
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename != generated and not is_ours(_module_in(frame)):
            code = frame.f_code
            name = _own_name(code.co_qualname)
            return Place(name, code.co_filename, code.co_firstlineno, _module_in(frame))
        traceback = traceback.tb_next
    return None


def calling_line() -> str:
    """File and line of the user's code that called us."""
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
    """Whether a module is one of this project."""
    return module == "headrace" or module.startswith("headrace.")


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        unwrapped: Callable[..., Any] = inspect.unwrap(function)
    except ValueError:  # it says that it wraps itself
        return function
    return unwrapped


def _in_python(function: Any) -> Any:
    """What is called, if it is written in Python and not here."""
    if isinstance(function, type):
        found = [getattr(function, name, None) for name in _CALLED]
    else:
        found = [function, getattr(type(function), "__call__", None)]  # noqa: B004
    for method in found:
        code = getattr(method, "__code__", None)
        # What a dataclass has by itself comes from no file.
        if isinstance(code, CodeType) and code.co_filename != "<string>":
            return None if is_ours(_module_of(method)) else method
    return None


def _own_name(qualified: str) -> str:
    return qualified.rpartition("<locals>.")[2]


def _tail(file: str, module: str) -> str:
    """The end of a path that tells the module: ``examples/word_count.py``."""
    path = PurePath(file)
    names = [*module.split("."), *(["__init__"] if path.stem == "__init__" else [])]
    tail = path.parts[-len(names) :]
    if [*tail[:-1], path.stem] == names:
        return "/".join(tail)
    return path.name


def _printable(text: str) -> str:
    """On one line, whatever somebody called a function."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# Where the user's code writes nodes and stores, for errors about two that have one name.


Kind = Literal["node", "store"]
Lines = Mapping[tuple[Kind, str], tuple[str, ...]]
"""By kind and name: file and line of each call that wrote one, in order."""


def with_lines(lines: Lines, kind: Kind, names: Iterable[str]) -> Lines:
    """The lines, and the present one of the user's code for some more nodes or stores."""
    here = calling_line()
    return {**lines, **{(kind, n): (*lines.get((kind, n), ()), here) for n in names}}


def said_lines(lines: Lines, kind: Kind, name: str) -> str:
    """Where those of a name are written, to stand behind it; empty where nobody knows.

    Example:
        >>> said_lines({("node", "by-word"): ("app.py:3", "app.py:9")}, "node", "by-word")
        ', at app.py:3 and at app.py:9'
        >>> said_lines({}, "node", "by-word")
        ''
    """
    known = dict.fromkeys(lines.get((kind, name), ()))
    return f", at {' and at '.join(known)}" if known else ""
