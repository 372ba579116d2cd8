"""Hints from Kafka Streams' Java names to the Python names, in errors about unknown attributes.

Type checkers do not see it: they report an unknown name as an error as usual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

Face = TypeVar("Face", bound=type)

_RENAMED = {
    "foreach": "for_each",
    "branch": "split",
    "through": "repartition",
    "transform": "process",
    "flatTransform": "process",
    "transformValues": "process_values",
    "flatTransformValues": "process_values",
    "keyValueStoreBuilder": "key_value",
    "persistentKeyValueStore": "key_value",
    "inMemoryKeyValueStore": "key_value",
    "timestampedKeyValueStoreBuilder": "timestamped_key_value",
    "windowStoreBuilder": "window",
    "persistentWindowStore": "window",
    "timestampedWindowStoreBuilder": "timestamped_window",
    "sessionStoreBuilder": "session",
    "persistentSessionStore": "session",
}
_MAKERS = ("of", "with", "as", "advanceBy", "until")
"""Prefixes of Java's static factories, which correspond to a call of the class here."""


def hinting(cls: Face) -> Face:
    """Make the objects of a class suggest the Python name for an unknown Java name."""

    def unknown(self: Any, name: str) -> Any:
        raise _error(type(self), name, self, f"{type(self).__name__!r} object", _RENAMED)

    setattr(cls, "__getattr__", unknown)  # noqa: B010 - no type checker is to know
    return cls


class Hinting(type):
    """Metaclass that suggests the Python name for Java's class methods, such as
    ``TimeWindows.ofSizeWithNoGrace``.
    """

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            raise _error(cls, name, cls, f"type object {cls.__name__!r}", _RENAMED)

        def __init__(cls, name: str, bases: tuple[type, ...], own: dict[str, Any]) -> None:
            super().__init__(name, bases, own)
            # A dataclass with slots is created a second time, with its generated `__init__`.
            init = own.get("__init__")
            if init is not None and _takes_names_alone(init):
                cls.__init__ = _by_name(cls, init)


def _takes_names_alone(init: Callable[..., None]) -> bool:
    _, *parameters = signature(init).parameters.values()
    return bool(parameters) and all(
        parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters
    )


def _by_name(cls: type, original: Callable[..., None]) -> Callable[..., None]:
    """Return an `__init__` whose error for positional arguments shows the call by name."""

    @wraps(original)
    def init(self: Any, *args: Any, **named: Any) -> None:
        if args:
            raise TypeError(f"{cls.__name__}() takes its arguments by name; {_written(cls)}")
        original(self, **named)

    return init


def _error(
    cls: type, name: str, instance: object, shown: str, names: Mapping[str, str]
) -> AttributeError:
    hint = None if name.startswith("_") else _hint(cls, name, names)
    advice = f"; {hint}" if hint else ""
    return AttributeError(f"{shown} has no attribute {name!r}{advice}", name=name, obj=instance)


def _hint(cls: type, name: str, names: Mapping[str, str]) -> str | None:
    for here in (_snake(name), names.get(name)):
        if here is not None and here != name and here.partition("(")[0] in dir(cls):
            return f"its name here is {here}"
    makes = type(cls) is Hinting and re.match(rf"({'|'.join(_MAKERS)})([A-Z_]|$)", name)
    return _written(cls) if makes and signature(cls).parameters else None


def _written(cls: type) -> str:
    parameters = ", ".join(f"{given}=..." for given in signature(cls).parameters)
    return f"write {cls.__name__}({parameters}) with the arguments that you need"


def _snake(name: str) -> str:
    """Convert a Java name to Python's spelling.

    >>> _snake("groupByKey"), _snake("toKTable")
    ('group_by_key', 'to_k_table')
    """
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
