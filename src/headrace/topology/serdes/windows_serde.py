r"""Serdes of windowed keys, in the format of Kafka Streams' topics.

    time windows:  the inner key  start (8)           the end is the start plus the windows' size
    sessions:      the inner key  end (8)  start (8)

Both numbers are big-endian milliseconds since 1970. Stores append a sequence number to a time
window's start, which is not part of these formats.

>>> from datetime import timedelta
>>> from headrace import Window, Windowed, serdes
>>> minutes = serdes.time_windowed(serdes.string, size=timedelta(minutes=1))
>>> minutes.serialize(Windowed("fr", Window(60_000, 120_000)))
b'fr\x00\x00\x00\x00\x00\x00\xea`'
>>> minutes.deserialize(b"fr" + bytes(8))
Windowed(key='fr', window=Window(start_ms=0, end_ms=60000))
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

from headrace.topology.arguments import refuse_other_than_serde
from headrace.topology.errors import SerdeError
from headrace.topology.serdes._serde import Around, Compound, Serde, refuse_bytes, refuse_object
from headrace.topology.windows import Window, Windowed, duration_ms

K = TypeVar("K")

UNLIMITED_MS = 2**63 - 1
"""Size and end of unlimited windows: the largest value of Java's long."""

_START = struct.Struct(">q")
_SEQUENCE = bytes(4)
_SESSION = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class TimeWindowedSerde(Around[K]):
    """Serde of keys in windows of a fixed size: tumbling, hopping, sliding or unlimited.

    Args:
        inner: the serde of the key itself; None must be replaced before use.
        size_ms: size of the windows in milliseconds.
    """

    size_ms: int
    name: str = field(init=False)
    immutable: bool = field(init=False)
    canonical: bool = field(init=False)

    def __post_init__(self) -> None:
        _take_over(self, "time_windowed")

    def serialize(self, value: Windowed[K], /) -> bytes:
        """Encode a windowed key; a window of another size is rejected because it would decode
        differently.
        """
        key, window = _parts(self.name, value)
        end = min(window.start_ms + self.size_ms, UNLIMITED_MS)
        # A sliding window with a time difference of 0 ends at its start.
        if window.end_ms != end or not 0 <= window.start_ms <= end:
            raise SerdeError(
                f"serde {self.name!r} takes windows of {self.size_ms} ms, not a window from "
                f"{window.start_ms} to {window.end_ms}; give it the size of the windows"
            )
        return _inner(self).serialize(key) + _START.pack(window.start_ms)

    def deserialize(self, data: bytes, /) -> Windowed[K]:
        """Decode a windowed key; the window's end is its start plus the size."""
        start = _unpacked(self.name, _START, data)[0]
        if start < 0:
            refuse_bytes(self.name, data, "its window begins before 1970")
        key = _inner(self).deserialize(data[: -_START.size])
        return Windowed(key, Window(start, min(start + self.size_ms, UNLIMITED_MS)))

    def inner_bytes(self, data: bytes, /) -> bytes:
        """Return the inner key's bytes of a windowed key's bytes; they determine the partition."""
        return data[: -_START.size]


@dataclass(frozen=True, slots=True)
class WindowStoreSerde(Compound, Generic[K]):
    """Serde of a window store's row keys: the topic's format, followed by a sequence number of 0
    (4).

    Args:
        windowed: the serde of the keys in topics.

    >>> from headrace import serdes
    >>> rows = WindowStoreSerde(TimeWindowedSerde(serdes.string, 10))
    >>> rows.serialize(Windowed("a", Window(1, 11))).hex(" ")
    '61 00 00 00 00 00 00 00 01 00 00 00 00'
    """

    inners: ClassVar[tuple[str, ...]] = ("windowed",)

    windowed: TimeWindowedSerde[K]
    name: str = field(default="window_store", init=False)
    immutable: bool = field(default=True, init=False)
    canonical: bool = field(default=True, init=False)

    def serialize(self, value: Windowed[K], /) -> bytes:
        return self.windowed.serialize(value) + _SEQUENCE

    def deserialize(self, data: bytes, /) -> Windowed[K]:
        return self.windowed.deserialize(data[: -len(_SEQUENCE)])


@dataclass(frozen=True, slots=True)
class SessionWindowedSerde(Around[K]):
    """Serde of keys in sessions."""

    name: str = field(init=False)
    immutable: bool = field(init=False)
    canonical: bool = field(init=False)

    def __post_init__(self) -> None:
        _take_over(self, "session_windowed")

    def serialize(self, value: Windowed[K], /) -> bytes:
        """Encode the inner key, the session's end and its start."""
        key, (start, end) = _parts(self.name, value)
        if not 0 <= start <= end:
            raise SerdeError(
                f"serde {self.name!r} cannot encode a session from {start} to {end}; sessions "
                "begin in 1970 at the earliest and do not end before they begin"
            )
        return _inner(self).serialize(key) + _SESSION.pack(end, start)

    def deserialize(self, data: bytes, /) -> Windowed[K]:
        """Decode the inner key and the session."""
        end, start = _unpacked(self.name, _SESSION, data)
        if not 0 <= start <= end:
            refuse_bytes(self.name, data, "its session begins before 1970, or after its end")
        return Windowed(_inner(self).deserialize(data[: -_SESSION.size]), Window(start, end))

    def inner_bytes(self, data: bytes, /) -> bytes:
        """Return the inner key's bytes of a windowed key's bytes; they determine the partition."""
        return data[: -_SESSION.size]


_Either = TimeWindowedSerde[Any] | SessionWindowedSerde[Any]


def _take_over(serde: _Either, kind: str) -> None:
    inner = serde.inner
    for name, value in (
        ("name", f"{kind}({'' if inner is None else inner.name})"),
        ("immutable", inner is not None and inner.immutable),
        ("canonical", inner is not None and inner.canonical),
    ):
        object.__setattr__(serde, name, value)


def _inner(serde: _Either) -> Serde[Any]:
    if serde.inner is None:
        raise SerdeError(
            f"serde {serde.name!r} requires a serde for the inner key; pass a serde, such as "
            "serdes.string, or let the DSL fill in the default"
        )
    return serde.inner


def _parts(name: str, value: Any) -> tuple[Any, Window]:
    if isinstance(value, Windowed) and value.key is not None:
        return value
    what = "a null key in a window" if isinstance(value, Windowed) else type(value).__name__
    raise SerdeError(f"serde {name!r} cannot encode {what}; pass a Windowed with a key")


def _unpacked(name: str, layout: struct.Struct, data: Any) -> tuple[Any, ...]:
    if type(data) is not bytes:
        refuse_object(name, data)
    if len(data) < layout.size:
        refuse_bytes(name, data, f"a windowed key takes at least {layout.size}")
    return layout.unpack_from(data, len(data) - layout.size)


def time_windowed(inner: Serde[K] | None, *, size: timedelta | None) -> TimeWindowedSerde[K]:
    """Create a serde of keys in windows of a fixed size, in the format of TimeWindowedSerializer.

    Args:
        inner: the serde of the key itself; None must be replaced before use.
        size: size of the windows (a sliding window's time difference); None for unlimited windows.
            It is not in the bytes, so a wrong size decodes to wrong ends.

    Raises:
        TopologyError: the size is not valid.
    """
    refuse_other_than_serde(inner, "inner", "time_windowed")
    if size is None:
        return TimeWindowedSerde(inner, UNLIMITED_MS)
    return TimeWindowedSerde(inner, duration_ms("size", size, at_least=0))


def session_windowed(inner: Serde[K] | None) -> SessionWindowedSerde[K]:
    """Create a serde of keys in sessions, in the format of SessionWindowedSerializer.

    Examples:
        >>> from headrace import serdes
        >>> session_windowed(serdes.string).serialize(Windowed("a", Window(1, 2))).hex(" ")
        '61 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01'
    """
    refuse_other_than_serde(inner, "inner", "session_windowed")
    return SessionWindowedSerde(inner)
