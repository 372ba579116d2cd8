"""What the steps of random programs compute, and the windows that they take."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from headrace.topology.windows import JoinWindows, TimeWindows, Windowed

MS = timedelta(milliseconds=1)
KEYS = ("a", "b", "c", "dd")


class Transformer:
    """Makes another value of each; what is gone stays gone."""

    def __init__(self, n: int, *, failing: bool = False) -> None:
        self._n = n
        self._failing = failing

    def transform(self, key: str, value: int | None) -> int | None:
        if self._failing and _number_of(value) % 6 == self._n % 6:
            raise FailedError(value)
        return None if value is None else mapped(value + len(key), self._n)


class WindowTransformer(Transformer):
    """The same of windows."""

    def transform(self, key: Any, value: int | None) -> int | None:
        return super().transform(key.key, value)


class FailedError(Exception):
    """Raised by a function of a program for some of its arguments."""


def failing(function: Callable[..., Any], n: int) -> Callable[..., Any]:
    """Return the same function, which fails for some arguments."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        if sum(map(_number_of, arguments), n) % 6 == 2:
            raise FailedError(arguments)
        return function(*arguments)

    return call


def _number_of(argument: object) -> int:
    if argument is None:
        return 5
    return argument * 7 if isinstance(argument, int) else len(str(argument))


def kept(key: str | None, value: int | None, n: int) -> bool:
    """Whether a filter keeps a record."""
    return (len(key or "") + (value or 0) + n) % 3 != 0


def mapped(value: int | None, n: int) -> int | None:
    """Another value; None now and then."""
    number = (0 if value is None else value) + n
    return None if number % 5 == 4 else number % 50


def key_of(key: str | None, value: int | None, n: int) -> str | None:
    """Another key; None now and then."""
    number = len(key or "") + (value or 0) * 7 + n
    return None if number % 13 == 5 else KEYS[number % len(KEYS)]


def joined(one: int | None, other: int | None) -> int:
    """Of two values, either of which may be missing, another one."""
    return ((one or 0) * 7 + (other or 0) * 3 + (one is None) + 2 * (other is None)) % 97


def merged(key: str, one: int, other: int) -> int:
    """Not commutative either."""
    return (one * 5 + other + len(key)) % 89


def windows_of(n: int) -> TimeWindows:
    """Tumbling and hopping windows of some sizes."""
    size = (3, 5, 10, 30)[n % 4]
    advance = None if n % 3 == 0 else max(1, size // 2)
    grace = (0, 0, 4, 20)[n // 3 % 4]
    return TimeWindows(
        size=size * MS, advance=advance if advance is None else advance * MS, grace=grace * MS
    )


def join_windows_of(n: int) -> JoinWindows:
    """Windows that are not the same on both sides, some of them."""
    difference = (0, 3, 10, 40)[n % 4] * MS
    after = None if n % 3 else 0 * MS
    return JoinWindows(time_difference=difference, after=after, grace=(0, 2, 15)[n // 4 % 3] * MS)


def subtracted(key: str, value: int, old: int) -> int | None:
    """What takes away; not the opposite of adding, so that order shows."""
    return reduced(old - len(key), value + 5)


def window_text(key: Any) -> Any:
    """A plain key that says all windows of a key."""
    if not isinstance(key, Windowed):
        return key
    return f"{window_text(key.key)}-{key.window.start_ms}-{key.window.end_ms}"


def kept_window(key: Any, n: int) -> bool:
    """Whether a filter keeps a windowed key."""
    return (key.window.start_ms + n) % 3 > 0


def windowed_total(key: Any, value: int, old: int) -> int | None:
    """Like `aggregated`, of keys with windows."""
    return reduced(old + key.window.start_ms, value)


def unwindowed(stream: Any) -> Any:
    """The stream with plain keys, which say the window."""
    return stream.select_key(lambda w, v: f"{w.key}-{w.window.start_ms}-{w.window.end_ms}")


def aggregated_null(key: str, value: int | None, old: int) -> int | None:
    """Like `aggregated`; takes null values too."""
    return aggregated(key, -1 if value is None else value, old)


def reduced(old: int, new: int) -> int | None:
    """Not commutative, so that order shows; None now and then."""
    number = (old * 3 + new) % 101
    return None if number % 11 == 10 else number


def aggregated(key: str, value: int, old: int) -> int | None:
    """The same, of the key as well."""
    return reduced(old + len(key), value)


def summed(one: int, other: int) -> int:
    """What may be added up in any groups and in any order."""
    return one + other


def last_of(key: str, value: int, old: int) -> int | None:
    """How long the keys were together, and the last digit, so that order shows.

    None for some values, whatever there was.
    """
    return None if value % 7 == 6 else 100 * (old // 100 + len(key)) + value % 10


def last_of_both(key: str, one: int, other: int) -> int:
    """What `last_of` makes of the records of both."""
    del key
    return 100 * (one // 100 + other // 100) + other % 100


def weight(call: str, key: str, value: int, *, is_partial: bool) -> int:
    """What partial results and single records have together the same of."""
    if call == "reduce":
        return value
    return value // 100 if is_partial else len(key)
