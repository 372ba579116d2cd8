"""Objects of dataclasses with each of their fields, also of those that a document leaves out.

msgspec does not set a field that has a plain default and is left out: the class itself answers for
it. Such an object is equal to one that was made with all fields, and would be written without them,
so equal keys would have other bytes.

Hot path: what `making_whole` returns runs for every record of a class with such fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Gaps(NamedTuple):
    """What objects of a class may lack.

    Args:
        defaults: the fields that may be missing, with their values.
        inner: the fields that may hold other objects.
    """

    defaults: tuple[tuple[str, Any], ...]
    inner: tuple[str, ...]


def gaps_in(inner: Mapping[type, tuple[str, ...]]) -> dict[type, Gaps]:
    """The gaps of classes, or nothing where none of them has defaults that may be missing.

    Args:
        inner: the fields of each class that may hold other objects.
    """
    found = {cls: Gaps(_defaults_of(cls), names) for cls, names in inner.items()}
    return found if any(gaps.defaults for gaps in found.values()) else {}


def _defaults_of(cls: type) -> tuple[tuple[str, Any], ...]:
    """The plain defaults of a dataclass; one with slots has all fields set."""
    if not is_dataclass(cls) or cls.__dictoffset__ == 0:
        return ()
    return tuple((f.name, f.default) for f in fields(cls) if f.init and f.default is not MISSING)


def making_whole(decode: Callable[[bytes], T], gaps: Mapping[type, Gaps]) -> Callable[[bytes], T]:
    """Decoding that sets what objects lack.

    Example:
        >>> import msgspec
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Order:
        ...     id: int
        ...     items: int = 1
        >>> decode = msgspec.json.Decoder(Order).decode
        >>> vars(decode(b'{"id":7}'))
        {'id': 7}
        >>> vars(making_whole(decode, gaps_in({Order: ()}))(b'{"id":7}'))
        {'id': 7, 'items': 1}
    """
    if not gaps:
        return decode

    def decode_whole(data: bytes, /) -> T:
        value = decode(data)
        _complete(value, gaps)
        return value

    return decode_whole


def _complete(value: Any, gaps: Mapping[type, Gaps]) -> None:
    found = gaps.get(value.__class__)
    if found is not None:
        if found.defaults:
            # Its own dict, as a frozen object takes nothing in any other way.
            own = value.__dict__
            for name, default in found.defaults:
                own.setdefault(name, default)
        for name in found.inner:
            _complete(getattr(value, name), gaps)
    elif isinstance(value, dict):
        for key, item in value.items():
            _complete(key, gaps)
            _complete(item, gaps)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _complete(item, gaps)
