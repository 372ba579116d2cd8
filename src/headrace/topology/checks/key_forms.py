"""Comparison of two serdes: whether they encode equal keys to equal bytes, if that can be known.

A key's partition is chosen by its bytes, so keys that are joined or aggregated must be encoded
alike: ``"a"`` is ``a`` as a string, and ``"a"``, with the quotes, as JSON.
"""

from __future__ import annotations

from typing import Any

from headrace.topology.serdes._json_of import JsonOfSerde
from headrace.topology.serdes._list_of import ListSerde
from headrace.topology.serdes._serde import (
    BytesSerde,
    DoubleSerde,
    IntegerSerde,
    JsonSerde,
    Serde,
    StringSerde,
)
from headrace.topology.serdes.windows_serde import SessionWindowedSerde, TimeWindowedSerde

AnySerde = Serde[Any]
_PLAIN = (StringSerde, BytesSerde)
_SAME_IN_JSON = (str, int, bool)
"""Classes that both JSON serdes encode to the same bytes."""


def same_bytes(first: AnySerde, second: AnySerde) -> bool | None:
    """Whether two serdes write the same bytes for equal keys; None if unknown.

    A string and its encoded bytes are the same key. The result is unknown for custom serdes, unless
    they are equal, for two different JSON classes, and for two schemas.

    >>> from headrace import serdes
    >>> same_bytes(serdes.string, serdes.json), same_bytes(serdes.integer, serdes.long)
    (False, False)
    >>> same_bytes(serdes.json, serdes.json_of(str, checked=False))
    True
    >>> same_bytes(serdes.json, serdes.json_of(tuple[str, str])) is None
    True
    """
    if first is second or first == second:
        return True
    if isinstance(first, ListSerde) and isinstance(second, ListSerde):
        return same_bytes(first.inner, second.inner) if first.width == second.width else False
    if isinstance(first, _PLAIN) and isinstance(second, _PLAIN):
        return True
    if isinstance(first, BytesSerde) or isinstance(second, BytesSerde):
        return None
    family, details = _form_of(first)
    other_family, other_details = _form_of(second)
    if family is None or other_family is None:
        return None
    if family != other_family:
        return False
    return True if details == other_details else None


def partitioned_by(serde: AnySerde) -> AnySerde:
    """Return the serde whose bytes choose a key's partition; for a windowed key the inner serde.

    >>> from headrace import serdes
    >>> partitioned_by(serdes.session_windowed(serdes.string)).name
    'string'
    """
    if isinstance(serde, TimeWindowedSerde | SessionWindowedSerde) and serde.inner is not None:
        return partitioned_by(serde.inner)
    return serde


def written_as(serde: AnySerde, argument: str = "key") -> str:
    """Return the code that passes a serde as an argument such as ``key=``.

    >>> from headrace import serdes
    >>> written_as(serdes.long), written_as(serdes.time_windowed(serdes.string, size=None))
    ('key=serdes.long', "key= with the serde 'time_windowed(string)'")
    """
    known = (*_PLAIN, IntegerSerde, DoubleSerde, JsonSerde)
    if isinstance(serde, known):
        return f"{argument}=serdes.{serde.name}"
    return f"{argument}= with the serde {serde.name!r}"


def _form_of(serde: AnySerde) -> tuple[str | None, Any]:
    """Return the encoding that a serde writes, and the details that the bytes depend on."""
    if isinstance(serde, IntegerSerde):
        return f"{serde.width} bytes", None
    if isinstance(serde, JsonSerde):
        return "JSON", None
    if isinstance(serde, JsonOfSerde):
        return "JSON", None if serde.cls in _SAME_IN_JSON else serde.cls
    if isinstance(serde, StringSerde | DoubleSerde | ListSerde):
        return type(serde).__name__, None
    form: tuple[str, Any] | None = getattr(serde, "key_form", None)
    return form if form is not None else (None, None)
