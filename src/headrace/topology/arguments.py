"""Checks of the arguments of DSL methods, made at the call instead of at the first record.

The annotations of the methods define the checks. A `Callable` must accept the number of arguments
that it will be called with, and must not be a coroutine function, because nothing awaits its
result. A `Serde` must have the methods of a serde. If something cannot be checked, such as the
parameters of many C functions, it is accepted.
"""

from __future__ import annotations

import difflib
import dis
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.topology.errors import TopologyError, type_of
from headrace.topology.functions import calling_line
from headrace.topology.java_names import call_hint, hinting

# Arguments that accept a fixed set of strings.


def require_choice(argument: str, value: object, choices: Sequence[str]) -> None:
    """Raise unless the value is in `choices`; the message suggests the closest word.

    >>> require_choice("emit", "on_close", ["on_window_update", "on_window_close"])
    Traceback (most recent call last):
    headrace.topology.errors.TopologyError: emit must be 'on_window_update' or 'on_window_close', \
not 'on_close' (did you mean 'on_window_close'?)
    """
    if isinstance(value, str) and value in choices:
        return
    head, last = choices[:-1], choices[-1]
    listed = f"{', '.join(map(repr, head))} or {last!r}"
    meant = ""
    if isinstance(value, str):
        nearest = _JAVAS.get(value.lower()) or value.lower().replace("-", "_")
        known = {choice.lower(): choice for choice in choices}
        matches = difflib.get_close_matches(nearest, known, n=1)
        meant = f" (did you mean {known[matches[0]]!r}?)" if matches else ""
    raise TopologyError(f"{argument} must be {listed}, not {value!r}{meant}")


_JAVAS = {"newest": "latest", "end": "latest", "oldest": "earliest", "beginning": "earliest"}
"""Names of other Kafka clients for the same choices."""


Face = TypeVar("Face", bound=type)

_WITH_VALUES = "Callable[["
_OF_EITHER_KIND = {"mapper": 1, "joiner": 2, "foreign_key": 1, "key": 1}
"""Number of arguments of functions that also receive the key if ``with_key`` is true."""
_ALIASES = {"TimestampExtractor": 2, "Function": 4, "Late[": 1}
_CHOICES = {
    "OffsetReset": ("earliest", "latest"),
    "LateMatch": ("emit", "drop"),
    "Emit": ("on_window_update", "on_window_close"),
}
"""Allowed strings by the name of a type alias; the aliases are defined in other modules."""
_KINDS = {
    "KStream": "a KStream",
    "KTable": "a KTable",
    "KGroupedStream": "the result of group_by() or group_by_key()",
    "TimeWindows": "TimeWindows(...)",
    "UnlimitedWindows": "UnlimitedWindows(...)",
    "SlidingWindows": "SlidingWindows(...)",
    "SessionWindows": "SessionWindows(...)",
    "Suppressed": "Suppressed.until_window_closes() or Suppressed.until_time_limit(...)",
    "StoreBuilder": "the result of a method of Stores, such as Stores.key_value(...)",
    "Materialized": "Materialized(...)",
    "str": "a name",
    "int": "an int",
    "None": "None",
}
"""Classes that are checked by their names, and how error messages describe them."""
_TO_NO_END = ("for_each", "peek", "filter", "filter_not", "branch")
"""Methods that do not iterate over their function's result, so a generator would never run."""
_MAKE_ROWS = ("reducer", "aggregator", "merger", "adder", "subtractor")
"""Parameters whose function returns the new row; None deletes the row."""
_AWAITS = ("map_async",)
"""Methods that accept a coroutine function."""
_CONSTANTS = {
    str: "serdes.string", bytes: "serdes.bytes", int: "serdes.long", float: "serdes.double",
    dict: "serdes.json", list: "serdes.json", bool: "serdes.json",
}  # fmt: skip


def checked(face: Face) -> Face:
    """Make the public methods of a class check their arguments and suggest similar method names."""
    for name, method in inspect.getmembers(face, inspect.isfunction):
        if name.startswith("_"):
            continue
        # Python's messages about a wrong call contain this name, so use the public class.
        method.__qualname__ = f"{face.__qualname__}.{name}"
        if not hasattr(method, "__wrapped__"):
            signature = inspect.signature(method)
            if any(_is_looked_at(p) for p in signature.parameters.values()):
                made = _checking(method, signature)
                is_static = isinstance(inspect.getattr_static(face, name), staticmethod)
                setattr(face, name, staticmethod(made) if is_static else made)
    return hinting(face)


def _is_looked_at(parameter: inspect.Parameter) -> bool:
    annotation = str(parameter.annotation)
    if _words_of(parameter) is not None or parameter.name == "stores" or _kinds_of(parameter):
        return True
    is_function = "Callable[" in annotation or any(name in annotation for name in _ALIASES)
    return is_function or "Serde" in annotation


def _is_a_must(parameter: inspect.Parameter) -> bool:
    """Return whether a checked parameter is required, so that None is an error."""
    annotation = str(parameter.annotation)
    if parameter.name == "stores" or "None" not in (_kinds_of(parameter) or ("None",)):
        return True
    is_function = "Callable[" in annotation or any(name in annotation for name in _ALIASES)
    return is_function and parameter.default is not None and not annotation.endswith("| None")


def _kinds_of(parameter: inspect.Parameter) -> tuple[str, ...]:
    """Return the class names in an annotation; empty if a class is not in `_KINDS`.

    >>> annotated = inspect.Parameter("store", inspect.Parameter.KEYWORD_ONLY)
    >>> _kinds_of(annotated.replace(annotation="str | Materialized | None"))
    ('str', 'Materialized', 'None')
    >>> _kinds_of(annotated.replace(annotation="ktable.KTable[K, tuple[V, V]]"))
    ('KTable',)
    """
    annotation = re.sub(r"\[.*?\]+(?= \||$)", "", str(parameter.annotation))
    names = tuple(name.strip().rpartition(".")[2] for name in annotation.split("|"))
    is_told_elsewhere = not {*names} - {"str", "None"}  # what a name has to be
    return names if set(names) <= set(_KINDS) and not is_told_elsewhere else ()


def _words_of(parameter: inspect.Parameter) -> tuple[str, ...] | None:
    return _CHOICES.get(str(parameter.annotation).partition(" | ")[0])


def _checking(method: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            hint = call_hint(signature, args, kwargs)
            if hint is not None:
                raise TypeError(f"{method.__name__}(): {error}; {hint}") from None
            return method(*args, **kwargs)  # raises a TypeError for the wrong call
        given = {**given, **given.get("options", {})}
        for name, value in given.items():
            if name in signature.parameters:
                if value is not None or _is_a_must(signature.parameters[name]):
                    _check(method, signature.parameters[name], value, given)
            elif name in ("key", "value"):
                refuse_other_than_serde(value, f"{name}=", method.__name__)
        return method(*args, **kwargs)

    return call


def _check(
    method: Callable[..., Any], parameter: inspect.Parameter, value: Any, given: Mapping[str, Any]
) -> None:
    annotation = str(parameter.annotation)
    allowed = _words_of(parameter)
    if allowed is not None:
        require_choice(f"{method.__name__}() at {calling_line()}: {parameter.name}", value, allowed)
    elif parameter.name == "stores":
        _check_stores(method, value)
    elif kinds := _kinds_of(parameter):
        _check_kind(method, parameter.name, value, kinds)
    elif "Serde" in annotation and "Callable[" not in annotation:
        refuse_other_than_serde(value, f"{parameter.name}=", method.__name__)
    elif "Callable[" in annotation or any(name in annotation for name in _ALIASES):
        if isinstance(value, str) and "str" in annotation:
            return
        if not callable(value) and annotation.startswith("str | "):
            raise TopologyError(
                f"{method.__name__}() at {calling_line()}: {parameter.name} must be a str or a "
                f"function, not {_described(value)}"
            )
        _check_function(method, parameter.name, value, _count(parameter, given))


def _check_kind(method: Callable[..., Any], name: str, value: Any, kinds: tuple[str, ...]) -> None:
    if value is None and "None" in kinds:
        return
    if any(cls.__name__ in kinds for cls in type(value).__mro__):
        return
    if method.__name__ == "outer_join" and type(value).__name__ == "KTable":
        return  # the method itself raises an error with advice
    *some, last = [_KINDS[kind] for kind in kinds if kind != "None"]
    wanted = f"{', '.join(some)} or {last}" if some else last
    raise TopologyError(
        f"{method.__name__}() at {calling_line()}: {name} must be {wanted}, not {_described(value)}"
    )


def _check_stores(method: Callable[..., Any], stores: Any) -> None:
    """Check a list of stores; a generator is accepted, because it can be read only once."""
    wrong = None
    if isinstance(stores, str):
        wrong = f"a str; write stores=[{stores!r}]"
    elif type(stores).__name__ == "StoreBuilder":
        wrong = "a single store builder; put it into a list"
    elif not isinstance(stores, Iterable):
        wrong = _described(stores)
    elif isinstance(stores, (tuple, list, set, frozenset)):
        wrong = next((_described(s) for s in stores if not _is_store(s)), None)
        wrong = wrong and f"a list with {wrong}"
    if wrong is not None:
        raise TopologyError(
            f"{method.__name__}() at {calling_line()}: stores must be a list of store builders or "
            f"names of stores, not {wrong}"
        )


def _is_store(value: Any) -> bool:
    return isinstance(value, str) or type(value).__name__ == "StoreBuilder"


def _count(parameter: inspect.Parameter, given: Mapping[str, Any]) -> int | None:
    """Return the number of arguments that a function will be called with; None if it varies."""
    annotation = str(parameter.annotation)
    _, listed, rest = annotation.partition(_WITH_VALUES)
    if listed:
        return _listed(rest)
    for alias, values in _ALIASES.items():
        if alias in annotation:
            return values
    count = _OF_EITHER_KIND.get(parameter.name)
    return None if count is None else count + bool(given.get("with_key", False))


def _listed(annotation: str) -> int:
    """Return the number of types in a list whose opening bracket was removed.

    >>> _listed("], A]"), _listed("K, V], bool]"), _listed("KeyValueStore[K, V]], F]")
    (0, 2, 1)
    """
    depth, count = 1, 0 if annotation.startswith("]") else 1
    for letter in annotation:
        depth += (letter == "[") - (letter == "]")
        if depth == 0:
            break
        count += depth == 1 and letter == ","
    return count


def _check_function(
    method: Callable[..., Any], name: str, function: Any, count: int | None
) -> None:
    if name == "supplier" and not callable(function):
        return  # another check rejects it
    called_as = None if count is None else _called_as(method, name)
    is_awaited = method.__name__ in _AWAITS
    refuse_other_than_function(
        function, method.__name__, name, count, called_as, is_awaited=is_awaited
    )
    if method.__name__ in _TO_NO_END and inspect.isgeneratorfunction(function):
        raise TopologyError(
            f"{method.__name__}() at {calling_line()}: {_described(function)} is a generator "
            "function, which would never run, as nothing iterates over it; write it without yield"
        )
    if name in _MAKE_ROWS and _returns_nothing(function):
        raise TopologyError(
            f"{method.__name__}() at {calling_line()}: {name} {_described(function)} returns None "
            "on every path, which would delete each row; return the new row, or give a lambda that "
            "returns None"
        )


def _returns_nothing(function: Any) -> bool:
    """Return whether a Python function returns None on every path."""
    while isinstance(function, functools.partial):
        function = function.func
    called = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(called, "__code__", None)
    if code is None or code.co_name == "<lambda>" or inspect.isgeneratorfunction(function):
        return False  # a lambda returns None explicitly
    ends: list[bool] = []
    loads_none = False
    for step in dis.get_instructions(code):
        if step.opname == "RETURN_CONST":
            ends.append(step.argval is None)
        elif step.opname == "RETURN_VALUE":
            ends.append(loads_none and not step.is_jump_target)
        loads_none = step.opname == "LOAD_CONST" and step.argval is None
    return bool(ends) and all(ends)


def refuse_other_than_function(
    function: Any,
    method: str,
    name: str,
    count: int | None,
    called_as: str | None = None,
    *,
    is_awaited: bool = False,
) -> None:
    """Raise if a function cannot take `count` arguments (None: any), or would never run."""
    where = f"{method}() at {calling_line()}"
    if not callable(function):
        raise TopologyError(f"{where}: {name} must be a function, not {_described(function)}")
    if not is_awaited and is_coroutine(function):
        raise TopologyError(
            f"{where}: {_described(function)} is a coroutine function, which would never run, as "
            "nothing awaits it; write a plain function, which may call asyncio.run()"
        )
    if count is not None and not _takes(function, count):
        called = f"as {called_as}" if called_as else f"with {_with_count(count, 'argument')}"
        raise TopologyError(
            f"{where}: {name} is called {called}, and {_described(function)} takes "
            f"{_parameters(function)}; give it {_with_count(count, 'parameter')}"
        )


def _with_count(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> _with_count(0, "argument"), _with_count(1, "argument")
    ('no arguments', '1 argument')
    """
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def why_not_called_as(called: str, count: int, function: Any) -> str | None:
    """Return why a call is wrong, as the rest of a sentence; None if it is valid or unknown.

    >>> print(why_not_called_as("handler(failure)", 1, len))
    None
    """
    if is_coroutine(function):
        return (
            f"would never run: {_described(function)} is a coroutine function, and nothing awaits "
            "it; write a plain function, which may call asyncio.run()"
        )
    if inspect.isgeneratorfunction(function):
        return (
            f"would never run: {_described(function)} is a generator function, and nothing "
            "iterates over it; write it without yield, with return"
        )
    if not _takes(function, count):
        return (
            f"is called as {called}, and {_described(function)} takes {_parameters(function)}; "
            f"give it {count} parameter{'' if count == 1 else 's'}"
        )
    return None


def is_coroutine(function: Any) -> bool:
    """Return whether a callable is a coroutine function or an async generator function."""
    candidates = [function]
    if not isinstance(function, type) and not inspect.isroutine(function):
        candidates.append(getattr(type(function), "__call__", None))  # noqa: B004
    return any(
        inspect.iscoroutinefunction(cls) or inspect.isasyncgenfunction(cls) for cls in candidates
    )


def _takes(function: Any, count: int) -> bool:
    """Return whether a function accepts `count` positional arguments; true if unknown."""
    values = (None,) * count
    has_signature = False
    for signature in _signatures(function):
        has_signature = True
        try:
            signature.bind(*values)
        except TypeError:
            continue
        return True
    return not has_signature


def _signatures(function: Any) -> Iterator[inspect.Signature]:
    """Yield the signatures of a callable itself, ignoring a function that it wraps."""
    if isinstance(function, type):
        if type(function) is not type:
            return  # a metaclass decides
        makers = (function.__init__, function.__new__)  # type: ignore[misc]
        if not any(inspect.isfunction(maker) for maker in makers):
            return
        for maker in makers:
            if inspect.isfunction(maker):
                yield _without_first(inspect.signature(maker, follow_wrapped=False))
        return
    if hasattr(function, "__signature__"):
        return  # declared by hand, so it may differ from the real signature
    try:
        yield inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return


def _without_first(signature: inspect.Signature) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def _parameters(function: Any) -> str:
    return " or ".join(str(signature) for signature in _signatures(function)) or "others"


def _called_as(method: Callable[..., Any], name: str) -> str | None:
    """Return the call of a function parameter that the method's docstring documents."""
    doc = inspect.getdoc(method) or ""
    match = re.search(rf"{name}: [^:]*?called\s+as\s+``(\w+\([^`]*\))``", doc)
    return match[1] if match is not None and "with_key:" not in doc else None


def _described(value: Any) -> str:
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{value.__qualname__} ({Path(code.co_filename).name}:{code.co_firstlineno})"
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    if value is None:
        return "None"
    name = getattr(value, "__qualname__", None)
    return str(name) if callable(value) and name else type_of(value)


def refuse_other_than_serde(value: Any, name: str, method: str) -> None:
    """Raise if an argument is neither None nor a serde."""
    is_one = callable(getattr(value, "serialize", None)) and callable(
        getattr(value, "deserialize", None)
    )
    if value is None or (is_one and not isinstance(value, type)):
        return
    raise TopologyError(
        f"{method}() at {calling_line()}: {name} must be a serde, not {_shown(value)}; "
        f"{_serde_for(value)}"
    )


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else _described(value)


def _serde_for(value: Any) -> str:
    names = ("string", "bytes", "integer", "long", "double", "json")
    if isinstance(value, str):
        if value in names:
            return f"write serdes.{value}"
        return f"write {' or '.join(f'serdes.{name}' for name in names)}"
    if isinstance(value, type):
        if hasattr(value, "serialize"):
            return f"write {value.__name__}(...) instead of the class"
        if value in _CONSTANTS:
            return f"write {_CONSTANTS[value]}"
        return f"write serdes.json_of({value.__name__})"
    return "write a serde of headrace.serdes, or serdes.serde_from(...) with two functions"
