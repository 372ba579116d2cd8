"""Pickling of the program for executors, with classes and functions of the main script by value.

cloudpickle supports most of it, except for some features of data classes: a cache of msgspec that
cannot be pickled, structs whose fields are fixed at creation, sentinels in dataclasses that are
compared by identity, and annotations as text, which cannot be resolved without the script.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import pickle
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

Function = Callable[[Iterator[Any]], Iterator[Any]]

_SIGNS = {
    id(one): name
    for name, one in vars(dataclasses).items()
    if type(one).__module__ == "dataclasses"
}
"""Sentinels of the module `dataclasses`, which are compared by identity."""
_CACHE = "__msgspec_cache__"


def dumps(value: object) -> bytes:
    """Pickle a value; an object that cannot be pickled raises an error of any class."""
    from pyspark.cloudpickle import CloudPickler

    plain: Any = CloudPickler

    class Pickler(plain):  # type: ignore[misc]
        """Pickler with support for msgspec structs and dataclasses."""

        def reducer_override(self, obj: Any) -> Any:
            if type(obj).__module__ == "dataclasses" and (name := _SIGNS.get(id(obj))):
                return name  # pickled as a global name
            found = super().reducer_override(obj)
            if isinstance(obj, type) and isinstance(found, tuple) and len(found) == 6:
                return _reduced(obj, found)
            return found

    out = io.BytesIO()
    Pickler(out).dump(value)
    return out.getvalue()


def loads(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - made by the driver


class ByValue:
    """Function for Spark's workers, pickled here as Spark's pickler does not support msgspec."""

    def __init__(self, function: Function) -> None:
        self._data = dumps(function)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        function: Function = loads(self._data)
        return function(batches)


def _reduced(cls: type, reduction: tuple[Any, ...]) -> tuple[Any, ...]:
    """Adapt cloudpickle's reduction of a class, so that it can be restored in another process."""
    make, arguments, (members, slots), *rest = reduction
    members = {name: value for name, value in members.items() if name != _CACHE}
    if "__annotations__" in members:
        members["__annotations__"] = _annotations(cls, members["__annotations__"])
    if isinstance(cls, type(msgspec.Struct)):
        return _new_struct, (*arguments[:-1], _struct(cls)), (_own(cls, members), slots), *rest
    if typing.is_typeddict(cls) and "__orig_bases__" not in vars(cls):
        # It is a dict that has the fields of its bases, and Python takes no dict for a base.
        metaclass, name, _, *more = arguments
        arguments = (metaclass, name, (typing.TypedDict,), *more)
    return make, arguments, (members, slots), *rest


def _annotations(cls: type, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved types of a class's own fields: names are unknown in another process."""
    try:
        known = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # an unknown name fails when the types are used
        return dict(own)
    return {name: known.get(name, kind) for name, kind in own.items()}


# -- structs ---------------------------------------------------------------------------------------


def _struct(cls: Any) -> dict[str, Any]:
    """Return the field definitions and options of a struct, without the types."""
    own = vars(cls).get("__annotations__", {})
    config = cls.__struct_config__
    kinds = inspect.signature(cls).parameters
    fields = [one for one in msgspec.structs.fields(cls) if one.name in own]
    options = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    if options["tag"] is None:
        del options["tag"], options["tag_field"]
    options["kw_only"] = any(
        kinds[one.name].kind is inspect.Parameter.KEYWORD_ONLY for one in fields
    )
    return {
        "fields": [(f.name, f.encode_name, f.default, f.default_factory) for f in fields],
        "options": options,
    }


def _own(cls: Any, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a struct that are not created with the class."""
    made = {*cls.__struct_fields__, "__slots__", "__match_args__"}
    return {name: value for name, value in members.items() if name not in made}


def _new_struct(
    metaclass: type, name: str, bases: Any, members: Any, tracker: str, made_of: Any
) -> Any:
    """Create a struct class with its fields; pickle sets their types and its methods later."""
    from pyspark.cloudpickle import cloudpickle

    namespace = {"__annotations__": {field[0]: Any for field in made_of["fields"]}, **members}
    for field, encoded, default, factory in made_of["fields"]:
        options: Any = {"default": default, "default_factory": factory, "name": encoded}
        namespace[field] = msgspec.field(**options)
    # msgspec looks it up when the class is created.
    namespace["__post_init__"] = _post_init
    keywords = {"metaclass": metaclass, **made_of["options"]}
    made = types.new_class(name, bases, keywords, lambda ns: ns.update(namespace))
    known: Any = cloudpickle._lookup_class_or_track  # all copies become the same class
    return known(tracker, made)


def _post_init(self: Any) -> None:
    found = type(self).__post_init__
    if found is not _post_init:
        found(self)
