"""What an error of the generated code is about, where no frame of the user's own tells.

Python keeps the columns of what a frame ran last; the text there says whether a key or a value was
being read or written. Nothing is asked before something has failed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from types import CodeType, TracebackType
from typing import Any

from headrace.topology.errors import NoPairError, Part, SerdeError

__all__ = ["explained", "functions_of", "part_of"]

_CODED = re.compile(r"(?:(?:en|de)code|keep)_(key|value)_\d+\(")
_UNPACKED = re.compile(r"key_\d+, value_\d+|\(k, v\)|k, v")


def explained(error: Exception, filename: str, lines: Sequence[str]) -> Exception:
    """Say of a serde's error whether it was about the key or the value, and what no pair is.

    Args:
        error: what was raised.
        filename: of the generated code.
        lines: of the generated code.

    Returns:
        The error to report.
    """
    if isinstance(error, SerdeError):
        error.part = error.part or part_of(error.__traceback__, filename, lines)
    elif isinstance(error, ValueError) and "values to unpack" in str(error):
        frames = list(_frames(error.__traceback__))
        is_ours = bool(frames) and frames[-1].tb_frame.f_code.co_filename == filename
        if is_ours and _UNPACKED.search(_ran(frames[-1], lines)):
            wrong = NoPairError("a tuple of another length than two")
            wrong.__cause__ = error
            return wrong
    return error


def part_of(traceback: TracebackType | None, filename: str, lines: Sequence[str]) -> Part | None:
    """Whether the generated code was reading or writing a key or a value, if it was.

    Args:
        traceback: of the error.
        filename: of the generated code.
        lines: of the generated code.
    """
    found: Part | None = None
    for frame in _frames(traceback):
        if frame.tb_frame.f_code.co_filename == filename:
            coded = _CODED.match(_ran(frame, lines))
            found = None if coded is None else "key" if coded[1] == "key" else "value"
    return found


def functions_of(node: object) -> list[str]:
    """File, line and name of the user's functions that a node was given.

    Args:
        node: of a topology.

    >>> functions_of(len)
    []
    """
    codes = dict.fromkeys(_codes(node, 3))
    return [f"{code.co_filename}:{code.co_firstlineno} {code.co_name}" for code in codes]


def _codes(given: Any, depth: int) -> Iterator[CodeType]:
    while isinstance(given, functools.partial):
        given = given.func
    code = getattr(given, "__code__", None)
    if isinstance(code, CodeType):
        yield code
    elif is_dataclass(given) and not isinstance(given, type) and depth:
        for one in fields(given):
            yield from _codes(getattr(given, one.name, None), depth - 1)
    elif isinstance(given, (tuple, list)) and depth:
        for item in given:
            yield from _codes(item, depth - 1)
    elif callable(given) and not isinstance(given, type):
        call = getattr(type(given).__call__, "__code__", None)
        if isinstance(call, CodeType):
            yield call


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _ran(frame: TracebackType, lines: Sequence[str]) -> str:
    """The text that a frame ran last; empty where Python was told to keep no columns."""
    positions = frame.tb_frame.f_code.co_positions()
    first, last, begin, end = next(islice(positions, frame.tb_lasti // 2, None))
    if first is None or first != last or begin is None or end is None:
        return ""
    line = lines[first - 1].encode()
    return line[begin:end].decode()
