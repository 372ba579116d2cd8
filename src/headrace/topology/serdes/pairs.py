"""What a function returns that makes a key and a value: a tuple or list of two, and nothing else.

A string or a dict of two would come apart without a word. Hot path: the generated code asks here
only about what is no plain tuple.
"""

from __future__ import annotations

from typing import Any

from headrace.topology.errors import NoPairError, type_of


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
