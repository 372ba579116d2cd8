"""Creation of Kafka clients, and monitoring of broker connections by their errors and log lines."""

from __future__ import annotations

import logging
import math
import re
import sys
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

from headrace.state.log import LogMethod, get_logger
from headrace.streams.config.secrets import revealed, written_as
from headrace.streams.errors import (
    ConfigError,
    FatalClientError,
    OutcomeUnknownError,
    StopRequestedError,
)
from headrace.streams.kafka.acls import AccessError, principal_of
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.port_check import SAYS, advice_on, look, look_at_certificate, seen_in
from headrace.streams.kafka.protocols import Clock, Log
from headrace.streams.kafka.unreached import Unreached

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
    "stranger",
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
    "APIVERSION_QUERY": "to ask for its versions",
    "AUTH_HANDSHAKE": "to log in",
    "AUTH_REQ": "to log in",
    "AUTH_LEGACY": "to log in",
}
_ADVICE: dict[Kind, str] = {
    "refused": "nothing listens there: start the brokers, or correct bootstrap.servers",
    "unresolved": "the name has no address: correct bootstrap.servers, or the machine's DNS",
    "tls": "check that the port uses TLS, and check security.protocol and the settings ssl.*",
    "certificate": "set ssl.ca.location to the authority that signed the brokers' certificates, "
    "and bootstrap.servers to a name that is in them",
    "credentials": "correct sasl.mechanism, sasl.username and sasl.password",
    "no_login": "it asks for no login: set security.protocol to PLAINTEXT or SSL",
    "stranger": "correct bootstrap.servers",
    "closed": "it may expect another security.protocol, with or without TLS",
    "unknown": "check that the brokers are up and that no firewall blocks the connection",
}
_RESPONSE = re.compile(r"Invalid response size (\d+) ")
"""A server that is not a Kafka broker sends other bytes at the position of the response size."""
_GUESS = re.compile(r":? (?:probably due to|might be caused by) .*broker version.*", re.DOTALL)
"""Guess of librdkafka about old brokers, which are not supported; a port check is more specific."""
_PASSING_LOGIN = re.compile(r"oauthbearer.*token|token.*oauthbearer", re.IGNORECASE)


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
    def is_plain(self) -> bool:
        """Whether the failure is specific; otherwise a port check may find the reason."""
        return self.kind not in ("tls", "closed", "unknown")

    @property
    def advice(self) -> str:
        return _ADVICE[self.kind]


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
        kind, reason = "stranger", SAYS[seen_in(int(size[1]).to_bytes(4))]
    return BrokerFailure(match["address"], tried, _GUESS.sub("", reason), kind)


def _kind(reason: str, state: str) -> Kind:
    low = reason.lower()
    if "verify failed" in low or "certificate unknown" in low:
        return "certificate"
    if state == "SSL_HANDSHAKE" or ("handshake failed" in low and "ssl" in low):
        return "tls"
    if low.rstrip().endswith("supported mechanisms:"):
        return "no_login"
    if state.startswith("AUTH") and not _PASSING_LOGIN.search(low):
        return "credentials" if "sasl" in low else "closed"
    if "resolve" in low:
        return "unresolved"
    if "refused" in low:
        return "refused"
    if "disconnected" in low or "closed" in low:
        return "closed"
    return "unknown"


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

    contact: BrokerState | None = None
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
            failed_s = None if self.contact is None else self.contact.failed_s()
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
        headrace.streams.errors.OutcomeUnknownError: the client does not come back from a \
call within 0.01 s
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
            raise OutcomeUnknownError(
                f"the client does not come back from a call within {limit_s():g} s"
            )
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


def new_consumer(config: Mapping[str, Any], contact: BrokerState) -> confluent_kafka.Consumer:
    """Raise ConfigError if librdkafka rejects the settings, like the functions below."""
    with _settings_of("consumer."):
        return BoundedConsumer(_with_callbacks(config, contact))


def new_producer(config: Mapping[str, Any], contact: BrokerState) -> confluent_kafka.Producer:
    with _settings_of("producer."):
        return confluent_kafka.Producer(_with_callbacks(config, contact))


def new_transactional_producer(config: Mapping[str, Any], contact: BrokerState) -> BoundedProducer:
    with _settings_of("producer."):
        producer = BoundedProducer(_with_callbacks(config, contact))
    producer.contact = contact
    return producer


def new_admin(config: Mapping[str, Any], contact: BrokerState) -> Any:
    with _settings_of("admin."):
        return _AdminClient(_with_callbacks(config, contact))


def answered(future: Future[T], within_s: float) -> T:
    """Bound the wait: after a lost connection, requests may exceed their own timeout."""
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


def _with_callbacks(config: Mapping[str, Any], contact: BrokerState) -> dict[str, Any]:
    """Add callbacks, which also call the callbacks of the user, and reveal secrets."""
    settings = revealed(config)
    user_callback = settings.get("error_cb")

    def on_error(error: KafkaError) -> None:
        contact.on_error(error)
        if user_callback is not None:
            user_callback(error)

    settings["error_cb"] = on_error
    if "bootstrap.servers" in settings:
        settings["bootstrap.servers"] = ",".join(servers_of(settings, contact.known_brokers()))
    if "logger" not in settings:
        settings["logger"] = _LibrdkafkaLog(contact)
    return settings


def servers_of(config: Mapping[str, Any], known_brokers: Sequence[str]) -> list[str]:
    """Add known brokers: a new client knows none, and the configured server may be down."""
    named = [server.strip() for server in str(config.get("bootstrap.servers", "")).split(",")]
    return list(dict.fromkeys([*filter(None, named), *known_brokers]))


class _LibrdkafkaLog:
    """Logger for librdkafka that forwards its log lines."""

    def __init__(self, contact: BrokerState) -> None:
        self._contact = contact

    def log(self, level: int, _: str, facility: str, client: str, text: str) -> None:  # noqa: ARG002
        self._contact.on_log(level, facility, text)


_PAUSE_S = 0.5
_SURE_AFTER_S = 3.0
"""Seconds until a broker is reported: connections may be replaced, and all brokers may be down."""
_GONE = (
    "the other brokers answer, and its partitions continue when another broker leads them, within "
    "seconds if they have replicas; start it again, or check its machine and the network"
)


class UnreachableBrokers:
    """Single brokers that do not answer, with the duration of their outage.

    Args:
        probe: creates a check of a broker by its address, which returns whether the broker answers.
        all_gone: returns whether no broker is reachable at all.
        ended: set when checks must end.
    """

    def __init__(
        self,
        *,
        warn: LogMethod,
        info: LogMethod,
        probe: Callable[[str], Callable[[], bool]],
        all_gone: Callable[[], bool],
        ended: threading.Event,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._warn = warn
        self._info = info
        self._probe = probe
        self._all_gone = all_gone
        self._ended = ended
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._watched: set[str] = set()

    def suspect(self, address: str, reason: str) -> None:
        """Check a broker that a client could not use, in the background."""
        with self._lock:
            if address in self._watched or self._ended.is_set():
                return
            self._watched.add(address)
        threading.Thread(
            target=self._watch_broker, args=(address, reason), name="headrace-absent", daemon=True
        ).start()

    def _watch_broker(self, address: str, reason: str) -> None:
        begun_s, is_reported = self._monotonic_s(), False
        try:
            answers = self._probe(address)
            while not answers():
                if self._ended.wait(_PAUSE_S):
                    return
                if not is_reported and self._monotonic_s() - begun_s >= _SURE_AFTER_S:
                    if self._all_gone():
                        return
                    is_reported = True
                    self._warn("broker_not_reached", broker=address, reason=reason, advice=_GONE)
            if is_reported:
                after_s = round(self._monotonic_s() - begun_s, 1)
                self._info("broker_reached", broker=address, after_s=after_s)
        finally:
            with self._lock:
                self._watched.discard(address)


# Reachability of brokers: wait for the first answer, and detection of outages.
#
#     reach ─► answered ──all brokers down──► check ─► answered
#                                               │ 2 s without an answer
#                                               ▼
#                                              lost: warnings with backoff
#
# During an outage the application keeps running, and calls are repeated without a limit. Failures
# that require an operator, such as a wrong password, end the application immediately.


FIRST_WARNING_S = 2.0
LONGEST_PAUSE_S = 60.0
STOP_PATIENCE_S = 5.0
"""Seconds that a stop waits for unreachable brokers."""
TOOLS_WAIT_S = 3.0
"""Seconds that an interactive command waits for brokers."""
_SILENT_FACTOR = 3
"""Factor for this wait while a broker has not failed yet."""
_SLICE_MIN_S, _SLICE_MAX_S = 0.005, 0.2
"""Seconds per poll: reachable brokers answer in milliseconds."""
_REQUEST_S = 5.0
_CLIENT_S, _CLIENT_MAX_S = 1.0, 30.0
"""Seconds for a client to reach a broker; doubles with each client because brokers may be far away.
"""
_FINAL_AFTER_S = 1.0
"""Seconds until a failure is final: a broker may have a wrong certificate while another answers."""
_DOUBT_EACH_S = 10.0
_DENIED_TOPIC = re.compile(r'add partition "([^"]+)" \[\d+\] to transaction: .*authorization')
_SILENT = frozenset({"REQTMOUT", "SESSTMOUT"})
"""Facilities of log lines about brokers that accept requests and do not answer."""
_TOLD = frozenset({"ADDOFFSETS", "ADDPARTS", "FATAL", "GETPID", "TXNERR"})
"""Facilities of log lines about errors that calls also raise or retry."""
_ALARMING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError._RESOLVE,
    }
)


class BrokerState:
    """Failures of brokers, from the errors and log lines of Kafka clients.

    `known_brokers` has the brokers of the cluster, each as host:port.
    """

    def __init__(self, log: Log | None = None, known_brokers: Sequence[str] = ()) -> None:
        self._log: Any = get_logger() if log is None else log
        self._known_brokers = tuple(known_brokers)
        self._failures: dict[str, BrokerFailure] = {}
        self._failed_s: float | None = None
        self.denied_topic: str | None = None
        """The last topic that a transaction was not authorized to write; errors do not name it."""

    def on_error(self, error: KafkaError) -> None:
        """Handle an error that belongs to no call."""
        self._note(error.str())

    def on_log(self, level: int, facility: str, text: str) -> None:
        """Handle a log line of a client, with the level of Python's logging."""
        denied = _DENIED_TOPIC.search(text)
        if denied is not None:
            self.denied_topic = denied[1]
        if facility in ("FAIL", "ERROR"):
            self._note(text)
        elif facility in _SILENT:
            self._log.debug("client_logged", facility=facility, text=text)
            self._alarm()
            silent = read_failure(text)
            if silent is not None:
                self._suspect(silent)
        elif level >= logging.WARNING and facility not in _TOLD:
            self._log.warning("client_warned", facility=facility, text=text)
        else:
            self._log.debug("client_logged", facility=facility, text=text)

    def known_brokers(self) -> Sequence[str]:
        return self._known_brokers

    def failed_s(self) -> float | None:
        """Return when a connection was last lost, by the monotonic clock; None if never."""
        return self._failed_s

    def is_given_up(self) -> bool:
        return False

    def _alarm(self) -> None:
        """Handle a sign that all brokers may be unreachable."""

    def doubt(self) -> None:
        """Handle a call without an answer in time: a broker may be unresponsive."""

    def _suspect(self, failure: BrokerFailure) -> None:
        """Handle a sign that a single broker may be unreachable."""

    def _note(self, text: str) -> None:
        failure = read_failure(text)
        if failure is not None:
            self._failures[failure.address] = failure
            self._failed_s = time.monotonic()
            self._suspect(failure)

    @property
    def failures(self) -> list[BrokerFailure]:
        return list(self._failures.copy().values())

    def why(self) -> str:
        """Return the failures as a suffix of an error message."""
        failures = "; ".join(map(str, self.failures))
        return f" ({failures})" if failures else ""

    def forget(self) -> None:
        self._failures.clear()


class _Probe:
    """Check of broker reachability by a sequence of clients, with their failures.

    A client that has just received the address of a dead broker may retry it forever without a
    pause, although other brokers are reachable. So each client has a time limit.
    """

    def __init__(
        self, config: Mapping[str, Any], log: Log, clock: Clock, known_brokers: Sequence[str]
    ) -> None:
        self._config = config
        self._clock = clock
        self._servers = servers_of(config, known_brokers)
        self.brokers = BrokerState(log, known_brokers)
        self.nodes: tuple[str, ...] = ()
        """The brokers of the answer."""
        self._slice_s = _SLICE_MIN_S
        self._final_s: float | None = None
        self._client_s = _CLIENT_S
        self._begin()

    def _begin(self) -> None:
        self._client = new_admin(self._config, self.brokers)
        self._future: Any = None
        self._given_up_s = self._clock.monotonic_s() + self._client_s
        self._client_s = min(2 * self._client_s, _CLIENT_MAX_S)

    def answers(self) -> bool:
        """Poll briefly; send a request before, if none is open."""
        if self._future is None:
            self._future = self._client.describe_cluster(request_timeout=_REQUEST_S)
        self._client.poll(self._slice_s)
        self._slice_s = min(1.1 * self._slice_s, _SLICE_MAX_S)
        if self._future.done():
            future, self._future = self._future, None
            try:
                self.nodes = tuple(map(_address, future.result(0).nodes))
            except KafkaException:
                return False
            return True
        if self._clock.monotonic_s() >= self._given_up_s:
            self._begin()
        return False

    @property
    def all_failed(self) -> bool:
        """Whether all servers have failed, so that none may just be slow."""
        return len(self.brokers.failures) >= len(self._servers)

    def final(self, now_s: float) -> BrokerFailure | None:
        """Return a failure that retries cannot fix, if it is certain."""
        failure = next((failure for failure in self.brokers.failures if failure.is_final), None)
        if failure is None:
            return None
        if self._final_s is None:
            self._final_s = now_s
        sure = len(self._servers) == 1 or now_s - self._final_s >= _FINAL_AFTER_S
        return failure if sure else None


def _address(node: Any) -> str:
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{host}:{node.port}"


class BrokerContact(BrokerState):
    """Reachability of the brokers, shared by the clients of an application.

    Args:
        config: librdkafka's settings, of any client.
        report: reports an outage on behalf of several processes; returns whether it does so.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        log: Log | None = None,
        *,
        on_lost: Callable[[], None] = lambda: None,
        on_reached: Callable[[], None] = lambda: None,
        report: Callable[[Unreached], bool] = lambda _: False,
        stopping: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(log)
        self._config = config
        self._on_lost = on_lost
        self._on_reached = on_reached
        self._report = report
        self._stopping = stopping
        self._given_up_at_s = math.inf
        self._clock = clock or SystemClock()
        self._watch_lock = threading.Lock()
        self._ended = threading.Event()
        self._was_reached = False
        self._is_lost = False
        self._found_again_s = -math.inf
        self._final: Exception | None = None
        self._doubt_again_s = -math.inf
        self._absent = UnreachableBrokers(
            warn=self._log.warning,
            info=self._log.info,
            probe=self._probe_of,
            all_gone=self._watch_lock.locked,
            ended=self._ended,
            monotonic_s=self._clock.monotonic_s,
        )

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    def was_lost(self, within_s: float) -> bool:
        """Return whether brokers are, or recently were, unreachable; calls get more time then."""
        now_s = self._clock.monotonic_s()
        return self._is_lost or now_s - self._found_again_s < within_s

    def is_given_up(self) -> bool:
        """Return True `STOP_PATIENCE_S` after the first check with a stop and lost brokers."""
        if not (self._stopping() and self._is_lost):
            self._given_up_at_s = math.inf
            return False
        now_s = self._clock.monotonic_s()
        self._given_up_at_s = min(self._given_up_at_s, now_s + STOP_PATIENCE_S)
        return now_s >= self._given_up_at_s

    def turn(self) -> None:
        """Raise the error of the background check, such as AccessError, if any."""
        if self._final is not None:
            raise self._final

    def on_error(self, error: KafkaError) -> None:
        super().on_error(error)
        if error.code() in _ALARMING:
            self._alarm()

    def _alarm(self) -> None:
        if self._was_reached and self._watch_lock.acquire(blocking=False):
            threading.Thread(target=self._watch, name="headrace-contact", daemon=True).start()

    def doubt(self) -> None:
        """Check each broker after a call without an answer in time, at a limited rate."""
        now_s = self._clock.monotonic_s()
        if self._was_reached and len(self._known_brokers) > 1 and now_s >= self._doubt_again_s:
            self._doubt_again_s = now_s + _DOUBT_EACH_S
            for address in self._known_brokers:
                self._absent.suspect(address, "it does not answer")

    def _suspect(self, failure: BrokerFailure) -> None:
        if self._was_reached and len(self._known_brokers) > 1:
            self._absent.suspect(failure.address, f"tried {failure.tried}: {failure.reason}")

    def _probe_of(self, address: str) -> Callable[[], bool]:
        config = {**self._config, "bootstrap.servers": address}
        return _Probe(config, self._log, self._clock, ()).answers

    def close(self) -> None:
        self._ended.set()

    def reach(
        self,
        stopping: Callable[[], bool],
        *,
        within_s: float | None = None,
        on_slow: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Wait until a broker answers, or `stopping` raises StopRequestedError.

        Args:
            within_s: time limit if no broker can be used, and three times as long if a broker may
                be slow; None for no limit.
            on_slow: called once after `within_s` with a message if the wait continues.

        Raises:
            AccessError: the brokers reject this client, or it does not trust them.
            FatalClientError: no broker has answered in time.
        """
        self._await(stopping, within_s=within_s, on_late=lambda: None, on_slow=on_slow)
        self._was_reached = True

    def _watch(self) -> None:
        """Wait until an outage of all brokers ends; runs in the background."""
        begun_s = self._clock.monotonic_s()
        try:
            self._await(self._ended.is_set, within_s=None, on_late=self._lose)
            if self._is_lost:
                waited_s = round(self._clock.monotonic_s() - begun_s, 1)
                self._log.info("brokers_reached", after_s=waited_s)
        except StopRequestedError:
            pass
        except Exception as error:  # raised by `turn`
            self._final = error
        finally:
            self.forget()
            was_lost = self._is_lost
            if was_lost:
                self._found_again_s = self._clock.monotonic_s()
            self._is_lost = False
            self._watch_lock.release()
        if was_lost and self._final is None and not self._ended.is_set():
            self._on_reached()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._on_lost()

    def _await(
        self,
        stopping: Callable[[], bool],
        *,
        within_s: float | None,
        on_late: Callable[[], None],
        on_slow: Callable[[str], None] = lambda _: None,
    ) -> None:
        probe = _Probe(self._config, self._log, self._clock, self._known_brokers)
        is_reported = False
        begun_s, warn_after_s, pause_s = self._clock.monotonic_s(), FIRST_WARNING_S, 4.0
        while not probe.answers():
            now_s = self._clock.monotonic_s()
            waited_s = now_s - begun_s
            final = probe.final(now_s)
            if final is not None:
                raise not_admitted(final, self._config)
            if stopping():
                raise StopRequestedError("stopped while waiting for the brokers")
            if within_s is not None and waited_s >= within_s:
                reason = self._unreached(probe.brokers.failures, waited_s)
                # Brokers without a failure may be slow.
                if probe.all_failed or waited_s >= _SILENT_FACTOR * within_s:
                    raise FatalClientError(reason)
                if not is_reported:
                    is_reported = True
                    on_slow(f"{reason}; waiting for up to {_SILENT_FACTOR * within_s:.0f} s")
            if waited_s >= warn_after_s:
                on_late()
                if within_s is None:
                    self._warn(probe.brokers.failures, waited_s, pause_s)
                warn_after_s = waited_s + pause_s
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._known_brokers = probe.nodes

    def _warn(self, failures: list[BrokerFailure], waited_s: float, pause_s: float) -> None:
        reason, advice = self._diagnosis(failures)
        unreached = Unreached(
            servers=str(self._config.get("bootstrap.servers")),
            reason=reason,
            waited_s=round(waited_s, 1),
            again_in_s=pause_s,
            advice=advice,
        )
        log = self._log.debug if self._report(unreached) else self._log.warning
        log("brokers_not_reached", **unreached.fields())

    def _unreached(self, failures: list[BrokerFailure], waited_s: float) -> str:
        reason, advice = self._diagnosis(failures)
        servers = self._config.get("bootstrap.servers")
        return f"no broker of {servers} answers within {waited_s:.0f} s: {reason}; {advice}"

    def _diagnosis(self, failures: list[BrokerFailure]) -> tuple[str, str]:
        """Return failed attempts and advice; check a port if the failures are unspecific."""
        reasons = list(map(str, failures))
        advice = failures[0].advice if failures else _ADVICE["unknown"]
        explained = {failure.address for failure in failures if failure.is_plain}
        servers = str(self._config.get("bootstrap.servers", "")).split(",")
        unclear = [s.strip() for s in servers if s.strip().rpartition("://")[2] not in explained]
        if unclear:
            seen = look(unclear[0])
            if seen != "nothing":
                reasons.append(f"at {unclear[0]} {SAYS[seen]}")
                protocol = str(self._config.get("security.protocol", "PLAINTEXT"))
                advice = advice_on(seen, protocol) or advice
        return "; ".join(reasons) or "nothing answers", advice


def not_admitted(failure: BrokerFailure, config: Mapping[str, Any]) -> AccessError:
    if failure.kind == "certificate":
        fault = look_at_certificate(failure.address, config)
        reason, advice = (
            (failure.reason, failure.advice) if fault is None else (fault.reason, fault.advice)
        )
        return AccessError(
            f"the certificate of the broker {failure.address} cannot be verified: {reason}; "
            f"{advice}"
        )
    who = principal_of(config)
    advice = failure.advice.replace("sasl.password", written_as(config, "sasl.password"))
    return AccessError(
        f"the broker {failure.address} does not let {who} in: {failure.reason}; {advice}",
        principal=who,
    )


def reach(config: Mapping[str, Any], *, within_s: float = TOOLS_WAIT_S) -> None:
    """Wait until a tool's cluster answers; see `BrokerContact.reach` for time limit and errors.

    If no failure is known, a message is written to standard error once during the wait.
    """
    contact = BrokerContact(config)
    contact.reach(lambda: False, within_s=within_s, on_slow=_print_to_stderr)


def _print_to_stderr(reason: str) -> None:
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
