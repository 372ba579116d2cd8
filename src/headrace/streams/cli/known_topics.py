"""Topics of a command: an application's topics with its serdes, or any topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

import click

from headrace.streams.app import KafkaStreams
from headrace.streams.cli.options import load
from headrace.streams.config.config import SERDES, StreamsConfig
from headrace.streams.config.secrets import over
from headrace.streams.errors import FatalClientError, MissingTopicError
from headrace.streams.kafka.connectivity import reach
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.testing.driver_names import DriverNames
from headrace.topology import serdes
from headrace.topology.serdes import Serde
from headrace.topology.serdes._serde import for_topic
from headrace.topology.serdes.partials import Take

_DEFAULTS = {"application.id": "headrace-topics", "bootstrap.servers": "localhost:9092"}
_ENDINGS = ("-changelog", "-repartition")
_NEAR_MAX = 3
_Command = TypeVar("_Command", bound=Callable[..., Any])

app_option = click.option(
    "--app", "target", metavar="MODULE:APP", help="The application of these topics."
)


def serde_options(command: _Command) -> _Command:
    names = click.Choice(list(SERDES))
    key = click.option("--key", "key", type=names, help="Serde of keys.  [default: string]")
    value = click.option("--value", type=names, help="Serde of values.  [default: string]")
    return key(value(command))


@dataclass(frozen=True, slots=True)
class TopicSerdes:
    """Serdes of a topic.

    Args:
        take: separates partial aggregates from single records, if a topic may contain both.
    """

    topic: str
    key: Serde[Any]
    value: Serde[Any]
    take: Take | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """Settings of a command, and the topics of the application if the command names it."""

    config: StreamsConfig
    names: DriverNames | None = None
    tables: frozenset[str] = frozenset()
    """Topics that are read only as tables."""

    @classmethod
    def of(cls, target: str | None, settings: Mapping[str, Any]) -> Known:
        if target is None:
            return cls(StreamsConfig.parse(over(_DEFAULTS, settings)))
        return cls.by(load(target, settings))

    @classmethod
    def by(cls, app: KafkaStreams) -> Known:
        names = DriverNames(app.plans, app.config, app.global_plans)
        return cls(app.config, names, _tables(app))

    def reach(self) -> dict[str, Any]:
        """Check that the cluster answers; return the settings of an admin client."""
        config = self.config.admin_config()
        try:
            reach(config)
        except FatalClientError as error:
            raise FatalClientError(
                f"{error}. Set --bootstrap-servers to another cluster, or start a local broker: "
                "headrace broker start"
            ) from error
        return config

    def admin(self) -> GroupAdmin:
        return GroupAdmin(self.reach(), timeout_s=self.config.task_timeout_ms / 1000)

    @property
    def own(self) -> dict[str, str]:
        """Full names of the application's topics, and how it uses each."""
        if self.names is None:
            return {}
        found = dict.fromkeys(self.names.internal, "keeps")
        found |= dict.fromkeys(self.names.outputs(()), "writes")
        dead_letters = self.config.errors_dead_letter_queue_topic_name
        if dead_letters is not None:
            found[dead_letters] = "writes"
        for name in self.names.inputs:
            found[name] = "reads, writes" if found.get(name) == "writes" else "reads"
        return found

    def full_name(self, name: str) -> str:
        """Return the full name of a topic; an internal topic may be named by store or operator."""
        if self.names is None or name in self.own:
            return name
        meant = [full for full in self.names.internal if name in self._short(full)]
        if len(meant) > 1:
            raise click.UsageError(f"{name} may be {' or '.join(meant)}. Use the full name.")
        if meant:
            return meant[0]
        short = [self._short(full)[-1] for full in self.names.internal]
        _refuse_unknown(name, self.config.application_id, [*self.own, *short])
        return name

    def _short(self, full: str) -> list[str]:
        rest = full.removeprefix(f"{self.config.application_id}-")
        return [rest, *(rest.removesuffix(end) for end in _ENDINGS if rest.endswith(end))]

    def is_internal(self, full: str) -> bool:
        """Return whether only the application may write the topic."""
        return self.own.get(full) == "keeps"

    def form(self, full: str, key: str | None, value: str | None) -> TopicSerdes:
        """Return the serdes of a topic: the application's, overridden by the options."""
        own: tuple[Serde[Any], Serde[Any]] = (serdes.string, serdes.string)
        take = None
        if self.names is not None:
            reads = full in self.names.inputs
            own = self.names.read(full) if reads else self.names.written(full, [full])
            take = self.names.partials(full) if value is None else None
        return TopicSerdes(
            full,
            for_topic(own[0] if key is None else SERDES[key], full, is_key=True),
            for_topic(own[1] if value is None else SERDES[value], full, is_key=False),
            take,
        )


def admin_of(config: StreamsConfig) -> GroupAdmin:
    """Check that the cluster answers, and return an admin client."""
    reach(config.admin_config())
    return GroupAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)


def _tables(app: KafkaStreams) -> frozenset[str]:
    nodes = [node for plan in app.plans for node in plan.program.sub_topology.nodes]
    readers: dict[str, list[bool]] = {}
    for node in nodes:
        for source in nodes:
            is_input = source.as_source is not None and not source.internal
            if is_input and source.name in node.parents:
                for topic in source.reads_topics:
                    readers.setdefault(topic, []).append(node.reads_as_table)
    found = {topic for topic, are_tables in readers.items() if all(are_tables)}
    return frozenset(found | {plan.topic for plan in app.global_plans})


def _refuse_unknown(name: str, application: str, known: Iterable[str]) -> None:
    candidates = list(dict.fromkeys(known))
    near = nearest(name, candidates)
    meant = f"Did you mean {near}?" if near else f"Its topics are {', '.join(candidates)}."
    # Some commands require an application.
    context = click.get_current_context(silent=True)
    parameters = context.command.params if context is not None else []
    is_free = any(p.name == "target" and not p.required for p in parameters)
    more = " Without --app, any topic is allowed." if is_free else ""
    raise click.UsageError(f"{name} is not a topic of {application}. {meant}{more}")


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return the names that start with a name, or else the most similar name, joined for a message.

    >>> nearest("ordes", ["orders", "sums"]), nearest("pairs", ["sums", "pairs-this-join-store"])
    ('orders', 'pairs-this-join-store')
    """
    known = list(candidates)
    begun = [one for one in known if one.startswith(f"{name}-")]
    near = begun if 0 < len(begun) <= _NEAR_MAX else get_close_matches(name, known, n=1)
    return " or ".join(near)


def _creation_advice(name: str) -> str:
    """Return advice on creating a missing topic; internal topics are created by their application.

    >>> _creation_advice("orders")
    'create it: headrace topics create orders'
    >>> _creation_advice("shop-by-region-repartition")
    'it is an internal topic, which its application creates at the next start'
    """
    if name.endswith(("-repartition", "-changelog")):
        return "it is an internal topic, which its application creates at the next start"
    return f"create it: headrace topics create {name}"


def counts_of(admin: GroupAdmin, names: Iterable[str]) -> dict[str, int]:
    wanted = list(names)
    counts = admin.partition_counts(wanted)
    for name in wanted:
        if name not in counts:
            near = nearest(name, admin.names())
            meant = f" (did you mean {near}?)" if near else ""
            raise MissingTopicError(
                f"topic {name} does not exist{meant}; {_creation_advice(name)}", topics=[name]
            )
    return counts
