"""How a table is stored: the name and the options of its store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Generic, Literal, TypedDict, TypeVar

from headrace.state.layout import LayoutName
from headrace.state.spec import StoreKind, StoreSpec
from headrace.topology.arguments import require_choice
from headrace.topology.errors import TopologyError
from headrace.topology.java_names import Hinting
from headrace.topology.naming import require_legal_name
from headrace.topology.serdes import Serde
from headrace.topology.windows import duration_ms

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Materialized(metaclass=Hinting):
    """Name and options of a store; pass it as ``store=`` instead of the bare name.

    Args:
        store: the store's name, which its changelog topic is named after; None generates one.
        kind: "rocksdb" keeps rows on disk, "memory" only in the process.
        logged: whether a changelog topic backs the store, so that it survives its machine.
        cached: whether only the last update of each key is forwarded, at the commit.
        topic_config: settings of the changelog topic, over the defaults.
        retention: how long windows are kept in stream time, from their start on; None keeps them
            until they are closed. Only for stores of windows.
        history: keep versions of each row that were valid this long before the latest record. Only
            for the tables of ``table()`` and ``to_table()``, see docs/versioned-tables.md.

    Raises:
        TopologyError: the store's name, the retention or the history is invalid.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
        >>> options = Materialized("counts", kind="memory", topic_config={"retention.ms": "1000"})
        >>> _ = words.group_by_key().count(store=options)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("words").send_many([("tea", ""), ("tea", "")])
        ...     driver.store("counts")["tea"]
        2
        >>> Materialized("prices", history=timedelta(days=1)).history_ms
        86400000
    """

    store: str | None = None
    kind: StoreKind = "rocksdb"
    logged: bool = True
    cached: bool = True
    topic_config: Mapping[str, str] = field(default_factory=dict)
    retention: timedelta | None = None
    history: timedelta | None = None

    def __post_init__(self) -> None:
        if self.store is not None:
            require_legal_name(self.store, "store name")
        require_choice("kind", self.kind, ("rocksdb", "memory"))
        if self.retention is not None:
            duration_ms("retention", self.retention, at_least=0)
        if self.history is not None:
            duration_ms("history", self.history, at_least=0)

    @property
    def history_ms(self) -> int | None:
        """Retention of old versions in milliseconds; None keeps only the last version."""
        return None if self.history is None else duration_ms("history", self.history, at_least=0)

    def spec(self, name: str) -> StoreSpec:
        """Return the spec of the store under its final name.

        Raises:
            TopologyError: a retention or a history was given.
        """
        if self.retention is not None:
            raise TopologyError(
                f"store {name!r} has no windows, so its rows never expire; omit the retention, or "
                "aggregate the records in windows"
            )
        return self._spec(name, "plain", None)

    def timed_spec(
        self, name: str, layout: Literal["window", "session"], *, least_ms: int | None
    ) -> StoreSpec:
        """Return the spec of a store of windows or sessions under its final name.

        Args:
            name: the store's name.
            layout: the layout of its rows.
            least_ms: minimum retention, which is also the default; None keeps rows forever.

        Raises:
            TopologyError: the retention is shorter.
        """
        if self.retention is None:
            return self._spec(name, layout, least_ms)
        retention_ms = duration_ms("retention", self.retention, at_least=0)
        if least_ms is None or retention_ms < least_ms:
            least = "for ever" if least_ms is None else f"for {least_ms} ms"
            raise TopologyError(
                f"store {name!r} has a retention of {retention_ms} ms, and its windows accept "
                f"records {least}; increase the retention to that, or omit it"
            )
        return self._spec(name, layout, retention_ms)

    def log_spec(self, name: str, *, least_ms: int) -> StoreSpec:
        """Return the spec of a store of records by time, whose rows are never overwritten."""
        spec = self.timed_spec(name, "window", least_ms=least_ms)
        # Compaction is useless.
        config = {"cleanup.policy": "delete", **spec.topic_config}
        return replace(spec, cached=False, topic_config=config)

    def versioned_spec(self, name: str) -> StoreSpec:
        """Return the spec of a versioned store under its final name."""
        assert self.history is not None, name
        # Every version must be forwarded, so the cache is off.
        plain = replace(self, history=None, cached=False).spec(name)
        return replace(plain, layout="versioned", retention_ms=self.history_ms)

    def _spec(self, name: str, layout: LayoutName, retention_ms: int | None) -> StoreSpec:
        if self.history is not None:
            raise TopologyError(
                f"store {name!r} cannot have a history, which is for table() and to_table(); "
                'leave it out, and write .to_stream().to_table(store=Materialized("...", '
                "history=...)) after the step"
            )
        return StoreSpec(
            name,
            kind=self.kind,
            logged=self.logged,
            cached=self.cached,
            topic_config=self.topic_config,
            layout=layout,
            retention_ms=retention_ms,
        )


class TableOptions(TypedDict, Generic[K, V], total=False):
    """Options of a DSL call that makes a table from another table; see `KTable.map_values`."""

    store: str | Materialized | None
    key: Serde[K] | None
    value: Serde[V] | None
    name: str | None


def materialized(store: str | Materialized | None) -> Materialized:
    return store if isinstance(store, Materialized) else Materialized(store)
