"""Attribution of an error in generated code to the key or the value of the record.

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

_SERDE_CALL = re.compile(r"(?:(?:en|de)code|keep)_(key|value)_\d+\(")
_FUNCTION_CALL = re.compile(r"(?:chosen\()?(\w+)[(,]")
"""A partitioner is the first argument of `compile.sink.chosen`, which calls it."""
_NOT_ITERABLE = re.compile(r"'(\w+)' object is not iterable")
_COLLECTED = re.compile(r"list\(")
_UNPACKED = re.compile(r"key_\d+, value_\d+|\(k, v\)|k, v")


def clarified(error: Exception, filename: str, lines: Sequence[str]) -> Exception:
    """Add the key or value part to a serde's error; replace an unpacking error by a clear error."""
    if isinstance(error, SerdeError):
        error.part = error.part or part_of(error.__traceback__, filename, lines)
    elif isinstance(error, ValueError) and "values to unpack" in str(error):
        frames = list(_frames(error.__traceback__))
        is_generated = bool(frames) and frames[-1].tb_frame.f_code.co_filename == filename
        if is_generated and _UNPACKED.search(_executed_text(frames[-1], lines)):
            no_pair = NoPairError("a tuple of another length than two")
            no_pair.__cause__ = error
            return no_pair
    elif isinstance(error, TypeError) and (match := _NOT_ITERABLE.fullmatch(str(error))):
        frames = list(_frames(error.__traceback__))
        is_generated = bool(frames) and frames[-1].tb_frame.f_code.co_filename == filename
        if is_generated and _is_iteration(frames[-1], lines):
            name = match[1]
            no_results = NoResultsError(
                "None" if name == "NoneType" else f"an object of type {name}"
            )
            no_results.__cause__ = error
            return no_results
    return error


def part_of(traceback: TracebackType | None, filename: str, lines: Sequence[str]) -> Part | None:
    """Return whether the generated code was reading or writing a key or a value, or None."""
    part: Part | None = None
    for frame in _frames(traceback):
        if frame.tb_frame.f_code.co_filename == filename:
            call = _SERDE_CALL.match(_executed_text(frame, lines))
            part = None if call is None else "key" if call[1] == "key" else "value"
    return part


def called_name(traceback: TracebackType | None, filename: str, lines: Sequence[str]) -> str | None:
    """Return the name that the generated code was calling when it failed, or None."""
    frames = [f for f in _frames(traceback) if f.tb_frame.f_code.co_filename == filename]
    match = _FUNCTION_CALL.match(_executed_text(frames[-1], lines)) if frames else None
    return None if match is None else match[1]


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_iteration(frame: TracebackType, lines: Sequence[str]) -> bool:
    """Return whether iterating over a function's result raised the error, not the function."""
    operation = dis.opname[frame.tb_frame.f_code.co_code[frame.tb_lasti]]
    return operation == "GET_ITER" or _COLLECTED.match(_executed_text(frame, lines)) is not None


def _executed_text(frame: TracebackType, lines: Sequence[str]) -> str:
    """Return the source text that a frame executed last; empty if Python keeps no columns."""
    positions = frame.tb_frame.f_code.co_positions()
    first, last, begin, end = next(islice(positions, frame.tb_lasti // 2, None))
    if first is None or first != last or begin is None or end is None:
        return ""
    line = lines[first - 1].encode()
    return line[begin:end].decode()
