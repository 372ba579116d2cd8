"""Attribution of an error in generated code to the key or the value, if no user frame does.

Python keeps the source columns that each frame of a traceback executed last. The text there shows
whether a key or a value was being read or written. This runs only after a failure.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from types import TracebackType

from headrace.topology.errors import NoPairError, NoResultsError, Part, SerdeError

_CODED = re.compile(r"(?:(?:en|de)code|keep)_(key|value)_\d+\(")
_NAME_CALLED = re.compile(r"(?:chosen\()?(\w+)[(,]")
"""A partitioner is the first argument of `compile.sink.chosen`, which calls it."""
_NOT_ITERABLE = re.compile(r"'(\w+)' object is not iterable")
_GATHERED = re.compile(r"list\(")
_UNPACKED = re.compile(r"key_\d+, value_\d+|\(k, v\)|k, v")


def explained(error: Exception, filename: str, lines: Sequence[str]) -> Exception:
    """Add the key or value part to a serde's error; replace an unpacking error by a clear error."""
    if isinstance(error, SerdeError):
        error.part = error.part or part_of(error.__traceback__, filename, lines)
    elif isinstance(error, ValueError) and "values to unpack" in str(error):
        frames = list(_frames(error.__traceback__))
        is_ours = bool(frames) and frames[-1].tb_frame.f_code.co_filename == filename
        if is_ours and _UNPACKED.search(_ran(frames[-1], lines)):
            wrong = NoPairError("a tuple of another length than two")
            wrong.__cause__ = error
            return wrong
    elif isinstance(error, TypeError) and (found := _NOT_ITERABLE.fullmatch(str(error))):
        frames = list(_frames(error.__traceback__))
        is_ours = bool(frames) and frames[-1].tb_frame.f_code.co_filename == filename
        if is_ours and _asked_for_results(frames[-1], lines):
            name = found[1]
            none = NoResultsError("None" if name == "NoneType" else f"an object of type {name}")
            none.__cause__ = error
            return none
    return error


def part_of(traceback: TracebackType | None, filename: str, lines: Sequence[str]) -> Part | None:
    """Return whether the generated code was reading or writing a key or a value, or None."""
    found: Part | None = None
    for frame in _frames(traceback):
        if frame.tb_frame.f_code.co_filename == filename:
            coded = _CODED.match(_ran(frame, lines))
            found = None if coded is None else "key" if coded[1] == "key" else "value"
    return found


def name_called(traceback: TracebackType | None, filename: str, lines: Sequence[str]) -> str | None:
    """Return the name that the generated code was calling when it failed, or None."""
    frames = [f for f in _frames(traceback) if f.tb_frame.f_code.co_filename == filename]
    found = _NAME_CALLED.match(_ran(frames[-1], lines)) if frames else None
    return None if found is None else found[1]


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _asked_for_results(frame: TracebackType, lines: Sequence[str]) -> bool:
    """Return whether iterating over a function's result raised the error, not the function."""
    operation = dis.opname[frame.tb_frame.f_code.co_code[frame.tb_lasti]]
    return operation == "GET_ITER" or _GATHERED.match(_ran(frame, lines)) is not None


def _ran(frame: TracebackType, lines: Sequence[str]) -> str:
    """Return the source text that a frame executed last; empty if Python keeps no columns."""
    positions = frame.tb_frame.f_code.co_positions()
    first, last, begin, end = next(islice(positions, frame.tb_lasti // 2, None))
    if first is None or first != last or begin is None or end is None:
        return ""
    line = lines[first - 1].encode()
    return line[begin:end].decode()
