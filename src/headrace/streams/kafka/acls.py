"""The rights that an application needs on a secured cluster, in one table.

The page docs/operations.md shows it, made by `python -m headrace.streams.kafka.acls`; the dev
broker grants it; and what is denied is said in its words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Resource = Literal["topic", "group", "transactional id", "cluster"]
Subject = Literal["source", "output", "internal topics", "groups", "transactional ids", "cluster"]


@dataclass(frozen=True, slots=True)
class Right:
    """One right on one resource, or on all whose names begin alike.

    Args:
        operation: in Kafka's words.
        name: the resource's, or what the names begin with.
        is_prefix: which of the two.

    Example:
        >>> str(Right("Read", "topic", "orders"))
        'Read on the topic orders'
    """

    operation: str
    resource: Resource
    name: str = ""
    is_prefix: bool = False

    def __str__(self) -> str:
        if self.resource == "cluster":
            return f"{self.operation} on the cluster"
        if self.is_prefix:
            return f"{self.operation} on {self.resource}s whose names begin with {self.name}"
        return f"{self.operation} on the {self.resource} {self.name}"


@dataclass(frozen=True, slots=True)
class Needed:
    """One row of the table.

    Args:
        operations: in Kafka's words; Read, Write and Delete imply Describe, and AlterConfigs
            implies DescribeConfigs.
        without: what happens where it is not given.
    """

    subject: Subject
    operations: tuple[str, ...]
    why: str
    without: str = "refused"


TABLE: tuple[Needed, ...] = (
    Needed("source", ("Read",), "find it, read it, commit its offsets"),
    Needed("source", ("DescribeConfigs",),
           "check a table's source that is its changelog too (`reuse.ktable.source.topics`)",
           "starts, and logs `topic_configs_unknown`"),
    Needed("output", ("Write",), "find it, write to it"),
    Needed("output", ("DescribeConfigs",), "know how large a record it takes",
           "starts, and logs `topic_configs_unknown`"),
    Needed("internal topics", ("Create",), "make them"),
    Needed("internal topics", ("Read", "Write"), "write and restore state, repartition"),
    Needed("internal topics", ("DescribeConfigs",),
           "check that they keep what they must keep", "starts, and logs `topic_configs_unknown`"),
    Needed("internal topics", ("AlterConfigs",),
           "keep windows in their changelogs while old input is processed",
           "goes on, and logs `retention_not_suspended`"),
    Needed("internal topics", ("Delete",),
           "delete what was processed of repartition topics; `headrace reset` deletes them",
           "goes on, and logs `purge_failed`"),
    Needed("groups", ("Read",),
           "join the group, commit; find out which host has a key; keep the topology "
           "(`.topology`), backfills (`.backfill`) and the word to shut down (`.shutdown`)"),
    Needed("transactional ids", ("Write",), "write in transactions, under exactly-once"),
    Needed("cluster", ("DescribeConfigs",),
           "know how long brokers keep offsets (`offsets.retention.minutes`)",
           "starts, and logs `offsets_retention_unknown`"),
)  # fmt: skip

RESET: tuple[Needed, ...] = (
    Needed("groups", ("Delete",), "`headrace backfill --drop` forgets a plan"),
    Needed(
        "cluster", ("DescribeConfigs",), "`headrace backfill` knows how long transactions may take"
    ),
)
"""What tools need besides."""

_ON: Mapping[Subject, str] = {
    "source": "each source",
    "output": "each output, and the dead-letter topic",
    "internal topics": "topics that begin with the `application.id`",
    "groups": "groups that begin with the `application.id`",
    "transactional ids": "transactional ids that begin with the `application.id`",
    "cluster": "the cluster",
}


def of_application(
    application_id: str, *, sources: Iterable[str] = (), outputs: Iterable[str] = ()
) -> list[Right]:
    """The rights of the table for one application.

    Args:
        application_id: what its topics, groups and transactional ids begin with.

    Example:
        >>> str(of_application("shop", sources=["orders"])[0])
        'Read on the topic orders'
    """
    named = {"source": tuple(sources), "output": tuple(outputs)}
    found: list[Right] = []
    for needed in TABLE:
        for operation in needed.operations:
            if needed.subject in named:
                found += [Right(operation, "topic", name) for name in named[needed.subject]]
            elif needed.subject == "cluster":
                found.append(Right(operation, "cluster"))
            else:
                resource = _RESOURCE[needed.subject]
                found.append(Right(operation, resource, application_id, is_prefix=True))
    return found


_RESOURCE: Mapping[str, Resource] = {
    "internal topics": "topic",
    "groups": "group",
    "transactional ids": "transactional id",
}


def principal_of(config: Mapping[str, object]) -> str:
    """Who a client is to the brokers, as far as its settings say.

    Example:
        >>> principal_of({"sasl.username": "app"}), principal_of({})
        ('User:app', 'this client')
    """
    user = config.get("sasl.username")
    return f"User:{user}" if user else "this client"


def rows(table: Iterable[Needed] = (*TABLE, *RESET)) -> Iterator[str]:
    """The table as Markdown."""
    yield "| on | right | for | without it |"
    yield "|---|---|---|---|"
    for needed in table:
        operations = ", ".join(needed.operations)
        yield f"| {_ON[needed.subject]} | {operations} | {needed.why} | {needed.without} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(rows()) + "\n")
