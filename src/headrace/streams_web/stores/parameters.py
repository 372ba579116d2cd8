"""Parameters of each query with their descriptions; an unknown parameter is an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from headrace.streams.queries.errors import WrongQueryError

_TIME = "Milliseconds since 1970, or a time such as 2026-01-31T09:00:00Z."
_SAME = {
    "min_position": "Wait until a partition is so far: PARTITION:OFFSET, as places have them, or "
    "TOPIC-PARTITION:OFFSET of a record that was written to an input.",
    "wait": "For how long, such as 2s; 30s at most.",
    "max_age": "Refuse rows that may lack changes of a longer time, such as 10s; 60s unless given. "
    "Where it is given, what a task has left behind on a host is taken too while it moves.",
    "route": "What becomes of a question whose rows other hosts have: proxy asks them, redirect "
    "sends whoever asks for one key there, none answers from here alone.",
    "partial": "true gives what there is where a host does not answer, with what is missing.",
    "json_keys": "true takes keys in parameters for JSON, also where they are text.",
}
_PAGED = {
    "limit": "Rows of a page, 100 unless it is given, 10000 at most.",
    "after": "What the page before has there.",
}
_CHANGES = {
    "from": "end, which it is unless given, or beginning: of each key what compaction has left.",
    "position": "Begin there: PARTITION:OFFSET,PARTITION:OFFSET, as events have it as their id.",
    "snapshot": "true tells the rows first, and then the changes that are not in them.",
}
_WINDOWS = {
    "from": f"Of windows the earliest start, of sessions the earliest end. {_TIME}",
    "to": f"The latest start. {_TIME}",
}
_KEYED = {**_SAME, **_PAGED, **_WINDOWS, "as_of": f"As of when, of a versioned store. {_TIME}"}
_UNREAD = ("json_keys",)

STORES: Mapping[str, str] = {}
STORE = {name: text for name, text in _SAME.items() if name not in _UNREAD}
KEY = _KEYED
GET = {"key": "The key.", **_KEYED}
MANY = STORE
RANGE = {
    **_SAME,
    **_PAGED,
    "from": "The first.",
    "to": "The last.",
    "reverse": "true or false",
}
PREFIX = {
    **_SAME,
    **_PAGED,
    "prefix": "The bytes that keys begin with, such as the first letters of texts.",
}
COUNT = {**STORE, "exact": "true looks at all of them."}
CHANGES = _CHANGES
CHANGES_OF_ALL = {
    **_CHANGES,
    "key": "Of this key alone.",
    "json_keys": "true takes it for JSON, also where keys are text.",
}

_INNER = frozenset({"partitions", "of", "left", "piece", "piece_of"})
"""Parameters between hosts."""
_REPEATED = frozenset({"min_position"})
_REFUSED_LATER = {"prefix": frozenset({"from", "to", "reverse"})}
"""Parameters that conflict with a parameter; the error is raised when they are read."""


def require_known(given: Iterable[str], known: Mapping[str, str]) -> None:
    """Raise WrongQueryError for a parameter that is ignored, or is given more than once."""
    later = frozenset[str]().union(*(_REFUSED_LATER.get(name, frozenset()) for name in known))
    for name, count in Counter(given).items():
        if count > 1 and name not in _REPEATED:
            raise WrongQueryError(f"{name[:40]} is given more than once; give it once")
        if name not in known and name not in _INNER and name not in later:
            there = ", ".join(sorted(known)) or "none"
            raise WrongQueryError(f"there is no parameter {name[:40]!r} here; there are: {there}")
