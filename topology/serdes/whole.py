"""Objects of dataclasses with each of their fields, also of those that a document leaves out.

msgspec does not set a field that has a plain default and is left out: the class itself answers for
it. Such an object is equal to one that was made with all fields, and would be written without them,
so equal keys would have other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")

Defaults = Mapping[type, Mapping[str, Any]]
"""The plain defaults of classes whose objects may lack them."""


def defaults_in(classes: Iterable[type]) -> Defaults:
    """The defaults that objects of some classes may lack; those with slots lack none."""
    found = {
        cls: {f.name: f.default for f in fields(cls) if f.init and f.default is not MISSING}
        for cls in classes
        if is_dataclass(cls) and cls.__dictoffset__ != 0
    }
    return {cls: given for cls, given in found.items() if given}


def making_whole(decode: Callable[..., T], defaults: Defaults) -> Callable[..., T]:
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
        >>> vars(making_whole(decode, defaults_in([Order]))(b'{"id":7}'))
        {'id': 7, 'items': 1}
    """
    if not defaults:
        return decode

    def decode_whole(*arguments: Any, **options: Any) -> T:
        value = decode(*arguments, **options)
        _complete(value, defaults)
        return value

    return decode_whole


def _complete(value: Any, defaults: Defaults) -> None:
    kind = value.__class__
    if kind in _PLAIN:
        return
    lacking = defaults.get(kind)
    if lacking is not None:
        # Its own dict, as a frozen object takes nothing in any other way.
        for name, default in lacking.items():
            value.__dict__.setdefault(name, default)
    for inner in _inside(value):
        _complete(inner, defaults)


_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return value
    names = getattr(value, "__struct_fields__", None) or getattr(
        value, "__dataclass_fields__", getattr(value, "__attrs_attrs__", None)
    )
    if names is None:
        return ()
    return [getattr(value, getattr(name, "name", name)) for name in names]
