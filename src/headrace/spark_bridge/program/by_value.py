"""Pickles what executors need, with classes and functions of the main script by value.

cloudpickle knows how, but for what is peculiar to classes of data: a cache of msgspec that cannot
be pickled, structs whose fields are fixed when they are made, signs in dataclasses that are known
by their identity, and annotations that are text, which nobody can read where the script is not.
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
"""What dataclasses tell from all else by being that very object."""
_CACHE = "__msgspec_cache__"


def dumps(value: object) -> bytes:
    """Pickle a value.

    Raises:
        Exception: something in it cannot be pickled; of any class, as pickle's are.
    """
    from pyspark.cloudpickle import CloudPickler

    plain: Any = CloudPickler

    class Pickler(plain):  # type: ignore[misc]
        """Knows what msgspec adds to classes."""

        def reducer_override(self, obj: Any) -> Any:
            """Called for each class and function, before all else."""
            if type(obj).__module__ == "dataclasses" and (name := _SIGNS.get(id(obj))):
                return name  # it is found there by its name
            found = super().reducer_override(obj)
            if isinstance(obj, type) and isinstance(found, tuple) and len(found) == 6:
                return _reduced(obj, found)
            return found

    out = io.BytesIO()
    Pickler(out).dump(value)
    return out.getvalue()


def loads(data: bytes) -> Any:
    """Read what `dumps` made."""
    return pickle.loads(data)  # noqa: S301 - made by the driver


class ByValue:
    """What Spark calls in its workers, pickled here: its own pickler does not know of msgspec.

    Args:
        function: takes and yields Arrow batches.

    Raises:
        Exception: see `dumps`.
    """

    def __init__(self, function: Function) -> None:
        self._data = dumps(function)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Call it."""
        function: Function = loads(self._data)
        return function(batches)


def _reduced(cls: type, found: tuple[Any, ...]) -> tuple[Any, ...]:
    """What cloudpickle makes of a class that travels by value, without what would not arrive."""
    make, arguments, (members, slots), *rest = found
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
    """The types of a class's own fields: their names say nothing in another process."""
    try:
        known = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # a name that is nowhere: whoever asks for the types will say it
        return dict(own)
    return {name: known.get(name, kind) for name, kind in own.items()}


# -- structs ---------------------------------------------------------------------------------------


def _struct(cls: Any) -> dict[str, Any]:
    """What the fields of a struct are made of, but for their types."""
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
    """The members of a struct that are not made with it."""
    made = {*cls.__struct_fields__, "__slots__", "__match_args__"}
    return {name: value for name, value in members.items() if name not in made}


def _new_struct(
    metaclass: type, name: str, bases: Any, members: Any, tracker: str, made_of: Any
) -> Any:
    """Make a struct with its fields; their types and its methods follow."""
    from pyspark.cloudpickle import cloudpickle

    namespace = {"__annotations__": {field[0]: Any for field in made_of["fields"]}, **members}
    for field, encoded, default, factory in made_of["fields"]:
        options: Any = {"default": default, "default_factory": factory, "name": encoded}
        namespace[field] = msgspec.field(**options)
    # A struct looks for it while it is made.
    namespace["__post_init__"] = _post_init
    keywords = {"metaclass": metaclass, **made_of["options"]}
    made = types.new_class(name, bases, keywords, lambda ns: ns.update(namespace))
    known: Any = cloudpickle._lookup_class_or_track  # all that arrive are one class
    return known(tracker, made)


def _post_init(self: Any) -> None:
    found = type(self).__post_init__
    if found is not _post_init:
        found(self)
