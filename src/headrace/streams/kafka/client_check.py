"""Check that Kafka's clients accept their settings: creates and closes a client of each kind.

The names of settings are checked before, but only librdkafka can check their values: an unknown
mechanism, a missing file, a malformed number. The clients get no servers, so they do not connect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.secrets import bare_name
from headrace.streams.config.settings import placed
from headrace.streams.errors import ConfigError
from headrace.streams.kafka.clients import (
    BrokerState,
    new_admin,
    new_consumer,
    new_producer,
    new_transactional_producer,
)

NO_ORIGINS: Mapping[str, str] = MappingProxyType({})
_SERVERS = ("bootstrap.servers", "metadata.broker.list")
_NOWHERE = {"log_level": 0}
_PREAMBLE = re.compile(r"^Failed to create [a-z ]+: ")
_FILE = re.compile(r"([a-z.]+\.location) failed")
_OWN_NAMES = {
    "acks": "request.required.acks",
    "compression.type": "compression.codec",
    "delivery.timeout.ms": "message.timeout.ms",
    "linger.ms": "queue.buffering.max.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "retries": "message.send.max.retries",
    "sasl.mechanism": "sasl.mechanisms",
}
"""Names that librdkafka uses in its errors for settings with two names."""
_IDENTITY = "headrace-settings"


def check_clients(config: StreamsConfig, origins: Mapping[str, str] = NO_ORIGINS) -> None:
    """Raise ConfigError with all rejected settings; `origins` are their sources."""
    problems: dict[str, str] = {}
    brokers = BrokerState()
    for settings, make in _clients(config):
        nowhere = {name: value for name, value in settings.items() if name not in _SERVERS}
        try:
            client = make({**nowhere, **_NOWHERE}, brokers)
        except ConfigError as error:
            # Settings for all clients are wrong in each of them alike.
            problems.update(_sentence(problem, settings) for problem in error.problems)
        else:
            _close(client)
    if problems:
        named = {bare_name(name): origin for name, origin in origins.items()}
        raise ConfigError(*(placed(problem, named) for problem in problems.values()))


def _clients(
    config: StreamsConfig,
) -> Iterator[tuple[Mapping[str, Any], Callable[[Mapping[str, Any], BrokerState], Any]]]:
    identity = _IDENTITY if config.exactly_once else None
    yield config.admin_config(), new_admin
    yield config.consumer_config(_IDENTITY), new_consumer
    yield config.restore_config(), new_consumer
    produce = new_transactional_producer if config.exactly_once else new_producer
    yield config.producer_config(identity), produce


def _close(client: Any) -> None:
    close = getattr(client, "close", None)
    if close is not None:
        with suppress(Exception):  # only the creation is checked
            close()


def _sentence(problem: str, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Return the error of the client, and a message that names the client and the fix."""
    prefix, _, text = problem.partition(": ")
    what = _PREAMBLE.sub("", text)
    for given, own_name in _OWN_NAMES.items():
        if given in settings and own_name not in settings:
            what = what.replace(f'"{own_name}"', f'"{given}"')
    advice = ""
    file = _FILE.match(what)
    if "GSSAPI" in what:
        advice = "; set sasl.mechanism, such as SCRAM-SHA-512: the default is Kerberos"
    elif file is not None and not Path(str(settings.get(file[1]))).is_file():
        advice = f"; the file {settings.get(file[1])} does not exist"
    return what, f"Kafka's client rejects its settings ({prefix}): {what}{advice}"
