"""Settings of the Kafka clients: the permitted settings, and the resulting dictionaries.

A client's settings have four layers, each overriding the previous layer: defaults of the runtime,
the user's settings for all clients, the user's settings with the client's prefix, and settings
owned by the runtime. A user's value for an owned setting is rejected unless it is the runtime's
value.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from headrace.streams.config.client_names import CONSUMER, PRODUCER, SHARED, TUNING

ClientConfig = dict[str, object]

PREFIXES = ("consumer.", "restore.", "producer.", "admin.", "topic.")
TRANSACTION_TIMEOUT_MS = 10_000
MAX_POLL_INTERVAL_MS = 300_000
SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 200

_NAMES = {
    "consumer.": SHARED | TUNING | CONSUMER,
    "restore.": SHARED | TUNING | CONSUMER,
    "producer.": SHARED | TUNING | PRODUCER,
    "admin.": SHARED | TUNING,
}
_JAVA_PREFIXES = {
    "main.consumer.": "consumer.",
    "restore.consumer.": "restore.",
    "global.consumer.": "restore.",
}


@dataclass(frozen=True, slots=True)
class Owned:
    """Setting that the runtime owns: its only legal value, if any, and the reason."""

    name: str
    reason: str
    value: str | None = None
    clients: tuple[str, ...] = ("consumer.", "restore.")
    exactly_once_only: bool = False

    def refusal(self, name: str) -> str:
        only = "" if self.value is None else f" to anything but {self.value}"
        return f"{name} cannot be set{only}: {self.reason}"


_EVERY = ("consumer.", "restore.", "producer.", "admin.")
_OFFSETS = "offsets are committed together with the state and the output that belong to them"
_PROTOCOL = "tasks keep their state only with static members of the classic protocol"
_ORDER = "the last record of a key in a changelog is its row, so records must not be reordered"
_REPLICAS = "a commit continues from records on every replica; a lost leader would lose the rest"
_ROUTING = "joined topics and repartition topics need equal keys in equal partitions"

OWNED = (
    Owned("enable.auto.commit", _OFFSETS, "false"),
    Owned("auto.commit.enable", _OFFSETS, "false"),
    Owned("enable.auto.offset.store", _OFFSETS, "false"),
    Owned("group.id", "it is the application.id"),
    Owned("group.instance.id", "it is the worker's identity; set worker.id"),
    Owned("group.protocol", _PROTOCOL, "classic"),
    Owned("group.remote.assignor", _PROTOCOL),
    Owned("partition.assignment.strategy", _PROTOCOL, "cooperative-sticky"),
    Owned("enable.partition.eof", "the end of a topic is found by position", "false"),
    Owned("allow.auto.create.topics", "a misspelt source must not become an empty topic", "false"),
    Owned(
        "isolation.level",
        "exactly-once must not read aborted records",
        "read_committed",
        ("consumer.",),
        exactly_once_only=True,
    ),
    Owned(
        "isolation.level",
        "state is never restored from aborted records",
        "read_committed",
        ("restore.",),
    ),
    Owned(
        "auto.offset.reset",
        "a restore that cannot continue at its position must not continue at another",
        "error",
        ("restore.",),
    ),
    Owned("transactional.id", "it is the worker's identity; set worker.id", None, ("producer.",)),
    Owned("partitioner", _ROUTING, "murmur2_random", ("producer.",)),
    Owned(
        "delivery.report.only.error",
        "the commit depends on the reports",
        None,
        ("producer.",),
    ),
    Owned("enable.idempotence", _ORDER, "true", ("producer.",)),
    Owned("acks", _REPLICAS, "all", ("producer.",)),
    Owned("request.required.acks", _REPLICAS, "all", ("producer.",)),
    Owned("queuing.strategy", _ORDER, "fifo", ("producer.",)),
    Owned("topic.blacklist", "records that are not read are lost silently", None, _EVERY),
    Owned("bootstrap.servers", "all clients use one cluster; set bootstrap.servers", None, _EVERY),
    Owned(
        "metadata.broker.list", "all clients use one cluster; set bootstrap.servers", None, _EVERY
    ),
)

OWNED_TOPIC_CONFIGS = {
    "cleanup.policy": "it follows from the purpose of the topic",
    "retention.ms": "unread records would be deleted",
    "retention.bytes": "unread records would be deleted",
    "message.timestamp.type": "the timestamp is part of the state",
    "unclean.leader.election.enable": "committed records could be lost with a leader",
}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Validated client settings of the user; `layered` merges them with the runtime's settings."""

    shared: Mapping[str, object]
    by_prefix: Mapping[str, Mapping[str, object]]

    def number(self, prefix: str, name: str, default: int) -> int:
        """Raise ValueError if the given value is not a whole number."""
        return int(str(self.by_prefix[prefix].get(name, default)))

    def layered(
        self, prefixes: Iterable[str], chosen: ClientConfig, owned: ClientConfig, *, role: str
    ) -> ClientConfig:
        """Merge `chosen`, which users may override, their settings by prefix, and `owned`.

        Later prefixes take precedence. `role` is a suffix of the client.id, unless a client.id with
        a prefix is given.
        """
        config = {**chosen, **self.shared}
        config["client.id"] = f"{config['client.id']}-{role}"
        for prefix in prefixes:
            config.update(self.by_prefix[prefix])
        config.update(owned)
        return config


def read_client_settings(
    given: Mapping[str, object], *, exactly_once: bool, known: Iterable[str]
) -> tuple[ClientSettings, list[str]]:
    """Group the clients' settings by client, and return a sentence for each problem."""
    shared: dict[str, object] = {}
    by_prefix: dict[str, dict[str, object]] = {prefix: {} for prefix in PREFIXES}
    problems: list[str] = []
    suggestions = (*known, *SHARED)
    for name, value in given.items():
        value = _milliseconds(value)
        prefix = next((p for p in PREFIXES if name.startswith(p)), None)
        if name in SHARED:
            shared[name] = value
        elif prefix is None:
            problems.append(unknown_setting(name, suggestions, value, exactly_once=exactly_once))
        else:
            bare = name.removeprefix(prefix)
            problem = _refusal(prefix, bare, value, exactly_once=exactly_once)
            if problem is None:
                by_prefix[prefix][bare] = str(value) if prefix == "topic." else value
            else:
                problems.append(problem)
    return ClientSettings(shared, by_prefix), problems


def _refusal(prefix: str, bare: str, value: object, *, exactly_once: bool) -> str | None:
    if prefix == "topic.":
        reason = OWNED_TOPIC_CONFIGS.get(bare)
        return None if reason is None else f"topic.{bare} cannot be set: {reason}"
    for java, ours in _JAVA_PREFIXES.items():
        if (prefix + bare).startswith(java):
            return f"{prefix}{bare} is unknown; write {ours}{bare.removeprefix('consumer.')}"
    if bare not in _NAMES[prefix]:
        return unknown_setting(prefix + bare, (prefix + name for name in _NAMES[prefix]))
    for owned in _owned(bare, prefix, exactly_once=exactly_once):
        if owned.value is None or _named(value) != owned.value:
            return owned.refusal(f"{prefix}{bare}")
    return None


def _named(value: object) -> str:
    text = str(value).lower()
    return "all" if text == "-1" else text


def _owned(name: str, prefix: str, *, exactly_once: bool) -> Iterator[Owned]:
    for owned in OWNED:
        applies = exactly_once or not owned.exactly_once_only
        if applies and owned.name == name and prefix in owned.clients:
            yield owned


def unknown_setting(
    name: str, candidates: Iterable[str], value: object = None, *, exactly_once: bool = True
) -> str:
    for java, ours in _JAVA_PREFIXES.items():
        if name.startswith(java):
            return f"{name} is unknown; write {ours}{name.removeprefix(java)}"
    for prefix, names in (("consumer.", CONSUMER), ("producer.", PRODUCER)):
        if name in names:
            return _bare(name, prefix, value, exactly_once=exactly_once)
    for owned in OWNED:
        if owned.name == name:
            return f"{name} cannot be set: {owned.reason}"
    if name in TUNING:
        return f"{name} differs from client to client; write consumer.{name} or producer.{name}"
    nearest = difflib.get_close_matches(name, candidates, n=1, cutoff=0.75)
    hint = f"did you mean {nearest[0]}?" if nearest else "headrace settings lists all"
    return f"{name} is unknown; {hint}"


def _bare(name: str, prefix: str, value: object, *, exactly_once: bool) -> str:
    """Return a sentence about a client setting that was given without its prefix."""
    for owned in _owned(name, prefix, exactly_once=exactly_once):
        if owned.value is not None and _named(value) == owned.value:
            return f"{name} is always {owned.value}: {owned.reason}; remove it"
        return owned.refusal(name)
    return f"{name} belongs to one client; write {prefix}{name}"


def _milliseconds(value: object) -> object:
    return value // timedelta(milliseconds=1) if isinstance(value, timedelta) else value
