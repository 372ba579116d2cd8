"""Normalised values: the values that a store contains, which their bytes decode to.

A row is read from its bytes after a commit, an eviction or a crash, and from memory otherwise. So a
value that does not decode to itself is replaced by its decoded form when it is put: 1 by 1.0 in a
store of doubles, a `StrEnum` by its string, a tuple by a list in JSON. A value that cannot be
encoded is rejected.

A serde can make this faster: `exact` contains the classes whose values decode to themselves, if
they can be encoded, and ``normalise(value)`` returns the result of
``deserialize(serialize(value))``. Without them each put encodes and decodes the value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.state.buffer import ATOMS
from headrace.topology.errors import NoPairError, type_of
from headrace.topology.serdes._serde import JsonSerde, Serde, StringSerde

# Check of functions that return a key and a value: only a tuple or list of two is valid.
#
# A string or a dict of two items would be unpacked silently. Hot path: the generated code calls
# this only for results that are not plain tuples.


def as_pair(returned: Any) -> Any:
    """Return the argument if it is a tuple or list of two; raise NoPairError otherwise.

    >>> as_pair([1, 2])
    [1, 2]
    """
    if not isinstance(returned, (tuple, list)):
        raise NoPairError(type_of(returned))
    if len(returned) != 2:
        raise NoPairError(f"{type_of(returned)} of {len(returned)}")
    return returned


_NONE: frozenset[type] = frozenset()
_NULL = frozenset({type(None)})


def exact_types(serde: Serde[Any]) -> frozenset[type]:
    """Return the classes whose values a serde decodes to themselves, and the class of None."""
    return getattr(serde, "exact", _NONE) | _NULL


def is_by_string(serde: Serde[Any]) -> bool:
    """Return whether equal strings have equal bytes, which is known only for built-in serdes."""
    return serde.__class__ in (StringSerde, JsonSerde)


def normaliser(serde: Serde[Any]) -> Callable[[Any], Any]:
    """Return a function that converts a value to its stored form; None, a deletion, stays None.

    >>> from headrace import serdes
    >>> to_json = normaliser(serdes.json)
    >>> normaliser(serdes.double)(1), to_json((1, [2])), to_json(None)
    (1.0, [1, [2]], None)
    """
    return partial(normalised, serde)


def normalised(serde: Serde[Any], value: Any) -> Any:
    """Return a value as a store with this value serde returns it."""
    if value is None or value.__class__ in getattr(serde, "exact", _NONE):
        return value
    normalise = getattr(serde, "normalise", None)
    return serde.deserialize(serde.serialize(value)) if normalise is None else normalise(value)


def own_copy(serde: Serde[Any]) -> Callable[[Any], Any]:
    """Return a function that converts a value to its stored form, as a private copy if mutable.

    >>> from headrace import serdes
    >>> given = [1, {"a": (2.5,)}]
    >>> copy = own_copy(serdes.json)(given)
    >>> copy, copy is given
    ([1, {'a': [2.5]}], False)
    """
    if serde.immutable:
        return normaliser(serde)
    return partial(_copied, serde)


def _copied(serde: Serde[Any], value: Any) -> Any:
    if value.__class__ in ATOMS:
        return normalised(serde, value)
    return serde.deserialize(serde.serialize(value))
