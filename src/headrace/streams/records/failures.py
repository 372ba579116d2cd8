"""What is said of the error that stopped an application: its reason, and the user's own lines.

The text of an error that is not ours may quote a record, so it is said where people look on, or
where the setting `log.errors` has it. Frames of ours and of libraries tell a user nothing and are
left out, unless there is no other.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.state.errors import StateError
from headrace.streams.errors import StreamsError
from headrace.streams.seams.clients import Log
from headrace.topology.errors import (
    BadRecordError,
    CallError,
    RegistryError,
    ReturnedError,
    SerdeError,
    TopologyError,
)
from headrace.topology.external_sink import SinkRefusedError

_OURS = (
    StreamsError,
    TopologyError,
    SerdeError,
    RegistryError,
    BadRecordError,
    SinkRefusedError,
    StateError,
)
_OWN = Path(__file__).parents[2]
"""As frames name it: through the links, where there are some."""
_GENERATED = re.compile(r"<.* sub-topology \d+ \w+>|<frozen .*>")
_CAUSES_MAX = 4
_PLACES_MAX = 12
_TEXT_MAX = 800


@dataclass(frozen=True, slots=True)
class Failure:
    """See the module; small enough for a worker's report.

    Args:
        reason: its text, where no record can be quoted by it or people look on.
        cause: the type of what is behind it, such as what a user's function raised.
        places: file, line and function, outermost first.
        traceback: the user's lines and the texts of errors, as Python prints them.
    """

    error: str
    reason: str
    cause: str
    places: list[str] = field(default_factory=list)
    traceback: list[str] = field(default_factory=list)

    @property
    def kind(self) -> tuple[str, str, str]:
        """The same for workers that fail in the same place in the same way."""
        where = self.places[-1] if self.places else self.reason
        return self.error, self.cause, where


def describe_failure(error: BaseException, *, full: bool) -> Failure:
    """Say what there is to say.

    Args:
        full: whether texts that may quote a record are said too.
    """
    chain = list(_chain(error))
    cause = chain[-1]
    told = is_ours(error) or full
    name = type(error).__name__
    reason = str(error) if told else f"{name}; set log.errors=full to have its text in the log"
    return Failure(
        error=name,
        reason=reason[: 2 * _TEXT_MAX],
        cause=type(cause).__name__,
        places=_places(chain),
        traceback=_lines(chain) if full else [],
    )


def log_failure(log: Log, failure: Failure, **fields: object) -> None:
    """Write it to a log: what happened, and where in the user's code."""
    log.error("application_failed", error=failure.error, reason=failure.reason, **fields)
    if failure.places or failure.traceback:
        shown: dict[str, Any] = {"traceback": failure.traceback} if failure.traceback else {}
        log.error("failure_located", error=failure.cause, places=failure.places, **shown, **fields)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what is behind it, the first cause last."""
    seen: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if seen is None:
            return
        yield seen
        hidden = seen.__suppress_context__
        seen = seen.__cause__ or (None if hidden else seen.__context__)


def _places(chain: list[BaseException]) -> list[str]:
    """The user's frames of what is furthest behind; ours for an error that nobody foresaw."""
    for error in reversed(chain):
        functions = _called(chain) if isinstance(error, StreamsError) else []
        if functions:
            return functions[-_PLACES_MAX:]
        found = [f for f in traceback.extract_tb(error.__traceback__) if is_the_users(f.filename)]
        if found:
            return [f"{f.filename}:{f.lineno} {f.name}" for f in found][-_PLACES_MAX:]
    if isinstance(chain[0], _OURS):
        return []
    frames = traceback.extract_tb(chain[-1].__traceback__)
    return [f"{f.filename}:{f.lineno} {f.name}" for f in frames][-_PLACES_MAX:]


def _called(chain: list[BaseException]) -> list[str]:
    """The functions of the node, where what failed is the call of one, or what it returned."""
    cause = chain[-1]
    if isinstance(cause, _OURS) and not isinstance(cause, (ReturnedError, CallError)):
        return []
    failed = next((error for error in chain if isinstance(error, StreamsError)), None)
    functions = () if failed is None else failed.functions
    node = getattr(failed, "node", None)
    return [
        f"{function.whole} (called by {node})"
        for function in functions
        if function.file is not None and is_the_users(function.file)
    ]


def _lines(chain: list[BaseException]) -> list[str]:
    """The user's frames with their source, and the texts, as Python shows them."""
    lines: list[str] = []
    for error in reversed(chain):
        frames = traceback.extract_tb(error.__traceback__)
        users = [frame for frame in frames if is_the_users(frame.filename)]
        if isinstance(error, _OURS) and len(chain) > 1:
            continue  # it stands in the reason
        for frame in users[-_PLACES_MAX:]:
            lines.append(f'File "{frame.filename}", line {frame.lineno}, in {frame.name}')
            source = linecache.getline(frame.filename, frame.lineno or 0).strip()
            lines += [f"  {source}"] if source else []
        if not isinstance(error, _OURS):
            text = "".join(traceback.format_exception_only(error)).strip()[:_TEXT_MAX]
            lines += text.splitlines()
    return lines


def is_ours(error: BaseException) -> bool:
    """Whether an error's text is written here, and quotes no record."""
    return isinstance(error, _OURS)


def is_the_users(filename: str) -> bool:
    """Whether a frame of this file is neither ours, nor generated, nor of a library."""
    if _GENERATED.fullmatch(filename):
        return False
    path = Path(filename)
    return not any(path.is_relative_to(place) for place in _not_the_users())


def _not_the_users() -> list[Path]:
    paths = sysconfig.get_paths()
    libraries = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [_OWN, *(Path(place) for place in libraries)]
