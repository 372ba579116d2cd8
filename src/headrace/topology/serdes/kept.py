"""What a store holds of a value: what the value's bytes give back.

A row is read from its bytes after a commit, an eviction or a crash, and from memory otherwise. So a
value whose bytes give back something else is replaced by that when it is put: 1 by 1.0 in a store
of doubles, a `StrEnum` by its string, a tuple by a list in JSON. What nobody can encode is refused.

A serde may help: `exact` are the classes whose values come back as they are, as far as they can be
encoded, and ``normalise(value)`` gives what ``deserialize(serialize(value))`` gives, quicker.
Without them a value is encoded and decoded once for each put.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.state.buffer import ATOMS
from headrace.topology.errors import NoPairError, type_of
from headrace.topology.serdes._serde import JsonSerde, Serde, StringSerde

# What a function returns that makes a key and a value: a tuple or list of two, and nothing else.
#
# A string or a dict of two would come apart without a word. Hot path: the generated code asks here
# only about what is no plain tuple.


def as_pair(returned: Any) -> Any:
    """Return what can be taken apart.

    Raises:
        NoPairError: it is no tuple and no list, or not of two.

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
    """The classes whose values a serde gives back as they are; that of None is one of them."""
    return getattr(serde, "exact", _NONE) | _NULL


def is_by_string(serde: Serde[Any]) -> bool:
    """Whether strings that are equal have equal bytes, which nobody knows of a user's own serde."""
    return serde.__class__ in (StringSerde, JsonSerde)


def keeper(serde: Serde[Any]) -> Callable[[Any], Any]:
    """A function that gives what a store holds of a value; None, a deletion, stays None.

    >>> from headrace import serdes
    >>> keeper(serdes.double)(1), keeper(serdes.json)((1, [2])), keeper(serdes.json)(None)
    (1.0, [1, [2]], None)
    """
    return partial(kept, serde)


def kept(serde: Serde[Any], value: Any) -> Any:
    """What a store with that serde of values holds of a value."""
    if value is None or value.__class__ in getattr(serde, "exact", _NONE):
        return value
    normalise = getattr(serde, "normalise", None)
    return serde.deserialize(serde.serialize(value)) if normalise is None else normalise(value)


def own_copy(serde: Serde[Any]) -> Callable[[Any], Any]:
    """A function that gives the same as an object that nobody else has, if it can be changed.

    >>> from headrace import serdes
    >>> given = [1, {"a": (2.5,)}]
    >>> found = own_copy(serdes.json)(given)
    >>> found, found is given
    ([1, {'a': [2.5]}], False)
    """
    if serde.immutable:
        return keeper(serde)
    return partial(_copied, serde)


def _copied(serde: Serde[Any], value: Any) -> Any:
    if value.__class__ in ATOMS:
        return kept(serde, value)
    return serde.deserialize(serde.serialize(value))
