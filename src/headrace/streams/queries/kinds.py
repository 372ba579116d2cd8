"""Errors for methods that belong to another kind of store, with the right method."""

from __future__ import annotations

from typing import Any

from headrace.streams.queries.descriptors import StoreDescriptor
from headrace.streams.queries.errors import WrongKindError

_ROW = frozenset({"get", "find", "get_many"})
_ROWS = frozenset({"range", "prefix_scan"})
_WINDOW = frozenset({"fetch", "find_sessions"})
_WINDOWS = frozenset({"fetch_all", "find_sessions_by_end"})
_VERSION = frozenset({"as_of", "find_as_of"})
_SESSIONS = frozenset({"find_sessions", "find_sessions_by_end"})


class KindGuard:
    """Base class that refuses the methods of other kinds of stores; `hasattr` is False for them."""

    def __init__(self, store: StoreDescriptor) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        if "store" in self.__dict__:  # not while it is copied
            refused = wrong_kind(self.store.name, self.store.kind, name)
            if refused is not None:
                raise refused
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _refused(self, method: str) -> WrongKindError:
        refused = wrong_kind(self.store.name, self.store.kind, method)
        assert refused is not None, (self.store.kind, method)
        return refused


def wrong_kind(name: str, kind: str, method: str) -> WrongKindError | None:
    """Return the error that names the right method, or None if no kind of store has `method`.

    >>> print(wrong_kind("visits", "window", "get"))
    store 'visits' has windows. Use fetch(key, start, end)
    >>> print(wrong_kind("counts", "key-value", "fetch_all"))
    store 'counts' has no windows. Use range(start, end) or all()
    """
    if kind in ("window", "session"):
        problem = _of_windows(kind, method)
    elif method in _VERSION:
        problem = "has no versions. Use get(key)"
    elif method in _WINDOW:
        problem = "has no windows. Use get(key)"
    elif method in _WINDOWS:
        problem = "has no windows. Use range(start, end) or all()"
    else:
        return None
    return None if problem is None else WrongKindError(f"store {name!r} {problem}")


def _of_windows(kind: str, method: str) -> str | None:
    if kind == "window" and method in _SESSIONS:
        instead = "fetch(key, start, end)" if method in _WINDOW else "fetch_all(start, end)"
        return f"has windows, not sessions. Use {instead}"
    if method in _ROW | _VERSION:
        instead = "fetch(key, start, end)"
    elif method in _ROWS:
        instead = "fetch_all(start, end) or all()"
    else:
        return None
    if kind == "session":
        return f"has sessions. Use {instead} or find_sessions(key, earliest_end, latest_start)"
    return f"has windows. Use {instead}"
