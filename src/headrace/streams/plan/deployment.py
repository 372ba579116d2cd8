"""What an application has deployed, as far as it matters to state: small enough for one offset.

Stores and repartition topics by name, with what must stay the same for their bytes to be of use.
The text form is kept beside an offset (see `headrace.streams.plan.deployed`), so it is
compressed and bounded.
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
from headrace.topology.processors.versioned_store import VersionedFace
from headrace.topology.serdes._serde import completed
from headrace.topology.serdes.serde_schemas import schema_of
from headrace.topology.serdes.windows_serde import WindowStoreSerde

# What of a step its store's rows depend on: its kind, its fold, and the spans of its windows.


Spans = tuple[tuple[str, int], ...]
"""Names and milliseconds, by name."""


def filler_of(sub: SubTopology, store: str) -> Node | None:
    """The node that writes a store; processors only where there is no other."""
    users = [node for node in sub.nodes if store in node.stores]
    others = [node for node in users if not node.is_processor]
    fillers = [node for node in others if node.fills(store)]
    return next(iter(fillers or others or users), None)


def row_kind_of(node: Node | None, store: Store) -> RowKind:
    """What the rows of a store depend on, as the node that fills it says, and the store."""
    told = RowKind("") if node is None else node.row_kind
    spans, fixed = dict(told.spans), told.fixed
    if isinstance(store.face, VersionedFace):
        spans["history"] = store.face.history_ms
    if (node is None or not told.kind or node.is_processor) and isinstance(
        store.key, WindowStoreSerde
    ):
        spans["size"] = store.key.windowed.size_ms
        fixed |= {"size"}
    if store.spec.retention_ms is not None:
        spans["retention"] = store.spec.retention_ms
    return RowKind(told.kind, spans, fixed, told.unsaid)


FORMAT = 1
_END = "."
"""Ends the text, and is no digit of base 85 (see `headrace.streams.kafka.offset_texts`)."""


@dataclass(frozen=True, slots=True)
class DeployedStore:
    """A store.

    Args:
        name: without the application's id.
        sub: the number of its sub-topology, which is in its tasks' names.
        op: what fills it.
        key: the name of the keys' serde.
        value: the name of the values' serde.
        kind: where rows live.
        logged: whether it has a changelog.
        reads: the topics that its sub-topology reads.
        source: whether its changelog is the topic that it is read from.
        layout: how its rows lie on disk and in its changelog.
        step: the kind of the step that fills it, where `op` does not say it; "" is not known.
        spans: of its windows and their kin, in milliseconds, by name.
        key_schema: what the bytes of keys look like, see `headrace.topology.serdes.serde_schemas`;
            a digest of that where it was too large; "" is not known.
        value_schema: the same of values.
        fixed: the spans with which its rows are misread once they are others; known of the program
            alone, and no part of what is kept or compared.
        unsaid: what a span was where it is not among them; known of the program alone, likewise.
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
    unsaid: Spans = field(default=(), compare=False, repr=False)

    @property
    def shape(self) -> tuple[str, str, str]:
        """What is the same in a store that only has another name."""
        return self.op, self.key, self.value


@dataclass(frozen=True, slots=True)
class DeployedTopic:
    """A repartition topic: its name without the application's id, its serdes' names and schemas.

    And what the sub-topology reads that writes it; nothing where an older version described it.
    """

    name: str
    key: str
    value: str
    key_schema: str = ""
    value_schema: str = ""
    reads: tuple[str, ...] = field(default=(), repr=False)
    """No part of the text that the code of a change is made from."""

    @property
    def shape(self) -> tuple[str, str]:
        """What is the same in a topic that only has another name."""
        return self.key, self.value


@dataclass(frozen=True, slots=True)
class DeployedSink:
    """A table outside of Kafka that reads its topic itself, by the name of its step.

    One that has a topic in front is known by that.
    """

    name: str
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeployedSub:
    """A sub-topology: its number, its subscribed topic, and all topics that it reads, in full."""

    id: int
    subscribed: str
    reads: tuple[str, ...]


_KNOWN_HERE = frozenset({"fixed", "unsaid"})
"""What is not kept, as it follows from the program."""

D = TypeVar("D", DeployedStore, DeployedTopic)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The stores and repartition topics of an application, and sinks that have no such topic.

    Args:
        subs: the sub-topologies; none where an older release described it, or where partition
            counts are not known.
        settings: those that live workers must have in common, by name.
        alongside: the versions that this one may run beside (see
            `headrace.streams.plan.ownership`); "" is that of an older release.
        fresh: topics that the version before did not read, until all of their partitions have
            committed offsets: that they have none does not mean that they were lost.
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
        """All topics that it reads, in full; nothing where an older release described it."""
        return frozenset(topic for sub in self.subs for topic in sub.reads)

    @classmethod
    def of(cls, plans: Sequence[SubPlan], config: StreamsConfig) -> Deployment:
        """Describe the application that a program makes."""
        subs = [plan.program.sub_topology for plan in plans]
        return cls(
            tuple(store for sub in subs for store in _stores(sub, config)),
            tuple(topic for sub in subs for topic in _topics(sub, subs, config)),
            tuple(
                DeployedSink(sub.outside.name, _reads(sub))
                for sub in subs
                if sub.outside is not None and sub.outside.reads_directly
            ),
        )

    def with_subs(
        self, plans: Sequence[SubPlan], partitions: Mapping[str, int], config: StreamsConfig
    ) -> Deployment:
        """The same, with what decides which worker owns which topic partition."""
        return replace(
            self,
            subs=tuple(
                DeployedSub(plan.id, plan.lead(partitions), plan.topics.all_sources)
                for plan in plans
            ),
            settings=(
                ("processing.guarantee", config.processing_guarantee),
                ("consumer.isolation.level", str(config.consumer_config("")["isolation.level"])),
            ),
        )

    def encode(self) -> str:
        """Return the text to keep; see `fitting` for a large one.

        Raises:
            ValueError: it would be larger than the broker takes beside an offset.
        """
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
        if self.sinks:  # older versions know of none
            plain["sinks"] = [asdict(sink) for sink in self.sinks]
        if self.subs:  # nor of these
            plain["subs"] = [[sub.id, sub.subscribed, sub.reads] for sub in self.subs]
            plain["settings"] = self.settings
            plain["alongside"] = self.alongside
            plain["fresh"] = self.fresh
        data = json.dumps(plain, separators=(",", ":"), sort_keys=True).encode()
        return base64.b85encode(zlib.compress(data, 9)).decode() + _END

    def fitting(self) -> Deployment:
        """The same, or as much of it as the broker takes beside an offset.

        Of the largest schemas a digest is left, which tells a change but not whether it matters;
        then schemas, kinds of steps, spans and what is read in front of topics are left out. What
        decides who owns a partition stays.
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
        """The same with other schemas in the place of some."""

        def changed(one: D) -> D:
            key, value = one.key_schema, one.value_schema
            return replace(
                one, key_schema=instead.get(key, key), value_schema=instead.get(value, value)
            )

        stores, topics = tuple(map(changed, self.stores)), tuple(map(changed, self.topics))
        return replace(self, stores=stores, topics=topics)

    @classmethod
    def decode(cls, text: str) -> Deployment | None:
        """Read what was kept; None where it is of another format, or no such text.

        Example:
            >>> Deployment.decode(Deployment().encode())
            Deployment(stores=(), topics=())
            >>> Deployment.decode("something else") is None
            True
        """
        try:
            # Those of older versions end with the text.
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
    """A short name of one change, for a setting that accepts this one and no other."""
    both = f"{before!r}\n{after!r}"
    if before.sinks or after.sinks:
        both += f"\n{before.sinks!r}\n{after.sinks!r}"
    return hashlib.sha256(both.encode()).hexdigest()[:8]


def is_accepted(setting: str | None, code: str) -> bool:
    """Whether ``topology.change.accept`` names a change; several are divided by commas.

    >>> is_accepted("0f3c, 11aa", "11aa"), is_accepted(None, "11aa")
    (True, False)
    """
    return code in {part.strip() for part in (setting or "").split(",")}


def digest(schema: str) -> str:
    """What is kept of a schema that is too large."""
    return f"#{hashlib.sha256(schema.encode()).hexdigest()[:8]}"


def is_digest(schema: str) -> bool:
    """Whether that is all that was kept."""
    return schema.startswith("#")


def _plain(one: DeployedStore | DeployedTopic) -> dict[str, Any]:
    """What is not as the class has it by default."""
    kept = (f for f in fields(one) if f.name not in _KNOWN_HERE)
    return {f.name: value for f in kept if (value := getattr(one, f.name)) != f.default}


def _read(cls: type[D], plain: dict[str, Any]) -> D:
    """One of them; what a later version may have added is left out."""
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
            unsaid=tuple(rows.unsaid.items()),
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
