"""Names of nodes, stores and internal topics, numbered as in Kafka Streams.

A Java application's topics are found only if the same calls generate the same names here. A single
counter numbers everything. A call with a given name uses up a number, too, except for stores: if a
store is named, all later numbers are one lower.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.topology.errors import TopologyError, type_of

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
# Kafka's limit of a topic name; topics are named after nodes and stores.
_LENGTH_MAX = 249
_GENERATED = re.compile(r"KSTREAM.*-[0-9]{10}")
_REPARTITION = "-repartition"


@dataclass(frozen=True, slots=True)
class RepartitionNames:
    """Names of a repartition topic and of the nodes that write and read it."""

    topic: str
    sink: str
    filter: str
    source: str


class Names:
    """Counter of a builder."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def node(self, prefix: str, given_name: str | None = None) -> str:
        """Return the given name, or `prefix` with the next number; both use up a number."""
        generated = self._numbered(prefix)
        return generated if given_name is None else require_legal_name(given_name)

    def store(self, prefix: str) -> str:
        return self._numbered(f"{prefix}STATE-STORE-")

    def repartition(self, prefix: str) -> RepartitionNames:
        topic = repartition_topic(prefix)
        # The numbers are used up in this order even if the names do not contain them.
        numbered = [self._numbered(f"KSTREAM-{kind}-") for kind in ("SINK", "FILTER", "SOURCE")]
        if _GENERATED.fullmatch(prefix):
            return RepartitionNames(topic, *numbered)
        return RepartitionNames(topic, f"{topic}-sink", f"{topic}-filter", f"{topic}-source")

    def _numbered(self, prefix: str) -> str:
        number, self._next = self._next, self._next + 1
        return f"{prefix}{number:010d}"


def repartition_topic(prefix: str) -> str:
    return prefix if prefix.endswith(_REPARTITION) else prefix + _REPARTITION


def is_legal_topic(name: str) -> bool:
    """Return whether brokers accept a topic name.

    >>> is_legal_topic("orders.v1"), is_legal_topic("orders v1"), is_legal_topic("..")
    (True, False, False)
    """
    return _is_legal(name) and len(name) <= _LENGTH_MAX


def _is_legal(name: str) -> bool:
    return _LEGAL.fullmatch(name) is not None and name not in (".", "..")


def require_legal_name(name: str, what: str = "name") -> str:
    """Return `name` if it is a legal topic name, or raise."""
    if not isinstance(name, str):
        raise TopologyError(f"{what} must be a str, not {type_of(name)}")
    if not _is_legal(name):
        raise TopologyError(
            f"{what} {name!r} is not legal: use letters, digits, '.', '_' and '-' (and not '.' or "
            "'..' alone), because topics are named after it"
        )
    if len(name) > _LENGTH_MAX:
        raise TopologyError(
            f"{what} {name[:32]!r}... has {len(name)} characters; Kafka's limit is {_LENGTH_MAX}"
        )
    return name


def legal_topics(topics: str | Iterable[str], step: str) -> tuple[str, ...]:
    """Return the topics that `step` reads; raise if there is none, a duplicate or a wrong name."""
    if isinstance(topics, bytes) or not isinstance(topics, (str, Iterable)):
        raise TopologyError(
            f"{step} requires the name of a topic or several names, not {type_of(topics)}"
        )
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise TopologyError(f"{step} requires the name of a topic")
    for name in names:
        require_legal_name(name, "topic")
        if names.count(name) > 1:
            raise TopologyError(f"topic {name!r} is given twice to the same {step}; name it once")
    return names


def legal_topic(topic: str, step: str) -> str:
    names = legal_topics(topic, step)
    if len(names) > 1:
        raise TopologyError(
            f"{step} reads a single topic, not {len(names)}; merge their streams, and call "
            "to_table()"
        )
    return names[0]
