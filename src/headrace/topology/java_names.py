"""Hints from Kafka Streams' Java names to the Python names, in errors about unknown attributes.

Type checkers do not see it: they report an unknown name as an error as usual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, TypeVar

Face = TypeVar("Face", bound=type)
Call = TypeVar("Call", bound=Callable[..., Any])

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
_STORE = "write store(name)"
_SERDES_OF_OPERATORS = "write key= and value= of the operator that has store="
_CONNECT = "write headrace.connect(url), which sends a query to the host that has the key"
_ADVICE: Mapping[str, Mapping[str, str]] = {
    "KafkaStreams": {
        "addStreamThread": "write add_worker()",
        "allLocalStorePartitionLags": "write tasks(), or lags() for inputs",
        "isPaused": "compare state with State.PAUSED",
        "metadataForAllStreamsClients": _CONNECT,
        "metadataForLocalThreads": "write tasks()",
        "query": "write store(name)",
        "queryMetadataForKey": _CONNECT,
        "removeStreamThread": "write remove_worker()",
        "setGlobalStateRestoreListener": "write restore_listener= of KafkaStreams()",
        "setStandbyUpdateListener": "remove it: there are no standby replicas",
        "setStateListener": "write state_listener= of KafkaStreams()",
        "setUncaughtExceptionHandler": "write uncaught_error_handler= of KafkaStreams()",
        "streamsMetadataForStore": _CONNECT,
    },
    "StreamsBuilder": {"addGlobalStore": "write global_table(topic)"},
    "Topology": {"addGlobalStore": "write global_table(topic) of StreamsBuilder"},
    "BufferConfig": {
        "maxBytes": "write BufferConfig(max_bytes=...)",
        "maxRecords": "write BufferConfig(max_records=...)",
        "unbounded": "write BufferConfig(), which has no limit",
    },
    "Materialized": {
        "withCachingDisabled": "write Materialized(..., cached=False)",
        "withCachingEnabled": "write Materialized(..., cached=True)",
        "withKeySerde": _SERDES_OF_OPERATORS,
        "withLoggingDisabled": "write Materialized(..., logged=False)",
        "withLoggingEnabled": "write Materialized(..., topic_config=...)",
        "withRetention": "write Materialized(..., retention=...)",
        "withStoreType": "write Materialized(..., kind=...)",
        "withValueSerde": _SERDES_OF_OPERATORS,
    },
    "TopologyTestDriver": {
        "advanceWallClockTime": "write advance(duration)",
        "createInputTopic": "write input(topic)",
        "createOutputTopic": "write output(topic)",
        "getAllStateStores": _STORE,
        "getKeyValueStore": _STORE,
        "getSessionStore": _STORE,
        "getStateStore": _STORE,
        "getTimestampedKeyValueStore": _STORE,
        "getTimestampedWindowStore": _STORE,
        "getVersionedKeyValueStore": _STORE,
        "getWindowStore": _STORE,
        "producedTopicNames": "write output_topics",
    },
    "TestInput": {
        "advanceTime": "write send(..., timestamp=...), or step= of input()",
        "pipeInput": "write send(key, value)",
        "pipeKeyValueList": "write send_many(pairs)",
        "pipeRecordList": "write send(...) for each record",
        "pipeValueList": "write send_many(pairs)",
    },
    "TestOutput": {
        "getQueueSize": "write len(read_all())",
        "readKeyValue": "write read()",
        "readKeyValuesToList": "write read_all()",
        "readKeyValuesToMap": "write as_dict()",
        "readRecord": "write read()",
        "readRecordsToList": "write read_all()",
        "readValue": "write read().value",
        "readValuesToList": "write read_all()",
    },
}
"""Advice on Java's methods whose names differ by more than the spelling, by class."""
KEYWORDS: Mapping[str, str] = {
    "as_": "store",
    "key_serde": "key",
    "materialized": "store",
    "named": "name",
    "number_of_partitions": "partitions",
    "stream_partitioner": "partitioner",
    "timestamp_extractor": "timestamps",
    "uncaught_exception_handler": "uncaught_error_handler",
    "value_serde": "value",
}
"""Names of arguments that follow Java's, and their names here."""
OF_PACKAGE: Mapping[str, str] = {
    "Branched": "name branches by branch(predicate, name=...)",
    "Consumed": "write key=, value=, timestamps=, offset_reset= and name= of stream() and table()",
    "Duration": "write a timedelta",
    "EmitStrategy": 'write emit="on_window_close" of windowed_by()',
    "Grouped": "write key=, value= and name= of group_by() and group_by_key()",
    "Joined": "write arguments of join(), such as key= and name=",
    "KeyValue": "write a tuple (key, value)",
    "Named": "write name= of the operator",
    "Printed": "write label= of print()",
    "Produced": "write key=, value= and partitioner= of to()",
    "PunctuationType": 'write kind="stream_time" or kind="wall_clock" of schedule()',
    "QueryableStoreTypes": "write store(name) of KafkaStreams",
    "Repartitioned": "write key=, value=, partitions= and name= of repartition()",
    "Serdes": "import serdes, and write serdes.string",
    "StateRestoreListener": "import RestoreListener",
    "StoreQueryParameters": "write store(name) of KafkaStreams",
    "StreamJoined": "write arguments of join(), such as key= and store=",
    "StreamsUncaughtExceptionHandler": "import UncaughtErrorResponse",
    "TableJoined": "write partitioner=, other_partitioner= and name= of join()",
    "TestInputTopic": "write input(topic) of TopologyTestDriver",
    "TestOutputTopic": "write output(topic) of TopologyTestDriver",
}
"""Advice on Java's classes that have no counterpart of their name."""
OF_SERDES: Mapping[str, str] = {
    "ByteArray": "bytes",
    "Bytes": "bytes",
    "Double": "double",
    "Integer": "integer",
    "Long": "long",
    "String": "string",
}
"""Serdes here, by the name of Java's."""
OTHER_SERDES = ("Boolean", "ByteBuffer", "Float", "Short", "UUID", "Void")
"""Java's serdes without a counterpart."""
_MAKERS = ("of", "with", "as", "advanceBy", "until")
"""Prefixes of Java's static factories, which correspond to a call of the class here."""


def hinting(cls: Face) -> Face:
    """Make the objects of a class suggest the Python name for an unknown Java name."""

    def unknown(self: Any, name: str) -> Any:
        raise _error(type(self), name, self, f"{type(self).__name__!r} object", _RENAMED)

    setattr(cls, "__getattr__", unknown)  # noqa: B010 - no type checker is to know
    return cls


def hinting_arguments(cls: Face) -> Face:
    """Make the constructor of a class suggest the name for an argument that follows Java's.

    It is checked in `__new__`: a wrapper of `__init__` would be a frame of each of its errors, and
    a report with local variables would show the arguments, secrets included.
    """
    called = signature(cls.__init__)  # type: ignore[misc]

    def new(cls: Any, *args: Any, **named: Any) -> Any:
        unknown = sorted(named.keys() - called.parameters.keys())
        hints = {name: call_hint(called, (cls, *args), {name: None}) for name in unknown}
        del args, named
        for name, hint in hints.items():
            if hint is not None:
                raise TypeError(f"got an unexpected keyword argument {name!r}; {hint}")
        return object.__new__(cls)

    setattr(new, "__signature__", called)  # noqa: B010 - a function has no such attribute
    setattr(cls, "__new__", new)  # noqa: B010 - no type checker is to know
    return cls


class Hinting(type):
    """Metaclass that suggests the Python name for Java's methods, also for class methods such as
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
            hinting(cls)


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


def serde_hint(name: str) -> str:
    """Return the end of a message about an unknown serde of Java, or "".

    >>> serde_hint("Long"), serde_hint("longs")
    ('; write serdes.long', '')
    """
    if name in OTHER_SERDES:
        return "; write serdes.serde_from(...) with two functions"
    return f"; write serdes.{OF_SERDES[name]}" if name in OF_SERDES else ""


def call_hint(called: Signature, args: Sequence[object], named: Mapping[str, object]) -> str | None:
    """Return advice on a call that does not fit a signature, or None.

    >>> def repartition(self, *, partitions=None, name=None): ...
    >>> call_hint(signature(repartition), [1], {"number_of_partitions": 4})
    'its name here is partitions'
    >>> call_hint(signature(repartition), [1, 4], {})
    'give arguments by name: partitions=, name='
    """
    for name in named:
        here = KEYWORDS.get(name)
        if name not in called.parameters and here in called.parameters:
            return f"its name here is {here}"
    parameters = called.parameters.values()
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if names and not is_open and len(args) > len(places):
        return f"give arguments by name: {', '.join(f'{name}=' for name in names)}"
    return None


def _hint(cls: type, name: str, names: Mapping[str, str]) -> str | None:
    advice = _ADVICE.get(cls.__name__, {}).get(name)
    if advice is not None:
        return advice
    if name.endswith("_CONFIG") and cls.__name__ == "StreamsConfig":
        setting = name.removesuffix("_CONFIG").lower().replace("_", ".")
        return f"write {setting!r} as a key of the settings"
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
