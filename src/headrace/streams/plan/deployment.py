"""Description of a deployed topology, reduced to the parts that state depends on.

It contains stores and repartition topics by name, with everything that must stay the same for their
bytes to be readable. Its text form is the metadata of a committed offset (see
`headrace.streams.plan.deployed`), so it is compressed and limited in size.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import MAX_BYTES
from headrace.topology.context.operator_spec import RowKind
from headrace.topology.graph.graph import Node, SubTopology
from headrace.topology.processors.store import Store
from headrace.topology.processors.versioned_store import VersionedStoreFactory
from headrace.topology.serdes._serde import completed
from headrace.topology.serdes.serde_schemas import schema_of
from headrace.topology.serdes.windows_serde import WindowStoreSerde

# The properties of an operator that its store's rows depend on: its kind, its aggregation, and the
# spans of its windows.


Spans = tuple[tuple[str, int], ...]
"""Pairs of a name and milliseconds, sorted by name."""


def filler_of(sub: SubTopology, store: str) -> Node | None:
    """Return the node that writes a store; a processor only if no other node uses the store."""
    users = [node for node in sub.nodes if store in node.stores]
    others = [node for node in users if not node.is_processor]
    fillers = [node for node in others if node.fills(store)]
    return next(iter(fillers or others or users), None)


def row_kind_of(node: Node | None, store: Store) -> RowKind:
    kind = RowKind("") if node is None else node.row_kind
    spans, fixed = dict(kind.spans), kind.fixed
    if isinstance(store.factory, VersionedStoreFactory):
        spans["history"] = store.factory.history_ms
    if (node is None or not kind.kind or node.is_processor) and isinstance(
        store.key, WindowStoreSerde
    ):
        spans["size"] = store.key.windowed.size_ms
        fixed |= {"size"}
    if store.spec.retention_ms is not None:
        spans["retention"] = store.spec.retention_ms
    return RowKind(kind.kind, spans, fixed, kind.unrecorded)


FORMAT = 1
_END = "."
"""Terminator of the text; not a base85 digit (see `headrace.streams.kafka.offset_texts`)."""


@dataclass(frozen=True, slots=True)
class DeployedStore:
    """Store of a deployed topology; `key` and `value` are the names of its serdes.

    Args:
        name: its name, without the application id.
        sub: the number of its sub-topology, as in its task ids.
        op: the operator that writes it.
        reads: the topics that its sub-topology reads.
        source: whether it is restored from its source topic instead of a changelog.
        layout: the format of its rows on disk and in its changelog.
        step: the kind of the operator that writes it, if `op` does not determine it; "" if unknown.
        spans: sizes, grace periods and retention times in milliseconds, by name.
        key_schema: the schema of the keys (see `headrace.topology.serdes.serde_schemas`), or its
            digest if it was too large; "" if unknown.
        value_schema: the schema of the values, likewise.
        fixed: the spans whose change makes existing rows unreadable; known for the program only,
            and neither stored nor compared.
        unrecorded: the value of a span that is missing in `spans`; known for the program only.
    """

    name: str
    sub: int
    op: str
    key: str
    value: str
    kind: str
    logged: bool
    reads: tuple[str, ...]
    source: bool = False
    layout: str = "plain"
    step: str = ""
    spans: Spans = ()
    key_schema: str = ""
    value_schema: str = ""
    fixed: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    unrecorded: Spans = field(default=(), compare=False, repr=False)

    @property
    def shape(self) -> tuple[str, str, str]:
        """The properties that a renamed store keeps."""
        return self.op, self.key, self.value


@dataclass(frozen=True, slots=True)
class DeployedTopic:
    """Repartition topic of a deployed topology, with the fields of `DeployedStore`.

    Args:
        reads: the topics that the sub-topology reads which writes it; empty if an older release
            described it.
    """

    name: str
    key: str
    value: str
    key_schema: str = ""
    value_schema: str = ""
    reads: tuple[str, ...] = field(default=(), repr=False)
    """Not part of the repr, from which the code of a change is computed."""

    @property
    def shape(self) -> tuple[str, str]:
        return self.key, self.value


@dataclass(frozen=True, slots=True)
class DeployedSink:
    """External sink that reads its topic directly, by the name of its operator.

    A sink with a repartition topic before it is described by that topic instead.
    """

    name: str
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeployedSub:
    """Sub-topology: its number, its subscribed topic, and the full names of its input topics."""

    id: int
    subscribed: str
    reads: tuple[str, ...]


_KNOWN_HERE = frozenset({"fixed", "unrecorded"})
"""Fields that are not stored, because they follow from the program."""

D = TypeVar("D", DeployedStore, DeployedTopic)


@dataclass(frozen=True, slots=True)
class Deployment:
    """Stores, repartition topics and direct external sinks of an application.

    Args:
        subs: the sub-topologies; empty if an older release described them, or if partition counts
            are unknown.
        settings: the settings that must be equal in all live workers, by name.
        alongside: the versions that may run at the same time as this version (see
            `headrace.streams.plan.ownership`); "" is the version of an older release.
        fresh: topics that the previous version did not read, until all of their partitions have
            committed offsets. A missing offset of such a topic does not mean that it was lost.
    """

    stores: tuple[DeployedStore, ...] = ()
    topics: tuple[DeployedTopic, ...] = ()
    sinks: tuple[DeployedSink, ...] = field(default=(), repr=False)
    subs: tuple[DeployedSub, ...] = field(default=(), repr=False)
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    alongside: tuple[str, ...] = field(default=(), repr=False)
    fresh: tuple[str, ...] = field(default=(), repr=False)

    @property
    def reads(self) -> frozenset[str]:
        """Full names; empty if an older release described it."""
        return frozenset(topic for sub in self.subs for topic in sub.reads)

    @classmethod
    def of(cls, plans: Sequence[SubPlan], config: StreamsConfig) -> Deployment:
        subs = [plan.program.sub_topology for plan in plans]
        return cls(
            tuple(store for sub in subs for store in _stores(sub, config)),
            tuple(topic for sub in subs for topic in _topics(sub, subs, config)),
            tuple(
                DeployedSink(sub.sink_node.name, _reads(sub))
                for sub in subs
                if sub.sink_node is not None and sub.sink_node.reads_directly
            ),
        )

    def with_subs(
        self, plans: Sequence[SubPlan], partitions: Mapping[str, int], config: StreamsConfig
    ) -> Deployment:
        return replace(
            self,
            subs=tuple(
                DeployedSub(plan.id, plan.subscribed_topic(partitions), plan.topics.all_sources)
                for plan in plans
            ),
            settings=(
                ("processing.guarantee", config.processing_guarantee),
                ("consumer.isolation.level", str(config.consumer_config("")["isolation.level"])),
            ),
        )

    def encode(self) -> str:
        """Raise ValueError if the text exceeds the broker's limit; `fitting` reduces it."""
        text = self._text()
        if len(text) > MAX_BYTES:
            raise ValueError(f"takes {len(text)} bytes of offset metadata, of {MAX_BYTES}")
        return text

    def _text(self) -> str:
        plain: dict[str, Any] = {
            "format": FORMAT,
            "stores": [_plain(store) for store in self.stores],
            "topics": [_plain(topic) for topic in self.topics],
        }
        if self.sinks:  # unknown to older versions
            plain["sinks"] = [asdict(sink) for sink in self.sinks]
        if self.subs:  # unknown to older versions
            plain["subs"] = [[sub.id, sub.subscribed, sub.reads] for sub in self.subs]
            plain["settings"] = self.settings
            plain["alongside"] = self.alongside
            plain["fresh"] = self.fresh
        data = json.dumps(plain, separators=(",", ":"), sort_keys=True).encode()
        return base64.b85encode(zlib.compress(data, 9)).decode() + _END

    def fitting(self) -> Deployment:
        """Return the description, reduced until its text fits into an offset's metadata.

        The largest schemas become digests first; then all schemas, kinds and spans are removed.
        Everything that decides partition ownership stays.
        """
        fitting = self
        described: list[DeployedStore | DeployedTopic] = [*self.stores, *self.topics]
        schemas = {schema for one in described for schema in (one.key_schema, one.value_schema)}
        for schema in sorted(schemas - {""}, key=lambda schema: (-len(schema), schema)):
            if len(fitting._text()) <= MAX_BYTES:
                return fitting
            fitting = fitting._changed({schema: digest(schema)})
        if len(fitting._text()) <= MAX_BYTES:
            return fitting
        bare = self._changed(dict.fromkeys(schemas, ""))
        return replace(
            bare,
            stores=tuple(replace(store, step="", spans=()) for store in bare.stores),
            topics=tuple(replace(topic, reads=()) for topic in bare.topics),
        )

    def _changed(self, instead: Mapping[str, str]) -> Deployment:
        def changed(one: D) -> D:
            key, value = one.key_schema, one.value_schema
            return replace(
                one, key_schema=instead.get(key, key), value_schema=instead.get(value, value)
            )

        stores, topics = tuple(map(changed, self.stores)), tuple(map(changed, self.topics))
        return replace(self, stores=stores, topics=topics)

    @classmethod
    def decode(cls, text: str) -> Deployment | None:
        """Decode a stored description; return None if the text has another format.

        >>> Deployment.decode(Deployment().encode())
        Deployment(stores=(), topics=())
        >>> Deployment.decode("something else") is None
        True
        """
        try:
            # Older versions write no terminator.
            packed = base64.b85decode(text.partition(_END)[0])
            plain = json.loads(zlib.decompress(packed))
            if plain["format"] != FORMAT:
                return None
            return cls(
                tuple(_read(DeployedStore, store) for store in plain["stores"]),
                tuple(_read(DeployedTopic, topic) for topic in plain["topics"]),
                tuple(
                    DeployedSink(sink["name"], tuple(sink["reads"]))
                    for sink in plain.get("sinks", ())
                ),
                tuple(
                    DeployedSub(int(number), str(topic), tuple(reads))
                    for number, topic, reads in plain.get("subs", ())
                ),
                tuple((str(name), str(value)) for name, value in plain.get("settings", ())),
                tuple(map(str, plain.get("alongside", ()))),
                tuple(map(str, plain.get("fresh", ()))),
            )
        except (binascii.Error, zlib.error, ValueError, KeyError, TypeError):
            return None


def change_code(before: Deployment, after: Deployment) -> str:
    """Return a short code of a change, for a setting that accepts exactly this change."""
    both = f"{before!r}\n{after!r}"
    if before.sinks or after.sinks:
        both += f"\n{before.sinks!r}\n{after.sinks!r}"
    return hashlib.sha256(both.encode()).hexdigest()[:8]


def is_accepted(setting: str | None, code: str) -> bool:
    """Return whether ``topology.change.accept``, a comma-separated list, contains a change.

    >>> is_accepted("0f3c, 11aa", "11aa"), is_accepted(None, "11aa")
    (True, False)
    """
    return code in {part.strip() for part in (setting or "").split(",")}


def digest(schema: str) -> str:
    return f"#{hashlib.sha256(schema.encode()).hexdigest()[:8]}"


def is_digest(schema: str) -> bool:
    return schema.startswith("#")


def _plain(one: DeployedStore | DeployedTopic) -> dict[str, Any]:
    kept = (f for f in fields(one) if f.name not in _KNOWN_HERE)
    return {f.name: value for f in kept if (value := getattr(one, f.name)) != f.default}


def _read(cls: type[D], plain: dict[str, Any]) -> D:
    """Create an instance from stored fields, ignoring unknown fields of later versions."""
    known = {f.name: plain[f.name] for f in fields(cls) if f.name in plain}
    if "reads" in known:
        known["reads"] = tuple(known["reads"])
    if "spans" in known:
        known["spans"] = tuple((str(name), int(ms)) for name, ms in known["spans"])
    return cls(**known)


def _reads(sub: SubTopology) -> tuple[str, ...]:
    return tuple(topic for source in sub.sources for topic in source.topics)


def _stores(sub: SubTopology, config: StreamsConfig) -> Iterator[DeployedStore]:
    reads = _reads(sub)
    for store in sub.stores:
        filler = filler_of(sub, store.name)
        rows = row_kind_of(filler, store)
        key = completed(store.key, config.default_key_serde)
        value = completed(store.value, config.default_value_serde)
        yield DeployedStore(
            name=store.name,
            sub=sub.id,
            op="" if filler is None else filler.word,
            key=key.name,
            value=value.name,
            kind=store.spec.kind,
            logged=store.spec.logged,
            reads=reads,
            source=store.source_topic is not None,
            layout=store.spec.layout,
            step=rows.kind,
            spans=tuple(sorted(rows.spans.items())),
            key_schema=schema_of(key),
            value_schema=schema_of(value),
            fixed=rows.fixed,
            unrecorded=tuple(rows.unrecorded.items()),
        )


def _topics(
    sub: SubTopology, subs: Sequence[SubTopology], config: StreamsConfig
) -> Iterator[DeployedTopic]:
    read_before = {s.topic: _reads(one) for one in subs for s in one.sinks if s.internal}
    for source in sub.sources:
        if source.internal:
            key = completed(source.key, config.default_key_serde)
            value = completed(source.value, config.default_value_serde)
            schemas = schema_of(key), schema_of(value)
            for topic in source.topics:
                reads = read_before.get(topic, ())
                yield DeployedTopic(topic, key.name, value.name, *schemas, reads=reads)
