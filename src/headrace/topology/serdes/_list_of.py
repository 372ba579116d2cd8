"""List serde in the format of Kafka's ListSerializer, behind `serdes.list_of`.

    fixed-size items:  00  count of nulls (4)  index of each null (4 each)  count (4)  items
    other items:       01  count (4)  and for each item its length (4, or -1 for null) and its bytes

All numbers are big-endian. The first byte distinguishes the two formats.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NoReturn, TypeVar

from headrace.topology.errors import SerdeError
from headrace.topology.serdes._serde import (
    DoubleSerde,
    IntegerSerde,
    Serde,
    for_topic,
    refuse_bytes,
    refuse_object,
)

T = TypeVar("T")

_FIXED = 0
_VARIABLE = 1
_NULL = -1
_pack_int = struct.Struct(">i").pack
_unpack_int = struct.Struct(">i").unpack_from
_NO_NULLS = _pack_int(0)


def item_width(inner: Serde[Any]) -> int | None:
    """Return the item size in bytes if Kafka treats the serde as fixed-size, or None."""
    if isinstance(inner, IntegerSerde):
        return inner.width
    return 8 if isinstance(inner, DoubleSerde) else None


@dataclass(frozen=True, slots=True)
class ListSerde(Generic[T]):
    """List of items of a serde."""

    inner: Serde[T]
    nulls: bool
    width: int | None
    name: str = field(init=False)
    immutable: bool = field(init=False, default=False)
    canonical: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"list_of({self.inner.name})")

    def for_topic(self, topic: str, *, is_key: bool) -> ListSerde[T]:
        inner = for_topic(self.inner, topic, is_key=is_key)
        return self if inner is self.inner else replace(self, inner=inner)

    def serialize(self, value: list[T], /) -> bytes:
        if type(value) is not list:
            raise SerdeError(
                f"serde {self.name!r} cannot encode a value of type {type(value).__name__}; "
                "pass a list"
            )
        if not self.nulls and None in value:
            raise SerdeError(
                f"serde {self.name!r} cannot encode None at index {value.index(None)}; "  # type: ignore[arg-type]
                "allow it with serdes.list_of(..., nulls=True)"
            )
        count = _pack_int(len(value))
        if self.width is None:
            return b"\x01" + count + b"".join(map(self._with_length, value))
        items = [self._of_width(item) for item in value if item is not None]
        nulls = [i for i, item in enumerate(value) if item is None] if self.nulls else []
        if not nulls:
            return b"\x00" + _NO_NULLS + count + b"".join(items)
        indexes = struct.pack(f">{len(nulls) + 1}i", len(nulls), *nulls)
        return b"\x00" + indexes + count + b"".join(items)

    def _with_length(self, item: T) -> bytes:
        if item is None:
            return _pack_int(_NULL)
        data = self.inner.serialize(item)
        return _pack_int(len(data)) + data

    def _of_width(self, item: T) -> bytes:
        data = self.inner.serialize(item)
        if len(data) == self.width:
            return data
        raise SerdeError(
            f"serde {self.name!r} takes items of {self.width} bytes, but {self.inner.name!r} wrote "
            f"{len(data)}; correct item_bytes, or leave it out"
        )

    def deserialize(self, data: bytes, /) -> list[T]:
        if type(data) is not bytes:
            refuse_object(self.name, data)
        try:
            items = self._items(data)
        except (struct.error, IndexError):
            self._refuse(data, "it ends within the list")
        if not self.nulls and None in items:
            self._refuse(data, f"null at index {items.index(None)}; allow it with nulls=True")
        decode = self.inner.deserialize
        return [None if item is None else decode(item) for item in items]  # type: ignore[misc]

    def _items(self, data: bytes) -> list[bytes | None]:
        if data[0] == _VARIABLE:
            return self._variable_items(data)
        if data[0] != _FIXED:
            self._refuse(data, f"it begins with {data[0]}, where lists begin with 0 or 1")
        return self._fixed_items(data)

    def _variable_items(self, data: bytes) -> list[bytes | None]:
        (count,) = _unpack_int(data, 1)
        self._check_count(data, count)
        items: list[bytes | None] = []
        at = 5
        for _ in range(count):
            (length,) = _unpack_int(data, at)
            at += 4
            if length == _NULL:
                items.append(None)
                continue
            if not 0 <= length <= len(data) - at:
                self._refuse(data, f"an item of {length} bytes does not fit in it")
            items.append(data[at : at + length])
            at += length
        if at != len(data):
            self._refuse(data, f"{len(data) - at} bytes follow the list")
        return items

    def _fixed_items(self, data: bytes) -> list[bytes | None]:
        width = self.width
        if width is None:
            self._refuse(data, "its items have a fixed width, unlike the items of this serde")
        (null_count,) = _unpack_int(data, 1)
        self._check_count(data, null_count)
        nulls = set(struct.unpack_from(f">{null_count}i", data, 5))
        at = 5 + 4 * null_count
        (count,) = _unpack_int(data, at)
        self._check_count(data, count)
        at += 4
        if len(data) - at != (count - len(nulls)) * width or not nulls <= set(range(count)):
            self._refuse(data, f"it does not hold {count} items, {len(nulls)} of them null")
        items: list[bytes | None] = []
        for i in range(count):
            if i in nulls:
                items.append(None)
                continue
            items.append(data[at : at + width])
            at += width
        return items

    def _check_count(self, data: bytes, count: int) -> None:
        # Reject impossible counts before memory is allocated for them.
        if not 0 <= count <= len(data):
            self._refuse(data, f"a count of {count} does not fit it")

    def _refuse(self, data: bytes, reason: str) -> NoReturn:
        refuse_bytes(self.name, data, reason)
