"""Makes Kafka's clients: all of them here, so that each is heard.

A client says through a callback what it cannot do, and through its log why. Both go to a `Hearing`;
what is no news of brokers becomes an event of ours. Callbacks run while a client is polled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.errors import ConfigError
from headrace.streams.kafka.bounded_producer import BoundedProducer
from headrace.streams.secrets import revealed

# The package offers this class without declaring it, which a strict type check refuses.
_AdminClient: Any = confluent_kafka.admin.AdminClient

T = TypeVar("T")


class Hearing(Protocol):
    """Whom a client tells what is wrong."""

    def heard(self, error: KafkaError) -> None:
        """An error that belongs to no call."""

    def logged(self, level: int, facility: str, text: str) -> None:
        """A line of its log, with the level of Python's logging."""

    def met(self) -> Sequence[str]:
        """Brokers of the cluster that others have met, each as host:port."""


def new_consumer(config: Mapping[str, Any], hearing: Hearing) -> confluent_kafka.Consumer:
    """Make a consumer.

    Raises:
        ConfigError: librdkafka does not take the settings.
    """
    with _settings_of("consumer."):
        return confluent_kafka.Consumer(_listening(config, hearing))


def new_producer(config: Mapping[str, Any], hearing: Hearing) -> confluent_kafka.Producer:
    """Make a producer without transactions (see `new_consumer`)."""
    with _settings_of("producer."):
        return confluent_kafka.Producer(_listening(config, hearing))


def new_transactional_producer(config: Mapping[str, Any], hearing: Hearing) -> BoundedProducer:
    """Make a producer with transactions (see `new_consumer`)."""
    with _settings_of("producer."):
        return BoundedProducer(_listening(config, hearing))


def new_admin(config: Mapping[str, Any], hearing: Hearing) -> Any:
    """Make an admin client (see `new_consumer`)."""
    with _settings_of("admin."):
        return _AdminClient(_listening(config, hearing))


def answered(future: Future[T], within_s: float) -> T:
    """What an admin client answers; an answer that never comes is an error as its own ones are.

    Its requests have a time of their own, but behind the loss of a connection it may keep silent
    beyond that.
    """
    try:
        return future.result(within_s)
    except FutureTimeoutError as error:
        text = "no answer within the time of the request"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text)) from error


@contextmanager
def _settings_of(prefix: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise ConfigError(f"{prefix}: {error.args[0].str()}") from error


def _listening(config: Mapping[str, Any], hearing: Hearing) -> dict[str, Any]:
    """The settings with callbacks and with their secrets; a user's own hear everything too."""
    found = revealed(config)
    theirs = found.get("error_cb")

    def heard(error: KafkaError) -> None:
        hearing.heard(error)
        if theirs is not None:
            theirs(error)

    found["error_cb"] = heard
    if "bootstrap.servers" in found:
        found["bootstrap.servers"] = ",".join(servers_of(found, hearing.met()))
    if "logger" not in found:
        found["logger"] = _Lines(hearing)
    return found


def servers_of(config: Mapping[str, Any], met: Sequence[str]) -> list[str]:
    """By which brokers a client finds the cluster: those of its settings, and those that were met.

    One that is new knows no others, and its settings may name the one that is down.
    """
    named = [server.strip() for server in str(config.get("bootstrap.servers", "")).split(",")]
    return list(dict.fromkeys([*filter(None, named), *met]))


class _Lines:
    """What the client takes for a logger."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing

    def log(self, level: int, _: str, facility: str, client: str, text: str) -> None:  # noqa: ARG002
        self._hearing.logged(level, facility, text)
