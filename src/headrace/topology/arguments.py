"""What the faces of the DSL are given is looked at when it is given, not at the first record.

The annotations of the methods say what to look for: a `Callable` must take as many values as it
will be called with, and not be a coroutine function, which nothing would await; a `Serde` must be
one. What cannot be told, such as the parameters of many functions in C, is let through.
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
from headrace.topology.java_names import hinting

# Arguments that take one word of a fixed set: another one is refused when it is given.


def require_word(argument: str, given: object, words: Sequence[str]) -> None:
    """Refuse what is none of the words, with the one that was perhaps meant.

    Raises:
        TopologyError: it is another.

    >>> require_word("emit", "on_close", ["on_window_update", "on_window_close"])
    Traceback (most recent call last):
    headrace.topology.errors.TopologyError: emit must be 'on_window_update' or 'on_window_close', \
not 'on_close' (did you mean 'on_window_close'?)
    """
    if isinstance(given, str) and given in words:
        return
    head, last = words[:-1], words[-1]
    listed = f"{', '.join(map(repr, head))} or {last!r}"
    meant = ""
    if isinstance(given, str):
        nearest = _JAVAS.get(given.lower()) or given.lower().replace("-", "_")
        known = {word.lower(): word for word in words}
        found = difflib.get_close_matches(nearest, known, n=1)
        meant = f" (did you mean {known[found[0]]!r}?)" if found else ""
    raise TopologyError(f"{argument} must be {listed}, not {given!r}{meant}")


_JAVAS = {"newest": "latest", "end": "latest", "oldest": "earliest", "beginning": "earliest"}
"""What other clients call the same."""


Face = TypeVar("Face", bound=type)

_WITH_VALUES = "Callable[["
_OF_EITHER_KIND = {"mapper": 1, "joiner": 2, "foreign_key": 1, "key": 1}
"""Values for functions that are called with the key besides where ``with_key`` says so."""
_ALIASES = {"TimestampExtractor": 2, "Function": 4, "Late[": 1}
_WORDS = {
    "OffsetReset": ("earliest", "latest"),
    "LateMatch": ("emit", "drop"),
    "Emit": ("on_window_update", "on_window_close"),
}
"""What the annotations stand for that are a set of words; `Literal`s stand further up."""
_KINDS = {
    "KStream": "a KStream",
    "KTable": "a KTable",
    "KGroupedStream": "what group_by() or group_by_key() returns",
    "TimeWindows": "TimeWindows(...)",
    "UnlimitedWindows": "UnlimitedWindows(...)",
    "SlidingWindows": "SlidingWindows(...)",
    "SessionWindows": "SessionWindows(...)",
    "Suppressed": "Suppressed.until_window_closes() or Suppressed.until_time_limit(...)",
    "StoreBuilder": "what Stores makes, such as Stores.key_value(...)",
    "Materialized": "Materialized(...)",
    "str": "a name",
    "int": "an int",
    "None": "None",
}
"""What annotations name that is looked for by the name of its class, and how it is made."""
_TO_NO_END = ("for_each", "peek", "filter", "filter_not", "branch")
"""What they are given is called for what it does or says, so a generator would never run."""
_MAKE_ROWS = ("reducer", "aggregator", "merger", "adder", "subtractor")
"""What they return is the row, and None deletes it."""
_AWAITS = ("map_async",)
"""What they are given may be a coroutine function."""
_CONSTANTS = {
    str: "serdes.string", bytes: "serdes.bytes", int: "serdes.long", float: "serdes.double",
    dict: "serdes.json", list: "serdes.json", bool: "serdes.json",
}  # fmt: skip


def checked(face: Face) -> Face:
    """Have the public methods of a class look at what they are given, and hint at their names."""
    for name, method in inspect.getmembers(face, inspect.isfunction):
        if name.startswith("_"):
            continue
        # Python says of a wrong call whose method it is: that of the class that users know.
        method.__qualname__ = f"{face.__qualname__}.{name}"
        if not hasattr(method, "__wrapped__"):
            signature = inspect.signature(method)
            if any(_is_looked_at(p) for p in signature.parameters.values()):
                made = _checking(method, signature)
                is_static = isinstance(inspect.getattr_static(face, name), staticmethod)
                setattr(face, name, staticmethod(made) if is_static else made)
    return hinting(face)


def _is_looked_at(parameter: inspect.Parameter) -> bool:
    words = str(parameter.annotation)
    if _words_of(parameter) is not None or parameter.name == "stores" or _kinds_of(parameter):
        return True
    return "Callable[" in words or "Serde" in words or any(name in words for name in _ALIASES)


def _is_a_must(parameter: inspect.Parameter) -> bool:
    """Whether something has to be given that is looked at, so that None is none."""
    words = str(parameter.annotation)
    if parameter.name == "stores" or "None" not in (_kinds_of(parameter) or ("None",)):
        return True
    is_function = "Callable[" in words or any(name in words for name in _ALIASES)
    return is_function and parameter.default is not None and not words.endswith("| None")


def _kinds_of(parameter: inspect.Parameter) -> tuple[str, ...]:
    """The classes that an annotation names; none where one of them is not looked for by its name.

    >>> annotated = inspect.Parameter("store", inspect.Parameter.KEYWORD_ONLY)
    >>> _kinds_of(annotated.replace(annotation="str | Materialized | None"))
    ('str', 'Materialized', 'None')
    >>> _kinds_of(annotated.replace(annotation="ktable.KTable[K, tuple[V, V]]"))
    ('KTable',)
    """
    words = re.sub(r"\[.*?\]+(?= \||$)", "", str(parameter.annotation))
    names = tuple(name.strip().rpartition(".")[2] for name in words.split("|"))
    is_told_elsewhere = not {*names} - {"str", "None"}  # what a name has to be
    return names if set(names) <= set(_KINDS) and not is_told_elsewhere else ()


def _words_of(parameter: inspect.Parameter) -> tuple[str, ...] | None:
    return _WORDS.get(str(parameter.annotation).partition(" | ")[0])


def _checking(method: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return method(*args, **kwargs)  # which says itself what is wrong with the call
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
    words = str(parameter.annotation)
    allowed = _words_of(parameter)
    if allowed is not None:
        require_word(f"{method.__name__}() at {calling_line()}: {parameter.name}", value, allowed)
    elif parameter.name == "stores":
        _check_stores(method, value)
    elif kinds := _kinds_of(parameter):
        _check_kind(method, parameter.name, value, kinds)
    elif "Serde" in words and "Callable[" not in words:
        refuse_other_than_serde(value, f"{parameter.name}=", method.__name__)
    elif "Callable[" in words or any(name in words for name in _ALIASES):
        if isinstance(value, str) and "str" in words:
            return
        if not callable(value) and words.startswith("str | "):
            raise TopologyError(
                f"{method.__name__}() at {calling_line()}: {parameter.name} must be a str or a "
                f"function, and not {_described(value)}"
            )
        _check_function(method, parameter.name, value, _count(parameter, given))


def _check_kind(method: Callable[..., Any], name: str, value: Any, kinds: tuple[str, ...]) -> None:
    if value is None and "None" in kinds:
        return
    if any(one.__name__ in kinds for one in type(value).__mro__):
        return
    if method.__name__ == "outer_join" and type(value).__name__ == "KTable":
        return  # the step itself says what to do instead
    *some, last = [_KINDS[kind] for kind in kinds if kind != "None"]
    wanted = f"{', '.join(some)} or {last}" if some else last
    raise TopologyError(
        f"{method.__name__}() at {calling_line()}: {name} must be {wanted}, and not "
        f"{_described(value)}"
    )


def _check_stores(method: Callable[..., Any], stores: Any) -> None:
    """Several stores; a generator of them is let through, as it can be asked only once."""
    wrong = None
    if isinstance(stores, str):
        wrong = f"a str; write stores=[{stores!r}]"
    elif type(stores).__name__ == "StoreBuilder":
        wrong = "one by itself; put it into a list"
    elif not isinstance(stores, Iterable):
        wrong = _described(stores)
    elif isinstance(stores, (tuple, list, set, frozenset)):
        wrong = next((_described(s) for s in stores if not _is_store(s)), None)
        wrong = wrong and f"one of {wrong}"
    if wrong is not None:
        raise TopologyError(
            f"{method.__name__}() at {calling_line()}: stores must be a list of what Stores "
            f"makes, or of names of stores, and not {wrong}"
        )


def _is_store(value: Any) -> bool:
    return isinstance(value, str) or type(value).__name__ == "StoreBuilder"


def _count(parameter: inspect.Parameter, given: Mapping[str, Any]) -> int | None:
    """With how many values a function will be called; None where that depends."""
    words = str(parameter.annotation)
    _, listed, rest = words.partition(_WITH_VALUES)
    if listed:
        return _listed(rest)
    for alias, values in _ALIASES.items():
        if alias in words:
            return values
    count = _OF_EITHER_KIND.get(parameter.name)
    return None if count is None else count + bool(given.get("with_key", False))


def _listed(words: str) -> int:
    """How many types a list has, whose opening bracket was taken away.

    >>> _listed("], A]"), _listed("K, V], bool]"), _listed("KeyValueStore[K, V]], F]")
    (0, 2, 1)
    """
    depth, count = 1, 0 if words.startswith("]") else 1
    for letter in words:
        depth += (letter == "[") - (letter == "]")
        if depth == 0:
            break
        count += depth == 1 and letter == ","
    return count


def _check_function(
    method: Callable[..., Any], name: str, function: Any, count: int | None
) -> None:
    if name == "supplier" and not callable(function):
        return  # what makes no processors is refused as such
    called_as = None if count is None else _called_as(method, name)
    is_awaited = method.__name__ in _AWAITS
    refuse_other_than_function(
        function, method.__name__, name, count, called_as, is_awaited=is_awaited
    )
    if method.__name__ in _TO_NO_END and inspect.isgeneratorfunction(function):
        raise TopologyError(
            f"{method.__name__}() at {calling_line()}: {_described(function)} is a generator "
            "function, which would never run, as nothing asks for what it yields; write it without "
            "yield"
        )
    if name in _MAKE_ROWS and _returns_nothing(function):
        raise TopologyError(
            f"{method.__name__}() at {calling_line()}: {name} {_described(function)} returns None "
            "in any case, which would delete each row; return what the row is to be, or give a "
            "lambda that says None"
        )


def _returns_nothing(function: Any) -> bool:
    """Whether a function in Python gives None wherever it ends, as one without `return` does."""
    while isinstance(function, functools.partial):
        function = function.func
    called = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(called, "__code__", None)
    if code is None or code.co_name == "<lambda>" or inspect.isgeneratorfunction(function):
        return False  # a lambda says itself what it gives
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
    """Raise if something is given for a function that cannot be called as it will be.

    Args:
        function: what was given.
        method: what was called with it.
        name: of the argument.
        count: how many arguments it will be called with; None where that depends.
        called_as: the call as it is written, if there is one to show.
        is_awaited: whether it may be a coroutine function.

    Raises:
        TopologyError: it is no function, a coroutine function, or takes others.
    """
    where = f"{method}() at {calling_line()}"
    if not callable(function):
        raise TopologyError(f"{where}: {name} must be a function, and not {_described(function)}")
    if not is_awaited and is_coroutine(function):
        raise TopologyError(
            f"{where}: {_described(function)} is a coroutine function, which would never run, as "
            "nothing awaits it; write a plain function, in which asyncio.run() can call others"
        )
    if count is not None and not _takes(function, count):
        called = f"as {called_as}" if called_as else f"with {_counted(count, 'argument')}"
        raise TopologyError(
            f"{where}: {name} is called {called}, and {_described(function)} takes "
            f"{_parameters(function)}; give it {_counted(count, 'parameter')}"
        )


def _counted(count: int, noun: str) -> str:
    """A number of things.

    >>> _counted(0, "argument"), _counted(1, "argument")
    ('no arguments', '1 argument')
    """
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def why_not_called_as(called: str, count: int, function: Any) -> str | None:
    """Say what is wrong with a function that is given elsewhere, as the rest of a sentence.

    Args:
        called: how it is called, such as ``handler(failure)``.
        count: with how many values that is.

    Returns:
        None where it can be called so, or nobody can tell.

    >>> print(why_not_called_as("handler(failure)", 1, len))
    None
    """
    if is_coroutine(function):
        return (
            f"would never run: {_described(function)} is a coroutine function, and nothing awaits "
            "it; write a plain function, in which asyncio.run() can call others"
        )
    if inspect.isgeneratorfunction(function):
        return (
            f"would never run: {_described(function)} is a generator function, and nothing asks "
            "for what it yields; write it without yield, with return"
        )
    if not _takes(function, count):
        return (
            f"is called as {called}, and {_described(function)} takes {_parameters(function)}; "
            f"give it {count} parameter{'' if count == 1 else 's'}"
        )
    return None


def is_coroutine(function: Any) -> bool:
    """Whether what it returns is to be awaited, as far as it says so itself."""
    candidates = [function]
    if not isinstance(function, type) and not inspect.isroutine(function):
        candidates.append(getattr(type(function), "__call__", None))  # noqa: B004
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in candidates
    )


def _takes(function: Any, count: int) -> bool:
    """Whether it can be called with so many values, unless nobody can tell."""
    values = (None,) * count
    told = False
    for signature in _signatures(function):
        told = True
        try:
            signature.bind(*values)
        except TypeError:
            continue
        return True
    return not told


def _signatures(function: Any) -> Iterator[inspect.Signature]:
    """What a function may be called with, by itself and not by what it is a wrapper of."""
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
        return  # it is what somebody says, and not what is called
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
    """How the method's documentation says that a function is called."""
    doc = inspect.getdoc(method) or ""
    found = re.search(rf"{name}: [^:]*?called\s+as\s+``(\w+\([^`]*\))``", doc)
    return found[1] if found is not None and "with_key:" not in doc else None


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
    """Raise if something is given for a serde that is none.

    Raises:
        TopologyError: it is none, with what to write instead.
    """
    is_one = callable(getattr(value, "serialize", None)) and callable(
        getattr(value, "deserialize", None)
    )
    if value is None or (is_one and not isinstance(value, type)):
        return
    raise TopologyError(
        f"{method}() at {calling_line()}: {name} must be a serde, and not {_shown(value)}; "
        f"{_serde_for(value)}"
    )


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else _described(value)


def _serde_for(value: Any) -> str:
    names = ("string", "bytes", "integer", "long", "double", "json")
    if isinstance(value, str):
        if value in names:
            return f"write serdes.{value}"
        return f"write one of {', '.join(f'serdes.{name}' for name in names)}"
    if isinstance(value, type):
        if hasattr(value, "serialize"):
            return f"write {value.__name__}(...), as the class itself is none"
        if value in _CONSTANTS:
            return f"write {_CONSTANTS[value]}"
        return f"write serdes.json_of({value.__name__})"
    return "write one of serdes, or serdes.serde_from(...) with two functions of your own"
