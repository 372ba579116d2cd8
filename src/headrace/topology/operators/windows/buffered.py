"""Rows of a suppression's buffer: a buffered change, and its format in the store.

    time (8)  timestamp (8)  size of prior (4)  size of value (4)  prior  value
    headers: count (4), then for each: size of name (4)  name  size of value (4)  value

All numbers are big-endian; a size of -1 means null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.topology.context.context import Headers
from headrace.topology.errors import SerdeError
from headrace.topology.serdes import Serde
from headrace.topology.serdes._serde import Around
from headrace.topology.serdes.normalise import normalised

_HEAD = struct.Struct(">qqii")
_INT = struct.Struct(">i")


class Buffered(NamedTuple):
    """A buffered change.

    Args:
        prior: the value that was forwarded last, or None.
        time: its time in the order of emission, in milliseconds: the window's end, or the timestamp
            of the first buffered change.
        timestamp: the timestamp of the last change.
    """

    value: Any
    prior: Any
    time: int
    timestamp: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class BufferedSerde(Around[Any]):
    """Serde of buffered changes, with an inner serde for the values.

    >>> from headrace import serdes
    >>> rows = BufferedSerde(serdes.string)
    >>> rows.deserialize(rows.serialize(Buffered("b", None, 5, 7, [("h", b"1")])))
    Buffered(value='b', prior=None, time=5, timestamp=7, headers=[('h', b'1')])
    """

    name: str = field(init=False)
    immutable: bool = field(init=False)
    canonical: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        inner = self.inner
        object.__setattr__(self, "name", f"buffered({'' if inner is None else inner.name})")
        object.__setattr__(self, "immutable", inner is not None and inner.immutable)

    def serialize(self, value: Buffered, /) -> bytes:
        encode = self._known.serialize
        data = None if value.value is None else encode(value.value)
        prior = None if value.prior is None else encode(value.prior)
        head = _HEAD.pack(value.time, value.timestamp, _size(prior), _size(data))
        headers = value.headers or ()
        parts = [head, prior or b"", data or b"", _INT.pack(len(headers))]
        for name, content in headers:
            encoded = name.encode(errors="surrogateescape")
            parts += [_INT.pack(len(encoded)), encoded, _INT.pack(_size(content)), content or b""]
        return b"".join(parts)

    def deserialize(self, data: bytes, /) -> Buffered:
        decode = self._known.deserialize
        try:
            row = _fields(data)
        except struct.error as error:
            raise SerdeError(
                f"serde {self.name!r} cannot decode {len(data)} bytes; another operator, or Kafka "
                "Streams, may have written the store's changelog. Give the operator another name"
            ) from error
        return row._replace(
            value=None if row.value is None else decode(row.value),
            prior=None if row.prior is None else decode(row.prior),
        )

    def normalise(self, value: Buffered, /) -> Buffered:
        now, prior = normalised(self._known, value.value), normalised(self._known, value.prior)
        return value._replace(value=now, prior=prior, headers=list(value.headers or ()))

    @property
    def _known(self) -> Serde[Any]:
        if self.inner is None:
            raise SerdeError(f"serde {self.name!r} requires a serde for the values")
        return self.inner


def _fields(data: bytes) -> Buffered:
    """Return a row with its encoded values; raise struct.error for another format."""
    time, timestamp, prior_size, value_size = _HEAD.unpack_from(data)
    reader = _FieldReader(data, _HEAD.size)
    prior, value = reader.take(prior_size), reader.take(value_size)
    return Buffered(value, prior, time, timestamp, list(reader.headers()))


def is_buffered(data: bytes) -> bool:
    """Return whether bytes have the format of this module; rows of Kafka Streams do not.

    >>> from headrace import serdes
    >>> row = BufferedSerde(serdes.string).serialize(Buffered("b", None, 5, 7, []))
    >>> is_buffered(row), is_buffered(row[:-1])
    (True, False)
    """
    try:
        _fields(data)
    except struct.error:
        return False
    return True


class _FieldReader:
    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def number(self) -> int:
        (number,) = _INT.unpack_from(self._data, self._position)
        self._position += _INT.size
        return int(number)

    def take(self, size: int) -> bytes | None:
        if size < 0:
            return None
        start, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise struct.error("the bytes end early")
        return self._data[start : self._position]

    def headers(self) -> Iterator[tuple[str, bytes | None]]:
        for _ in range(self.number()):
            name = self.take(self.number()) or b""
            yield name.decode(errors="surrogateescape"), self.take(self.number())


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)
