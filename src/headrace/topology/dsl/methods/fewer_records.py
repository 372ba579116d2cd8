"""The methods of `KStream` that let fewer records go on, each of them as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from headrace.topology.dsl.materialized import Materialized, materialized
from headrace.topology.dsl.methods.stream_joins import StreamJoins
from headrace.topology.dsl.steps.fewer_records import Deduplication, deduplicated, sampled
from headrace.topology.errors import TopologyError
from headrace.topology.operators.sample import By
from headrace.topology.serdes import Serde

if TYPE_CHECKING:
    from headrace.topology.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
NO_GRACE = timedelta(0)


class FewerRecords(StreamJoins[K, V]):
    """Deduplicates and samples a stream."""

    __slots__ = ()

    @overload
    def deduplicate(
        self,
        *,
        within: timedelta,
        key: Callable[[V], object] | None = ...,
        with_key: Literal[False] = ...,
        grace: timedelta = ...,
        id_serde: Serde[Any] | None = ...,
        key_serde: Serde[K] | None = ...,
        value_serde: Serde[V] | None = ...,
        store: str | Materialized | None = ...,
        name: str | None = ...,
    ) -> KStream[K, V]: ...
    @overload
    def deduplicate(
        self,
        *,
        within: timedelta,
        key: Callable[[K, V], object],
        with_key: Literal[True],
        grace: timedelta = ...,
        id_serde: Serde[Any] | None = ...,
        key_serde: Serde[K] | None = ...,
        value_serde: Serde[V] | None = ...,
        store: str | Materialized | None = ...,
        name: str | None = ...,
    ) -> KStream[K, V]: ...

    def deduplicate(
        self,
        *,
        within: timedelta,
        key: Callable[..., object] | None = None,
        with_key: bool = False,
        grace: timedelta = NO_GRACE,
        id_serde: Serde[Any] | None = None,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Let a record go on unless one with its id went on at most `within` before or after it.

        The id is the record's key, or the key and what `key` returns. Times are those of records.
        One that is left out starts no interval of its own. Records without a key, and those for
        which `key` returns None, always go on (Kafka Streams: KIP-655). Ids are equal where their
        serdes make the same bytes of them: with `serdes.json` 1, 1.0 and True are three.

        Args:
            within: how far from a record that went on others are left out, both ends included.
            key: called as ``key(value)``, returns what tells records of one key apart.
            with_key: call ``key(key, value)`` instead.
            grace: how far behind stream time a record may come and be judged by all that went on;
                what comes later goes on unless one that is still known lies near.
            id_serde: serde of what `key` returns; None takes ``default.key.serde``.
            key_serde: serde of keys; None takes that of the stream.
            value_serde: serde of values in a repartition topic; None takes that of the stream.
            store: name or options of the store, which is never cached; None generates the name.
            name: name of the node, and of the topic if the key has changed; None generates the one
                and takes the store's name for the other.

        Raises:
            TopologyError: a duration is not possible, or a name is not legal or is taken.

        >>> from datetime import timedelta
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> paid = builder.stream("paid", key=serdes.string, value=serdes.json)
        >>> once = paid.deduplicate(
        ...     within=timedelta(hours=1), key=lambda bill: bill["id"], store="paid-once"
        ... )
        >>> once.to("once")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     sent = [(0, 7), (60_000, 7), (60_000, 8), (3_600_001, 7)]
        ...     for timestamp, number in sent:
        ...         driver.input("paid").send("ann", {"id": number}, timestamp=timestamp)
        ...     [(r.value["id"], r.timestamp) for r in driver.output("once").read_all()]
        [(7, 0), (8, 60000), (7, 3600001)]
        """
        if key is None and (with_key or id_serde is not None):
            raise TopologyError(
                "deduplicate() was given with_key= or id_serde=, which are for what key= returns; "
                "give it key=, or leave them out"
            )
        given = Deduplication(within, grace, key, with_key, id_serde, materialized(store), name)
        edge = self._edge
        edge = replace(edge, key=key_serde or edge.key, value=value_serde or edge.value)
        return self._stream(deduplicated(edge, given))

    def sample(
        self,
        fraction: float,
        *,
        by: By = "key",
        serde: Serde[Any] | None = None,
        name: str | None = None,
    ) -> KStream[K, V]:
        """Let a share of the records go on, by a hash of what they are and never by chance.

        All records of a key go on, or none, in each run and in a backfill as well. The hash is
        BLAKE2b of the bytes that the serde makes (see `headrace.topology.operators.sample`), which
        has nothing to do with the one that partitions go by.

        Args:
            fraction: the share, from 0 to 1; about that part of the keys goes on.
            by: "key", or "value" to decide for each value by itself.
            serde: whose bytes are hashed; None takes that of the stream's keys or values.
            name: name of the node; None generates one.

        Raises:
            TopologyError: the fraction is not from 0 to 1, or a name is not legal or is taken.

        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> clicks = builder.stream("clicks", key=serdes.string, value=serdes.long)
        >>> clicks.sample(0.5).to("some")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("clicks").send_many([("a", 1), ("b", 1), ("c", 1), ("a", 2)])
        ...     [(record.key, record.value) for record in driver.output("some").read_all()]
        [('a', 1), ('b', 1), ('a', 2)]
        """
        return self._stream(sampled(self._edge, fraction, by, serde, name))
