"""Creation of Kafka clients, with time limits that librdkafka lacks, and their broker failures."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException

from headrace.state.log import get_logger
from headrace.streams.config.secrets import revealed
from headrace.streams.errors import ConfigError, OutcomeUnknownError
from headrace.streams.kafka.port_check import DESCRIPTIONS, classify
from headrace.streams.kafka.protocols import Log

# Parser of librdkafka's errors about brokers.
#
# librdkafka reports them in two ways: errors with a code, and log lines, some of which have the
# reason that the error omits.


Kind = Literal[
    "refused",
    "unresolved",
    "tls",
    "certificate",
    "credentials",
    "no_login",
    "not_kafka",
    "closed",
    "unknown",
]

_LINE = re.compile(
    r"(?:\[thrd:[^\]]*\]: )?(?:\w+://)?(?P<address>[^\s/]+:\d+)/\S+: (?P<reason>.*?)"
    r"(?: \(after \d+ms in state (?P<state>\w+)(?:, [^)]*)?\))?(?: \(_\w+\))?$",
    re.DOTALL,
)
_TRIED = {
    "CONNECT": "to connect",
    "SSL_HANDSHAKE": "the TLS handshake",
    "APIVERSION_QUERY": "to request its versions",
    "AUTH_HANDSHAKE": "to log in",
    "AUTH_REQ": "to log in",
    "AUTH_LEGACY": "to log in",
}
ADVICE: dict[Kind, str] = {
    "refused": "nothing listens there: start the brokers, or correct bootstrap.servers",
    "unresolved": "the name has no address: correct bootstrap.servers, or the machine's DNS",
    "tls": "check that the port uses TLS, and check security.protocol and the settings ssl.*",
    "certificate": "set ssl.ca.location to the authority that signed the brokers' certificates, "
    "and bootstrap.servers to a name that is in them",
    "credentials": "correct sasl.mechanism, sasl.username and sasl.password",
    "no_login": "it requires no login: set security.protocol to PLAINTEXT or SSL",
    "not_kafka": "correct bootstrap.servers",
    "closed": "it may expect another security.protocol, with or without TLS",
    "unknown": "check that the brokers are up and that no firewall blocks the connection",
}
_RESPONSE = re.compile(r"Invalid response size (\d+) ")
"""A server that is not a Kafka broker sends other bytes at the position of the response size."""
_GUESS = re.compile(r":? (?:probably due to|might be caused by) .*broker version.*", re.DOTALL)
"""Guess of librdkafka about old brokers, which are not supported; a port check is more specific."""
_TEMPORARY_LOGIN = re.compile(r"oauthbearer.*token|token.*oauthbearer", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BrokerFailure:
    """Reason why a broker cannot be used, in the words of librdkafka."""

    address: str
    tried: str
    reason: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.address}, tried {self.tried}: {self.reason}"

    @property
    def is_final(self) -> bool:
        """Whether retries would fail until an operator has changed something."""
        return self.kind in ("certificate", "credentials", "no_login")

    @property
    def is_specific(self) -> bool:
        """Whether the failure is specific; otherwise a port check may find the reason."""
        return self.kind not in ("tls", "closed", "unknown")

    @property
    def advice(self) -> str:
        return ADVICE[self.kind]


def read_failure(text: str) -> BrokerFailure | None:
    """Parse an error text or a log line; return None if it is not about a broker.

    Examples:
        >>> failure = read_failure("kafka:9092/bootstrap: Connect to ipv4#10.0.0.7:9092 failed: "
        ...     "Connection refused (after 0ms in state CONNECT)")
        >>> print(failure, "-", failure.kind)
        kafka:9092, tried to connect: Connect to ipv4#10.0.0.7:9092 failed: Connection refused - \
refused
        >>> read_failure("1/1 brokers are down") is None
        True
    """
    match = _LINE.fullmatch(text.strip())
    if match is None:
        return None
    reason = match["reason"]
    connects = reason.startswith("Connect to ")  # the reported state varies
    tried = _TRIED.get("CONNECT" if connects else match["state"] or "", "to use it")
    kind = _kind(reason, match["state"] or "")
    size = _RESPONSE.search(reason)
    if size is not None:
        kind, reason = "not_kafka", DESCRIPTIONS[classify(int(size[1]).to_bytes(4))]
    return BrokerFailure(match["address"], tried, _GUESS.sub("", reason), kind)


def _kind(reason: str, state: str) -> Kind:
    low = reason.lower()
    if "verify failed" in low or "certificate unknown" in low:
        return "certificate"
    if state == "SSL_HANDSHAKE" or ("handshake failed" in low and "ssl" in low):
        return "tls"
    if low.rstrip().endswith("supported mechanisms:"):
        return "no_login"
    if state.startswith("AUTH") and not _TEMPORARY_LOGIN.search(low):
        return "credentials" if "sasl" in low else "closed"
    if "resolve" in low:
        return "unresolved"
    if "refused" in low:
        return "refused"
    if "disconnected" in low or "closed" in low:
        return "closed"
    return "unknown"


# Broker failures of all clients of an application.


_DENIED_TOPIC = re.compile(r'add partition "([^"]+)" \[\d+\] to transaction: .*authorization')
_TIMEOUTS = frozenset({"REQTMOUT", "SESSTMOUT"})
"""Facilities of log lines about brokers that accept requests and do not answer."""
_RAISED_BY_CALLS = frozenset({"ADDOFFSETS", "ADDPARTS", "FATAL", "GETPID", "TXNERR"})
"""Facilities of log lines about errors that calls also raise or retry."""


class BrokerState:
    """Failures of brokers, from the errors and log lines of Kafka clients.

    `known_brokers` has the brokers of the cluster, each as host:port.
    """

    def __init__(self, log: Log | None = None, known_brokers: Sequence[str] = ()) -> None:
        self._log: Any = get_logger() if log is None else log
        self._known_brokers = tuple(known_brokers)
        self._failures: dict[str, BrokerFailure] = {}
        self._last_failure_s: float | None = None
        self.denied_topic: str | None = None
        """The last topic that a transaction was not authorized to write; errors do not name it."""

    def on_error(self, error: KafkaError) -> None:
        """Handle an error that belongs to no call."""
        self._record_failure(error.str())

    def on_log(self, level: int, facility: str, text: str) -> None:
        """Handle a log line of a client, with the level of Python's logging."""
        denied = _DENIED_TOPIC.search(text)
        if denied is not None:
            self.denied_topic = denied[1]
        if facility in ("FAIL", "ERROR"):
            self._record_failure(text)
        elif facility in _TIMEOUTS:
            self._log.debug("client_logged", facility=facility, text=text)
            self._on_possible_outage()
            failure = read_failure(text)
            if failure is not None:
                self._on_broker_failure(failure)
        elif level >= logging.WARNING and facility not in _RAISED_BY_CALLS:
            self._log.warning("client_warned", facility=facility, text=text)
        else:
            self._log.debug("client_logged", facility=facility, text=text)

    def known_brokers(self) -> Sequence[str]:
        return self._known_brokers

    def last_failure_s(self) -> float | None:
        """Return when a connection was last lost, by the monotonic clock; None if never."""
        return self._last_failure_s

    def is_stop_overdue(self) -> bool:
        return False

    def _on_possible_outage(self) -> None:
        """Handle a sign that all brokers may be unreachable."""

    def on_timeout(self) -> None:
        """Handle a call without an answer in time: a broker may be unresponsive."""

    def _on_broker_failure(self, failure: BrokerFailure) -> None:
        """Handle a sign that a single broker may be unreachable."""

    def _record_failure(self, text: str) -> None:
        failure = read_failure(text)
        if failure is not None:
            self._failures[failure.address] = failure
            self._last_failure_s = time.monotonic()
            self._on_broker_failure(failure)

    @property
    def failures(self) -> list[BrokerFailure]:
        return list(self._failures.copy().values())

    def failures_note(self) -> str:
        """Return the failures as a suffix of an error message."""
        failures = "; ".join(map(str, self.failures))
        return f" ({failures})" if failures else ""

    def reset(self) -> None:
        self._failures.clear()


# A producer whose calls have a time limit that the library does not always enforce.
#
# librdkafka does not enforce the timeout of `send_offsets_to_transaction`: if the group's
# coordinator fails at that moment, the call can wait forever (its issues 5456 and 5511). The worker
# would neither process nor release its tasks, because the client's heartbeats continue.
#
# The offsets may also be queued after records, on the connection to a slow broker. That wait does
# not count: the time limit restarts as long as records are delivered. A broker that is down
# delivers none. If a connection was lost shortly before, the limit is lower: another client finds
# the new coordinator sooner than this call may.
#
# A consumer's `close` has a limit for another reason: if a broker leaves the cluster's metadata
# while the client validates the epoch of an offset, two of its threads can wait for each other
# forever (its issue 5476).


_MARGIN_S = 1.0
"""Margin so that the client's own timeout fires first, if it works."""
_AFTER_FAILURE_S = 2.5
"""Time limit of a call while a broker has just failed."""
_FAILURE_LASTS_S = 15.0
"""Seconds after a lost connection in which this limit applies."""
_CLOSE_S = 10.0
_PROGRESS_SLICE_S = 0.25
"""Seconds between two checks for progress, and the maximum delay in detecting a hung call."""


class BoundedProducer(confluent_kafka.Producer):
    """A transactional producer whose calls have a time limit; see the comment above."""

    brokers: BrokerState | None = None
    """Receives this client's errors, and knows when a connection was lost."""

    def send_offsets_to_transaction(
        self,
        positions: Sequence[confluent_kafka.TopicPartition],
        group_metadata: Any,
        timeout: float = -1,
    ) -> None:
        """Count `timeout` in seconds from the last delivery of a record, less after a failure.

        After an OutcomeUnknownError the client is unusable and must not be closed.
        """
        send = super().send_offsets_to_transaction
        in_flight = self._in_flight()

        def delivers() -> bool:
            nonlocal in_flight
            before, in_flight = in_flight, self._in_flight()
            return in_flight < before

        def limit_s() -> float:
            failed_s = None if self.brokers is None else self.brokers.last_failure_s()
            has_failed = failed_s is not None and time.monotonic() - failed_s < _FAILURE_LASTS_S
            return (min(timeout, _AFTER_FAILURE_S) if has_failed else timeout) + _MARGIN_S

        call_with_timeout(
            lambda: send(list(positions), group_metadata, timeout),
            limit_s,
            made_progress=delivers,
        )

    def _in_flight(self) -> int:
        self.poll(0)  # unprocessed delivery reports count as records in flight
        return len(self)


class BoundedConsumer(confluent_kafka.Consumer):
    """A consumer whose `close` has a time limit; see the comment above."""

    def close(self) -> None:
        """Close the client; after 10 s leave it to the end of the process, and log it."""
        try:
            call_with_timeout(super().close, lambda: _CLOSE_S)
        except OutcomeUnknownError:
            get_logger().warning(
                "client_not_closed",
                after_s=_CLOSE_S,
                reason="the threads of librdkafka wait for each other (its issue 5476)",
            )


def call_with_timeout(
    call: Callable[[], None],
    limit_s: Callable[[], float],
    *,
    made_progress: Callable[[], bool] = lambda: False,
) -> None:
    """Run a call in a separate thread, and stop waiting for it after a time limit.

    Both functions are called several times per second. After the error, the thread ends with the
    process.

    Args:
        limit_s: returns the limit in seconds since the last progress.

    Examples:
        >>> call_with_timeout(threading.Event().wait, lambda: 0.01)
        Traceback (most recent call last):
            ...
        headrace.streams.errors.OutcomeUnknownError: a call of the client did not return \
within 0.01 s
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # handed over to the caller
            failures.append(error)

    thread = threading.Thread(target=run, name="headrace-kafka-call", daemon=True)
    thread.start()
    progress_s = time.monotonic()
    while True:
        left_s = progress_s + limit_s() - time.monotonic()
        thread.join(min(max(0.0, left_s), _PROGRESS_SLICE_S))
        if not thread.is_alive():
            break
        if made_progress():
            progress_s = time.monotonic()
        elif left_s <= 0:
            raise OutcomeUnknownError(f"a call of the client did not return within {limit_s():g} s")
    if failures:
        raise failures[0]


# Creation of all Kafka clients, so that each reports to a `BrokerState`.
#
# A client reports errors by a callback, and their reasons by its log. Both are passed to a
# `BrokerState`; log lines that are not about brokers become log events. Callbacks run while a
# client is polled.


# The package offers this class without declaring it, which a strict type check refuses.
_AdminClient: Any = confluent_kafka.admin.AdminClient

T = TypeVar("T")


def new_consumer(config: Mapping[str, Any], brokers: BrokerState) -> confluent_kafka.Consumer:
    """Raise ConfigError if librdkafka rejects the settings, like the functions below."""
    with _as_config_errors("consumer."):
        return BoundedConsumer(_with_callbacks(config, brokers))


def new_producer(config: Mapping[str, Any], brokers: BrokerState) -> confluent_kafka.Producer:
    with _as_config_errors("producer."):
        return confluent_kafka.Producer(_with_callbacks(config, brokers))


def new_transactional_producer(config: Mapping[str, Any], brokers: BrokerState) -> BoundedProducer:
    with _as_config_errors("producer."):
        producer = BoundedProducer(_with_callbacks(config, brokers))
    producer.brokers = brokers
    return producer


def new_admin(config: Mapping[str, Any], brokers: BrokerState) -> Any:
    with _as_config_errors("admin."):
        return _AdminClient(_with_callbacks(config, brokers))


def result_within(future: Future[T], within_s: float) -> T:
    """Bound the wait: after a lost connection, requests may exceed their own timeout."""
    try:
        return future.result(within_s)
    except FutureTimeoutError as error:
        text = "no answer within the time of the request"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text)) from error


@contextmanager
def _as_config_errors(prefix: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise ConfigError(f"{prefix}: {error.args[0].str()}") from error


def _with_callbacks(config: Mapping[str, Any], brokers: BrokerState) -> dict[str, Any]:
    """Add callbacks, which also call the callbacks of the user, and reveal secrets."""
    settings = revealed(config)
    user_callback = settings.get("error_cb")

    def on_error(error: KafkaError) -> None:
        brokers.on_error(error)
        if user_callback is not None:
            user_callback(error)

    settings["error_cb"] = on_error
    if "bootstrap.servers" in settings:
        settings["bootstrap.servers"] = ",".join(servers_of(settings, brokers.known_brokers()))
    if "logger" not in settings:
        settings["logger"] = _LibrdkafkaLog(brokers)
    return settings


def servers_of(config: Mapping[str, Any], known_brokers: Sequence[str]) -> list[str]:
    """Add known brokers: a new client knows none, and the configured server may be down."""
    named = [server.strip() for server in str(config.get("bootstrap.servers", "")).split(",")]
    return list(dict.fromkeys([*filter(None, named), *known_brokers]))


class _LibrdkafkaLog:
    """Logger for librdkafka that forwards its log lines."""

    def __init__(self, brokers: BrokerState) -> None:
        self._brokers = brokers

    def log(self, level: int, _: str, facility: str, client: str, text: str) -> None:  # noqa: ARG002
        self._brokers.on_log(level, facility, text)
