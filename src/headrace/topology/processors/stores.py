"""Stores of processors: their builders and their wrappers.

A `StoreBuilder` describes a store. Pass it to ``add_state_store``, or name it in a processor's
``stores``. In the processor, ``context.store(builder)`` returns the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from headrace.state.buffer import Coding
from headrace.state.buffers import make_buffer
from headrace.state.layout import LayoutName
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreKind, StoreSpec
from headrace.topology.arguments import checked
from headrace.topology.context.number import Number
from headrace.topology.errors import TopologyError
from headrace.topology.functions import CreationLines, at_lines, with_lines
from headrace.topology.java_names import Hinting
from headrace.topology.naming import require_legal_name
from headrace.topology.processors.store import Store
from headrace.topology.processors.store_wrappers import (
    KeyValueStore,
    StoreFactory,
    TimestampedKeyValueStore,
    WrappedStore,
)
from headrace.topology.processors.timed_store_wrappers import (
    SessionStore,
    SessionStoreFactory,
    TimestampedWindowStore,
    WindowStore,
    WindowStoreFactory,
)
from headrace.topology.processors.versioned_store import VersionedStore, VersionedStoreFactory
from headrace.topology.serdes import Serde
from headrace.topology.serdes.normalise import exact_types, normaliser
from headrace.topology.serdes.windows_serde import (
    SessionWindowedSerde,
    TimeWindowedSerde,
    WindowStoreSerde,
)
from headrace.topology.windows import duration_ms

K = TypeVar("K")
V = TypeVar("V")
F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class StoreBuilder(Generic[F]):
    """Description of a store, created by `Stores`; `F` is the type that processors use.

    Examples:
        >>> from headrace import Stores, serdes
        >>> counts = Stores.key_value("counts", key=serdes.string, value=serdes.long, logged=False)
        >>> isinstance(counts, StoreBuilder), counts.name, counts
        (True, 'counts', <StoreBuilder of counts key=string value=long; rocksdb; not logged>)
    """

    store: Store

    def __repr__(self) -> str:
        suffix = "" if self.store.spec.logged else "; not logged"
        return f"<StoreBuilder of {self.store}; {self.store.spec.kind}{suffix}>"

    @property
    def name(self) -> str:
        """The store's name, from which the changelog topic's name is derived."""
        return self.store.name


@checked
class Stores(metaclass=Hinting):
    """Factory of store builders. All methods have these arguments:

    Args:
        name: the store's name, from which the changelog topic's name is derived; unique in the
            topology.
        key: serde of keys; None uses the setting ``default.key.serde``.
        value: serde of values; None uses the setting ``default.value.serde``.
        kind: "rocksdb" keeps rows on disk, "memory" only in the process.
        logged: whether a changelog topic backs the store, so that it survives the loss of its
            machine.
        topic_config: settings of the changelog topic that override the defaults.

    Raises:
        TopologyError: the name is not legal, or a duration is not valid.

    Writes are always buffered until the commit: the changelog gets a single record for each changed
    row. The changelog has Kafka Streams' format.
    """

    @staticmethod
    def key_value(
        name: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        kind: StoreKind = "rocksdb",
        logged: bool = True,
        topic_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[KeyValueStore[K, V]]:
        """Describe a store with a value for each key.

        Its changelog records have the timestamp of the current record.

        Examples:
            >>> from headrace import serdes
            >>> Stores.key_value("counts", key=serdes.string, value=serdes.long).name
            'counts'
        """
        spec = _spec(name, kind, logged, topic_config)
        return StoreBuilder(Store(spec, key, value, KeyValueStore))

    @staticmethod
    def timestamped_key_value(
        name: str,
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        kind: StoreKind = "rocksdb",
        logged: bool = True,
        topic_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[TimestampedKeyValueStore[K, V]]:
        """Describe a store with a value for each key and a timestamp set by the processor, as in
        the DSL's tables.

        Examples:
            >>> Stores.timestamped_key_value("last").name
            'last'
        """
        spec = _spec(name, kind, logged, topic_config)
        return StoreBuilder(Store(spec, key, value, TimestampedKeyValueStore))

    @staticmethod
    def window(
        name: str,
        *,
        size: timedelta,
        retention: timedelta,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        retain_duplicates: bool = False,
        kind: StoreKind = "rocksdb",
        logged: bool = True,
        topic_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[WindowStore[K, V]]:
        """Describe a store of values by key and window start.

        Args:
            size: size of the windows; it is not stored, and only determines their ends.
            retention: how long a window is kept, from its start to the latest start that was put;
                at least the size.
            retain_duplicates: whether to keep each value that is put for the same key and start.

        Examples:
            >>> minute = timedelta(minutes=1)
            >>> Stores.window("sums", size=minute, retention=60 * minute).name
            'sums'
        """
        return _window(
            name, size, retention, key, value, kind, logged, topic_config, retain_duplicates
        )

    @staticmethod
    def timestamped_window(
        name: str,
        *,
        size: timedelta,
        retention: timedelta,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        kind: StoreKind = "rocksdb",
        logged: bool = True,
        topic_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[TimestampedWindowStore[K, V]]:
        """Describe a store of values with timestamps set by the processor, by key and window start.

        Examples:
            >>> minute = timedelta(minutes=1)
            >>> Stores.timestamped_window("sums", size=minute, retention=minute).name
            'sums'
        """
        builder = _window(name, size, retention, key, value, kind, logged, topic_config)
        factory = WindowStoreFactory(builder.store.spec.retention_ms, timestamped=True)
        return StoreBuilder(Store(builder.store.spec, builder.store.key, value, factory))

    @staticmethod
    def session(
        name: str,
        *,
        retention: timedelta,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        kind: StoreKind = "rocksdb",
        logged: bool = True,
        topic_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[SessionStore[K, V]]:
        """Describe a store of values by key and by the start and end of a session.

        Args:
            retention: how long a session is kept, from its end to the latest end that was put.

        Examples:
            >>> Stores.session("visits", retention=timedelta(days=1)).name
            'visits'
        """
        retention_ms = duration_ms("retention", retention, at_least=1)
        spec = _spec(name, kind, logged, topic_config, "session", retention_ms)
        return StoreBuilder(
            Store(spec, SessionWindowedSerde(key), value, SessionStoreFactory(retention_ms))
        )

    @staticmethod
    def versioned(
        name: str,
        *,
        history: timedelta,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        kind: StoreKind = "rocksdb",
        logged: bool = True,
        topic_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[VersionedStore[K, V]]:
        """Describe a store with several versions of each key's value, each valid from its timestamp
        on.

        Args:
            history: how far a timestamp that is read or written may be before the latest timestamp.

        Examples:
            >>> Stores.versioned("prices", history=timedelta(days=7)).name
            'prices'
        """
        history_ms = duration_ms("history", history, at_least=0)
        spec = _spec(name, kind, logged, topic_config, "versioned", history_ms)
        return StoreBuilder(Store(spec, key, value, VersionedStoreFactory(history_ms)))

    @staticmethod
    def custom(
        name: str,
        face: Callable[[KeyValueStore[K, V]], F],
        *,
        key: Serde[K] | None = None,
        value: Serde[V] | None = None,
        kind: StoreKind = "rocksdb",
        logged: bool = True,
        topic_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder[F]:
        """Describe a user-defined store whose data is in the rows of a key-value store.

        A new object is created for each task after the rows are restored, and again after an abort,
        when its attributes are lost. So the store is exactly-once, restored and moved like any
        other store, and its code does not handle changelogs.

        Args:
            face: returns the user-defined store for the rows; may be a class.

        Examples:
            >>> from headrace import serdes
            >>> class TopThree:
            ...     def __init__(self, rows: KeyValueStore[str, list[int]]) -> None:
            ...         self._rows = rows
            ...     def add(self, key: str, number: int) -> None:
            ...         best = sorted([*self.of(key), number], reverse=True)
            ...         self._rows.put(key, best[:3])
            ...     def of(self, key: str) -> list[int]:
            ...         return self._rows.get(key) or []
            >>> builder = Stores.custom("top", TopThree, key=serdes.string, value=serdes.json)
            >>> top = in_memory(builder)
            >>> for number in (3, 9, 1, 7):
            ...     top.add("a", number)
            >>> top.of("a")
            [9, 7, 3]
        """
        spec = _spec(name, kind, logged, topic_config)
        return StoreBuilder(Store(spec, key, value, _Custom(face)))


@dataclass(frozen=True, slots=True)
class _Custom:
    face: Callable[[Any], Any]

    def __call__(self, rows: WrappedStore) -> Any:
        return self.face(KeyValueStore(rows))


_TABLE_FACTORIES: Mapping[LayoutName, StoreFactory] = {
    "plain": TimestampedKeyValueStore,
    "window": WindowStoreFactory(timestamped=True),
    "session": SessionStoreFactory(),
}


def open_store(store: Store, rows: WrappedStore) -> Any:
    """Create the wrapper of a store for processors; a table's store has its layout's wrapper."""
    factory = store.factory or _TABLE_FACTORIES.get(store.spec.layout)
    if factory is None:
        raise TopologyError(f"store {store.name!r} cannot be read by a processor")
    return factory(rows)


def in_memory(builder: StoreBuilder[F], *, timestamp: int = 0) -> F:
    """Create a store without a topology and a changelog, for tests.

    Args:
        builder: the store's builder, which must have serdes.
        timestamp: timestamp of the current record, in milliseconds.

    Examples:
        >>> from headrace import serdes
        >>> store = in_memory(Stores.key_value("s", key=serdes.string, value=serdes.long))
        >>> store.put("a", 1)
        >>> store.get("a")
        1
    """
    store = builder.store
    assert store.key is not None, store.name
    assert store.value is not None, store.name
    committed = MemoryTaskState([store.spec]).store(store.name)
    coding = Coding(
        encode=store.value.serialize,
        decode=store.value.deserialize,
        stored_form="objects" if store.value.immutable else "bytes",
        exact=exact_types(store.value),
        keep=normaliser(store.value),
    )
    rows = WrappedStore(
        name=store.name,
        buffer=make_buffer(store.spec, committed, coding),
        key=store.key,
        value=store.value,
        timestamp=lambda: timestamp,
        number=defaultdict[str, Number](Number).__getitem__,
        dropped=lambda reason: None,  # noqa: ARG005
    )
    opened_store: F = open_store(store, rows)
    return opened_store


def store_names(stores: Iterable[StoreBuilder[Any] | str]) -> tuple[str, ...]:
    names = (s.name if isinstance(s, StoreBuilder) else s for s in stores)
    return tuple(dict.fromkeys(names))


def with_stores(
    stores: Iterable[Store], requested: Iterable[StoreBuilder[Any] | str], lines: CreationLines
) -> tuple[tuple[Store, ...], CreationLines]:
    """Return the stores and their source lines, with the missing stores of `requested` added."""
    by_name = {store.name: store for store in stores}
    for builder in requested:
        if isinstance(builder, str):
            continue
        if by_name.get(builder.name) == builder.store:
            continue
        lines = with_lines(lines, "store", (builder.name,))
        if builder.name in by_name:
            raise TopologyError(
                f"two different stores are named {builder.name!r}"
                f"{at_lines(lines, 'store', builder.name)}; give either store another name, "
                "or use the same StoreBuilder for both"
            )
        by_name[builder.name] = builder.store
    return tuple(by_name.values()), lines


def _spec(
    name: str,
    kind: StoreKind,
    logged: bool,
    topic_config: Mapping[str, str] | None,
    layout: LayoutName = "plain",
    retention_ms: int | None = None,
) -> StoreSpec:
    return StoreSpec(
        require_legal_name(name, "store name"),
        kind=kind,
        logged=logged,
        topic_config=topic_config or {},
        layout=layout,
        retention_ms=retention_ms,
    )


def _window(
    name: str,
    size: timedelta,
    retention: timedelta,
    key: Serde[Any] | None,
    value: Serde[Any] | None,
    kind: StoreKind,
    logged: bool,
    topic_config: Mapping[str, str] | None,
    duplicates: bool = False,
) -> StoreBuilder[Any]:
    size_ms = duration_ms("size", size, at_least=1)
    retention_ms = duration_ms("retention", retention, at_least=1)
    if retention_ms < size_ms:
        raise TopologyError(
            f"the retention of store {name!r} is shorter than its windows; make it at least {size}"
        )
    spec = _spec(name, kind, logged, topic_config, "window", retention_ms)
    keys = WindowStoreSerde(TimeWindowedSerde(key, size_ms))
    return StoreBuilder(Store(spec, keys, value, WindowStoreFactory(retention_ms, duplicates)))
