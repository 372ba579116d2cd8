"""What an application has deployed, as far as it matters to state: small enough for one offset.

Stores and repartition topics by name, with what must stay the same for their bytes to be of use.
The text form is kept beside an offset (see `streams.deployed`), so it is compressed and bounded.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from streams.config import StreamsConfig
from streams.plan import SubPlan
from streams.progress import MAX_BYTES
from topology.graph import Node, SubTopology, stores_of

FORMAT = 1
_END = "."
"""Ends the text, and is no digit of base 85 (see `streams.offset_texts`)."""


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

    @property
    def shape(self) -> tuple[str, str, str]:
        """What is the same in a store that only has another name."""
        return self.op, self.key, self.value


@dataclass(frozen=True, slots=True)
class DeployedTopic:
    """A repartition topic: its name without the application's id, and its serdes' names."""

    name: str
    key: str
    value: str

    @property
    def shape(self) -> tuple[str, str]:
        """What is the same in a topic that only has another name."""
        return self.key, self.value


@dataclass(frozen=True, slots=True)
class Deployment:
    """The stores and repartition topics of an application."""

    stores: tuple[DeployedStore, ...] = ()
    topics: tuple[DeployedTopic, ...] = ()

    @classmethod
    def of(cls, plans: Sequence[SubPlan], config: StreamsConfig) -> Deployment:
        """Describe the application that a program makes."""
        subs = [plan.program.sub_topology for plan in plans]
        return cls(
            tuple(store for sub in subs for store in _stores(sub, config)),
            tuple(topic for sub in subs for topic in _topics(sub, config)),
        )

    def encode(self) -> str:
        """Return the text to keep.

        Raises:
            ValueError: it would be larger than the broker takes beside an offset.
        """
        plain = {"format": FORMAT, **asdict(self)}
        data = json.dumps(plain, separators=(",", ":"), sort_keys=True).encode()
        text = base64.b85encode(zlib.compress(data, 9)).decode() + _END
        if len(text) > MAX_BYTES:
            raise ValueError(f"takes {len(text)} bytes of offset metadata, of {MAX_BYTES}")
        return text

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
                tuple(DeployedStore(**_frozen(store)) for store in plain["stores"]),
                tuple(DeployedTopic(**topic) for topic in plain["topics"]),
            )
        except (binascii.Error, zlib.error, ValueError, KeyError, TypeError):
            return None


def change_code(before: Deployment, after: Deployment) -> str:
    """A short name of one change, for a setting that accepts this one and no other."""
    both = f"{before!r}\n{after!r}".encode()
    return hashlib.sha256(both).hexdigest()[:8]


def _frozen(store: dict[str, Any]) -> dict[str, Any]:
    return {**store, "reads": tuple(store["reads"])}


def _stores(sub: SubTopology, config: StreamsConfig) -> Iterator[DeployedStore]:
    reads = tuple(topic for source in sub.sources for topic in source.topics)
    for store in sub.stores:
        fillers = [node for node in sub.nodes if store.name in stores_of(node)]
        yield DeployedStore(
            name=store.name,
            sub=sub.id,
            op=_op(fillers[0]) if fillers else "",
            key=(store.key or config.default_key_serde).name,
            value=(store.value or config.default_value_serde).name,
            kind=store.spec.kind,
            logged=store.spec.logged,
            reads=reads,
            source=store.source_topic is not None,
            layout=store.spec.layout,
        )


def _op(node: Node) -> str:
    return str(getattr(node, "op", type(node).__name__))


def _topics(sub: SubTopology, config: StreamsConfig) -> Iterator[DeployedTopic]:
    for source in sub.sources:
        if source.internal:
            key = (source.key or config.default_key_serde).name
            value = (source.value or config.default_value_serde).name
            yield from (DeployedTopic(topic, key, value) for topic in source.topics)
