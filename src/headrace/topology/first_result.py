"""A look at what a function returns first, where nobody looks at it afterwards.

A lambda that calls a coroutine function is none itself: as a predicate its coroutine holds for
every record, and as an action it does nothing. The first good result of a task gives the function
back to the generated code, so that later calls cost nothing more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from headrace.topology.errors import NeverRunError


def refuse_never_run(result: object) -> None:
    """Raise if something would have to be awaited or asked, which nobody does.

    Raises:
        NeverRunError: it is a coroutine, a generator or the like.
    """
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise NeverRunError(type(result).__name__)
    if inspect.isawaitable(result) or inspect.isasyncgen(result):
        raise NeverRunError(type(result).__name__)


def holds(result: object) -> bool:
    """Whether what a predicate returned is true; for one that is called within another function.

    Raises:
        NeverRunError: it is a coroutine, a generator or the like.
    """
    if result is True or result is False:
        return result
    refuse_never_run(result)
    return bool(result)


def looked_at(
    function: Callable[..., Any], keep: Callable[[Callable[..., Any]], None]
) -> Callable[..., Any]:
    """Return what calls a function and looks at its first result.

    Args:
        keep: called with the function itself once its result is what it should be.
    """

    def call(*values: Any) -> Any:
        result = function(*values)
        refuse_never_run(result)
        keep(function)
        return result

    return call
