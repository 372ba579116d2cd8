"""Reachability of the brokers: wait for the first answer, outages, and single brokers."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headrace.state.log import LogMethod
from headrace.streams.config.secrets import written_as
from headrace.streams.errors import FatalClientError, StopRequestedError
from headrace.streams.kafka.acls import AccessError, principal_of
from headrace.streams.kafka.clients import ADVICE, BrokerFailure, BrokerState, new_admin, servers_of
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.port_check import (
    DESCRIPTIONS,
    advice_for,
    check_certificate,
    check_port,
)
from headrace.streams.kafka.protocols import Clock, Log
from headrace.streams.kafka.unreached import Unreached

_PAUSE_S = 0.5
_REPORT_AFTER_S = 3.0
"""Seconds until a broker is reported: connections may be replaced, and all brokers may be down."""
_ADVICE = (
    "the other brokers answer, and its partitions continue when another broker leads them, within "
    "seconds if they have replicas; start it again, or check its machine and the network"
)


class UnreachableBrokers:
    """Single brokers that do not answer, with the duration of their outage.

    Args:
        probe: creates a check of a broker by its address, which returns whether the broker answers.
        all_unreachable: returns whether no broker is reachable at all.
        ended: set when checks must end.
    """

    def __init__(
        self,
        *,
        warn: LogMethod,
        info: LogMethod,
        probe: Callable[[str], Callable[[], bool]],
        all_unreachable: Callable[[], bool],
        ended: threading.Event,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._warn = warn
        self._info = info
        self._probe = probe
        self._all_unreachable = all_unreachable
        self._ended = ended
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._checked: set[str] = set()

    def check(self, address: str, reason: str) -> None:
        """Check a broker that a client could not use, in the background."""
        with self._lock:
            if address in self._checked or self._ended.is_set():
                return
            self._checked.add(address)
        threading.Thread(
            target=self._watch_broker, args=(address, reason), name="headrace-broker", daemon=True
        ).start()

    def _watch_broker(self, address: str, reason: str) -> None:
        begun_s, is_reported = self._monotonic_s(), False
        try:
            answers = self._probe(address)
            while not answers():
                if self._ended.wait(_PAUSE_S):
                    return
                if not is_reported and self._monotonic_s() - begun_s >= _REPORT_AFTER_S:
                    if self._all_unreachable():
                        return
                    is_reported = True
                    self._warn("broker_not_reached", broker=address, reason=reason, advice=_ADVICE)
            if is_reported:
                after_s = round(self._monotonic_s() - begun_s, 1)
                self._info("broker_reached", broker=address, after_s=after_s)
        finally:
            with self._lock:
                self._checked.discard(address)


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
_SLOW_FACTOR = 3
"""Factor for this wait while a broker has not failed yet."""
_SLICE_MIN_S, _SLICE_MAX_S = 0.005, 0.2
"""Seconds per poll: reachable brokers answer in milliseconds."""
_REQUEST_S = 5.0
_CLIENT_S, _CLIENT_MAX_S = 1.0, 30.0
"""Seconds for a client to reach a broker; doubles with each client because brokers may be far away.
"""
_FINAL_AFTER_S = 1.0
"""Seconds until a failure is final: a broker may have a wrong certificate while another answers."""
_CHECKS_EVERY_S = 10.0
_OUTAGE_CODES = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError._RESOLVE,
    }
)


class _ReachabilityProbe:
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
        self._final_since_s: float | None = None
        self._client_s = _CLIENT_S
        self._replace_client()

    def _replace_client(self) -> None:
        self._client = new_admin(self._config, self.brokers)
        self._future: Any = None
        self._client_deadline_s = self._clock.monotonic_s() + self._client_s
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
        if self._clock.monotonic_s() >= self._client_deadline_s:
            self._replace_client()
        return False

    @property
    def all_failed(self) -> bool:
        """Whether all servers have failed, so that none may just be slow."""
        return len(self.brokers.failures) >= len(self._servers)

    def final_failure(self, now_s: float) -> BrokerFailure | None:
        """Return a failure that retries cannot fix, if it is certain."""
        failure = next((failure for failure in self.brokers.failures if failure.is_final), None)
        if failure is None:
            return None
        if self._final_since_s is None:
            self._final_since_s = now_s
        sure = len(self._servers) == 1 or now_s - self._final_since_s >= _FINAL_AFTER_S
        return failure if sure else None


def _address(node: Any) -> str:
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{host}:{node.port}"


class BrokerMonitor(BrokerState):
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
        self._stop_deadline_s = math.inf
        self._clock = clock or SystemClock()
        self._watch_lock = threading.Lock()
        self._ended = threading.Event()
        self._was_reached = False
        self._is_lost = False
        self._recovered_s = -math.inf
        self._error: Exception | None = None
        self._next_checks_s = -math.inf
        self._unreachable = UnreachableBrokers(
            warn=self._log.warning,
            info=self._log.info,
            probe=self._probe_of,
            all_unreachable=self._watch_lock.locked,
            ended=self._ended,
            monotonic_s=self._clock.monotonic_s,
        )

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    def was_lost(self, within_s: float) -> bool:
        """Return whether brokers are, or recently were, unreachable; calls get more time then."""
        now_s = self._clock.monotonic_s()
        return self._is_lost or now_s - self._recovered_s < within_s

    def is_stop_overdue(self) -> bool:
        """Return True `STOP_PATIENCE_S` after the first check with a stop and lost brokers."""
        if not (self._stopping() and self._is_lost):
            self._stop_deadline_s = math.inf
            return False
        now_s = self._clock.monotonic_s()
        self._stop_deadline_s = min(self._stop_deadline_s, now_s + STOP_PATIENCE_S)
        return now_s >= self._stop_deadline_s

    def turn(self) -> None:
        """Raise the error of the background check, such as AccessError, if any."""
        if self._error is not None:
            raise self._error

    def on_error(self, error: KafkaError) -> None:
        super().on_error(error)
        if error.code() in _OUTAGE_CODES:
            self._on_possible_outage()

    def _on_possible_outage(self) -> None:
        if self._was_reached and self._watch_lock.acquire(blocking=False):
            threading.Thread(target=self._watch_outage, name="headrace-outage", daemon=True).start()

    def on_timeout(self) -> None:
        """Check each broker after a call without an answer in time, at a limited rate."""
        now_s = self._clock.monotonic_s()
        if self._was_reached and len(self._known_brokers) > 1 and now_s >= self._next_checks_s:
            self._next_checks_s = now_s + _CHECKS_EVERY_S
            for address in self._known_brokers:
                self._unreachable.check(address, "it does not answer")

    def _on_broker_failure(self, failure: BrokerFailure) -> None:
        if self._was_reached and len(self._known_brokers) > 1:
            self._unreachable.check(failure.address, f"tried {failure.tried}: {failure.reason}")

    def _probe_of(self, address: str) -> Callable[[], bool]:
        config = {**self._config, "bootstrap.servers": address}
        return _ReachabilityProbe(config, self._log, self._clock, ()).answers

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
        self._wait_for_answer(stopping, within_s=within_s, on_late=lambda: None, on_slow=on_slow)
        self._was_reached = True

    def _watch_outage(self) -> None:
        """Wait until an outage of all brokers ends; runs in the background."""
        begun_s = self._clock.monotonic_s()
        try:
            self._wait_for_answer(self._ended.is_set, within_s=None, on_late=self._mark_lost)
            if self._is_lost:
                waited_s = round(self._clock.monotonic_s() - begun_s, 1)
                self._log.info("brokers_reached", after_s=waited_s)
        except StopRequestedError:
            pass
        except Exception as error:  # raised by `turn`
            self._error = error
        finally:
            self.reset()
            was_lost = self._is_lost
            if was_lost:
                self._recovered_s = self._clock.monotonic_s()
            self._is_lost = False
            self._watch_lock.release()
        if was_lost and self._error is None and not self._ended.is_set():
            self._on_reached()

    def _mark_lost(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._on_lost()

    def _wait_for_answer(
        self,
        stopping: Callable[[], bool],
        *,
        within_s: float | None,
        on_late: Callable[[], None],
        on_slow: Callable[[str], None] = lambda _: None,
    ) -> None:
        probe = _ReachabilityProbe(self._config, self._log, self._clock, self._known_brokers)
        is_reported = False
        begun_s, warn_after_s, pause_s = self._clock.monotonic_s(), FIRST_WARNING_S, 4.0
        while not probe.answers():
            now_s = self._clock.monotonic_s()
            waited_s = now_s - begun_s
            final = probe.final_failure(now_s)
            if final is not None:
                raise rejection_error(final, self._config)
            if stopping():
                raise StopRequestedError("stopped while waiting for the brokers")
            if within_s is not None and waited_s >= within_s:
                reason = self._unreached_message(probe.brokers.failures, waited_s)
                # Brokers without a failure may be slow.
                if probe.all_failed or waited_s >= _SLOW_FACTOR * within_s:
                    raise FatalClientError(reason)
                if not is_reported:
                    is_reported = True
                    on_slow(f"{reason}; waiting for up to {_SLOW_FACTOR * within_s:.0f} s")
            if waited_s >= warn_after_s:
                on_late()
                if within_s is None:
                    self._warn(probe.brokers.failures, waited_s, pause_s)
                warn_after_s = waited_s + pause_s
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._known_brokers = probe.nodes

    def _warn(self, failures: list[BrokerFailure], waited_s: float, pause_s: float) -> None:
        reason, advice = self._diagnose(failures)
        unreached = Unreached(
            servers=str(self._config.get("bootstrap.servers")),
            reason=reason,
            waited_s=round(waited_s, 1),
            again_in_s=pause_s,
            advice=advice,
        )
        log = self._log.debug if self._report(unreached) else self._log.warning
        log("brokers_not_reached", **unreached.fields())

    def _unreached_message(self, failures: list[BrokerFailure], waited_s: float) -> str:
        reason, advice = self._diagnose(failures)
        servers = self._config.get("bootstrap.servers")
        return f"no broker of {servers} answers within {waited_s:.0f} s: {reason}; {advice}"

    def _diagnose(self, failures: list[BrokerFailure]) -> tuple[str, str]:
        """Return failed attempts and advice; check a port if the failures are unspecific."""
        reasons = list(map(str, failures))
        advice = failures[0].advice if failures else ADVICE["unknown"]
        explained = {failure.address for failure in failures if failure.is_specific}
        servers = str(self._config.get("bootstrap.servers", "")).split(",")
        unclear = [s.strip() for s in servers if s.strip().rpartition("://")[2] not in explained]
        if unclear:
            kind = check_port(unclear[0])
            if kind != "nothing":
                reasons.append(f"at {unclear[0]} {DESCRIPTIONS[kind]}")
                protocol = str(self._config.get("security.protocol", "PLAINTEXT"))
                advice = advice_for(kind, protocol) or advice
        return "; ".join(reasons) or "nothing answers", advice


def rejection_error(failure: BrokerFailure, config: Mapping[str, Any]) -> AccessError:
    if failure.kind == "certificate":
        fault = check_certificate(failure.address, config)
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
        f"the broker {failure.address} rejects {who}: {failure.reason}; {advice}",
        principal=who,
    )


def reach(config: Mapping[str, Any], *, within_s: float = TOOLS_WAIT_S) -> None:
    """Wait until a tool's cluster answers; see `BrokerMonitor.reach` for time limit and errors.

    If no failure is known, a message is written to standard error once during the wait.
    """
    BrokerMonitor(config).reach(lambda: False, within_s=within_s, on_slow=_print_to_stderr)


def _print_to_stderr(reason: str) -> None:
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
