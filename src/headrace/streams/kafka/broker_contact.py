"""Whether brokers can be reached: waiting for the first answer, and noticing when they are gone.

    reach ─► answered ──heard that all are down──► asked again ─► answered
                                                       │ 2 s without an answer
                                                       ▼
                                                      lost: one warning, then with back-off

While they are lost nothing ends: calls are repeated for as long as it takes. What a person has to
put right, such as a password, ends the application at once.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headrace.state.events.log import get_logger
from headrace.streams.contact.absent_brokers import AbsentBrokers
from headrace.streams.contact.access_errors import AccessError
from headrace.streams.contact.broker_failures import BrokerFailure, read_failure
from headrace.streams.contact.rights import principal_of
from headrace.streams.contact.seen import SAYS, advice_on
from headrace.streams.contact.unreached import Unreached
from headrace.streams.errors import FatalClientError, StopRequestedError
from headrace.streams.kafka.kafka_clients import new_admin, servers_of
from headrace.streams.kafka.port_look import look, look_at_certificate
from headrace.streams.seams.clients import Clock, Log
from headrace.streams.seams.system_clock import SystemClock
from headrace.streams.secrets import written_as

FIRST_WARNING_S = 2.0
LONGEST_PAUSE_S = 60.0
STOP_PATIENCE_S = 5.0
"""How long a stop waits for brokers that are gone."""
TOOLS_WAIT_S = 3.0
"""How long a command waits for brokers, at which somebody sits."""
_SILENT_FACTOR = 3
"""How much longer it waits while one of them has not failed yet."""
_SLICE_MIN_S, _SLICE_MAX_S = 0.005, 0.2
"""Brokers that are there answer in milliseconds."""
_REQUEST_S = 5.0
_CLIENT_S, _CLIENT_MAX_S = 1.0, 30.0
"""How long a client is given to reach a broker, the next one twice as long: some are far away."""
_SURE_AFTER_S = 1.0
"""One of several brokers may have a certificate that is wrong, and another one answer."""
_DOUBT_EACH_S = 10.0
_DENIED_TOPIC = re.compile(r'add partition "([^"]+)" \[\d+\] to transaction: .*authorization')
_SILENT = frozenset({"REQTMOUT", "SESSTMOUT"})
"""Lines of the log on brokers that take requests and do not answer."""
_TOLD = frozenset({"ADDOFFSETS", "ADDPARTS", "FATAL", "GETPID", "TXNERR"})
"""Lines of the log on what a call raises too, or repeats by itself."""
_ALARMING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError._RESOLVE,
    }
)


class Heard:
    """What clients have said (see `headrace.streams.kafka.kafka_clients.Hearing`).

    Args:
        log: where the clients' other lines go.
        met: brokers of the cluster that were met, each as host:port.
    """

    def __init__(self, log: Log | None = None, met: Sequence[str] = ()) -> None:
        self._log: Any = get_logger() if log is None else log
        self._met = tuple(met)
        self._failures: dict[str, BrokerFailure] = {}
        self.denied_topic: str | None = None
        """The last one that a transaction was not let write to; an error does not say it."""

    def heard(self, error: KafkaError) -> None:
        """An error that belongs to no call."""
        self._note(error.str())

    def logged(self, level: int, facility: str, text: str) -> None:
        """A line of a client's log."""
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

    def met(self) -> Sequence[str]:
        """Brokers of the cluster that were met: those of the last answer."""
        return self._met

    def is_given_up(self) -> bool:
        """Whether nobody waits for the brokers any more."""
        return False

    def _alarm(self) -> None:
        """Something says that brokers may be gone."""

    def doubt(self) -> None:
        """A call has had no answer in time: one of them may be silent."""

    def _suspect(self, failure: BrokerFailure) -> None:
        """Something says that one of them may be gone."""

    def _note(self, text: str) -> None:
        failure = read_failure(text)
        if failure is not None:
            self._failures[failure.address] = failure
            self._suspect(failure)

    @property
    def failures(self) -> list[BrokerFailure]:
        """The last one of each broker."""
        return list(self._failures.copy().values())

    def why(self) -> str:
        """The failures as the end of a sentence; empty where none is known."""
        found = "; ".join(map(str, self.failures))
        return f" ({found})" if found else ""

    def forget(self) -> None:
        """They can be used again."""
        self._failures.clear()


class _Probe:
    """Clients that ask, one after the other, until there is an answer, and what they say meanwhile.

    A client that has just heard of a broker which is gone may try that one for ever, without a
    pause, though others are there. So none is waited for for long.
    """

    def __init__(
        self, config: Mapping[str, Any], log: Log, clock: Clock, met: Sequence[str]
    ) -> None:
        self._config = config
        self._clock = clock
        self._servers = servers_of(config, met)
        self.heard = Heard(log, met)
        self.nodes: tuple[str, ...] = ()
        """The brokers of the answer."""
        self._slice_s = _SLICE_MIN_S
        self._final_s: float | None = None
        self._client_s = _CLIENT_S
        self._begin()

    def _begin(self) -> None:
        self._client = new_admin(self._config, self.heard)
        self._future: Any = None
        self._given_up_s = self._clock.monotonic_s() + self._client_s
        self._client_s = min(2 * self._client_s, _CLIENT_MAX_S)

    def answers(self) -> bool:
        """Ask, wait a moment, and say whether there is an answer."""
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
        """Whether none of them is left that may only be slow."""
        return len(self.heard.failures) >= len(self._servers)

    def final(self, now_s: float) -> BrokerFailure | None:
        """What no further try would change, if that is sure."""
        found = next((failure for failure in self.heard.failures if failure.is_final), None)
        if found is None:
            return None
        if self._final_s is None:
            self._final_s = now_s
        sure = len(self._servers) == 1 or now_s - self._final_s >= _SURE_AFTER_S
        return found if sure else None


def _address(node: Any) -> str:
    host = f"[{node.host}]" if ":" in node.host else node.host
    return f"{host}:{node.port}"


class BrokerContact(Heard):
    """See the module; one for the clients of an application.

    Args:
        config: librdkafka's settings, of any client.
        say: says for several processes at once that none is reached; returns whether it does.
        stopping: whether the application was told to stop.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        log: Log | None = None,
        *,
        on_lost: Callable[[], None] = lambda: None,
        on_reached: Callable[[], None] = lambda: None,
        say: Callable[[Unreached], bool] = lambda _: False,
        stopping: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(log)
        self._config = config
        self._on_lost = on_lost
        self._on_reached = on_reached
        self._say = say
        self._stopping = stopping
        self._given_up_at_s = math.inf
        self._clock = clock or SystemClock()
        self._watching = threading.Lock()
        self._ended = threading.Event()
        self._was_reached = False
        self._is_lost = False
        self._found_again_s = -math.inf
        self._final: Exception | None = None
        self._doubt_again_s = -math.inf
        self._absent = AbsentBrokers(
            warn=self._log.warning,
            tell=self._log.info,
            probe=self._probe_of,
            all_gone=self._watching.locked,
            ended=self._ended,
            monotonic_s=self._clock.monotonic_s,
        )

    @property
    def is_lost(self) -> bool:
        """Whether none can be reached now."""
        return self._is_lost

    def was_lost(self, within_s: float) -> bool:
        """Whether none can be reached now, or could be so long ago: calls are given time anew."""
        now_s = self._clock.monotonic_s()
        return self._is_lost or now_s - self._found_again_s < within_s

    def is_given_up(self) -> bool:
        """Whether a stop was asked for, and since then no broker could be reached for so long."""
        if not (self._stopping() and self._is_lost):
            self._given_up_at_s = math.inf
            return False
        now_s = self._clock.monotonic_s()
        self._given_up_at_s = min(self._given_up_at_s, now_s + STOP_PATIENCE_S)
        return now_s >= self._given_up_at_s

    def turn(self) -> None:
        """Raise what a person has to put right, if there is anything.

        Raises:
            AccessError: the brokers take this client's password or certificate no more.
            Exception: what looks for brokers beside the worker has failed with it.
        """
        if self._final is not None:
            raise self._final

    def heard(self, error: KafkaError) -> None:
        """An error that belongs to no call; if it may concern all brokers, look beside."""
        super().heard(error)
        if error.code() in _ALARMING:
            self._alarm()

    def _alarm(self) -> None:
        if self._was_reached and self._watching.acquire(blocking=False):
            threading.Thread(target=self._watch, name="headrace-contact", daemon=True).start()

    def doubt(self) -> None:
        """A call has had no answer in time: ask each broker, but not after each call."""
        now_s = self._clock.monotonic_s()
        if self._was_reached and len(self._met) > 1 and now_s >= self._doubt_again_s:
            self._doubt_again_s = now_s + _DOUBT_EACH_S
            for address in self._met:
                self._absent.suspect(address, "it does not answer")

    def _suspect(self, failure: BrokerFailure) -> None:
        if self._was_reached and len(self._met) > 1:
            self._absent.suspect(failure.address, f"tried {failure.tried}: {failure.reason}")

    def _probe_of(self, address: str) -> Callable[[], bool]:
        """What asks one broker: a client that is told of no other has no other's answer first."""
        config = {**self._config, "bootstrap.servers": address}
        return _Probe(config, self._log, self._clock, ()).answers

    def close(self) -> None:
        """Look no more."""
        self._ended.set()

    def reach(
        self,
        stopping: Callable[[], bool],
        *,
        within_s: float | None = None,
        on_slow: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Wait until a broker answers.

        Args:
            within_s: for how long at most where no broker can be used, and three times as long
                where one of them may be slow; None waits for as long as it takes.
            on_slow: told once after `within_s` what is waited for, where it goes on.

        Raises:
            AccessError: the brokers do not let this client in, or it does not trust them.
            FatalClientError: none has answered in time.
            StopRequestedError: `stopping` said so.
        """
        self._await(stopping, within_s=within_s, on_late=lambda: None, on_slow=on_slow)
        self._was_reached = True

    def _watch(self) -> None:
        """Find out whether they are gone, and wait until they are back; runs beside the worker."""
        begun_s = self._clock.monotonic_s()
        try:
            self._await(self._ended.is_set, within_s=None, on_late=self._lose)
            if self._is_lost:
                waited_s = round(self._clock.monotonic_s() - begun_s, 1)
                self._log.info("brokers_reached", after_s=waited_s)
        except StopRequestedError:
            pass
        except Exception as error:  # raised where the worker turns
            self._final = error
        finally:
            self.forget()
            was_lost = self._is_lost
            if was_lost:
                self._found_again_s = self._clock.monotonic_s()
            self._is_lost = False
            self._watching.release()
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
        probe = _Probe(self._config, self._log, self._clock, self._met)
        is_told = False
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
                said = self._unreached(probe.heard.failures, waited_s)
                # Brokers that refuse nothing may be slow.
                if probe.all_failed or waited_s >= _SILENT_FACTOR * within_s:
                    raise FatalClientError(said)
                if not is_told:
                    is_told = True
                    on_slow(f"{said}; waiting for up to {_SILENT_FACTOR * within_s:.0f} s")
            if waited_s >= warn_after_s:
                on_late()
                if within_s is None:
                    self._warn(probe.heard.failures, waited_s, pause_s)
                warn_after_s = waited_s + pause_s
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._met = probe.nodes

    def _warn(self, failures: list[BrokerFailure], waited_s: float, pause_s: float) -> None:
        said, advice = self._found(failures)
        unreached = Unreached(
            servers=str(self._config.get("bootstrap.servers")),
            reason=said,
            waited_s=round(waited_s, 1),
            again_in_s=pause_s,
            advice=advice,
        )
        log = self._log.debug if self._say(unreached) else self._log.warning
        log("brokers_not_reached", **unreached.fields())

    def _unreached(self, failures: list[BrokerFailure], waited_s: float) -> str:
        said, advice = self._found(failures)
        servers = self._config.get("bootstrap.servers")
        return f"no broker of {servers} answers within {waited_s:.0f} s: {said}; {advice}"

    def _found(self, failures: list[BrokerFailure]) -> tuple[str, str]:
        """What was tried and what came of it, with a look where that does not say it; advice."""
        said = list(map(str, failures))
        advice = failures[0].advice if failures else _NOTHING_HEARD
        told = {failure.address for failure in failures if failure.is_plain}
        servers = str(self._config.get("bootstrap.servers", "")).split(",")
        unclear = [s.strip() for s in servers if s.strip().rpartition("://")[2] not in told]
        if unclear:
            seen = look(unclear[0])
            if seen != "nothing":
                said.append(f"at {unclear[0]} {SAYS[seen]}")
                protocol = str(self._config.get("security.protocol", "PLAINTEXT"))
                advice = advice_on(seen, protocol) or advice
        return "; ".join(said) or "nothing answers", advice


def not_admitted(failure: BrokerFailure, config: Mapping[str, Any]) -> AccessError:
    """What is raised of a failure that is final."""
    if failure.kind == "certificate":
        fault = look_at_certificate(failure.address, config)
        said, advice = (
            (failure.reason, failure.advice) if fault is None else (fault.said, fault.advice)
        )
        return AccessError(
            f"the certificate of the broker {failure.address} cannot be verified: {said}; {advice}"
        )
    who = principal_of(config)
    advice = failure.advice.replace("sasl.password", written_as(config, "sasl.password"))
    return AccessError(
        f"the broker {failure.address} does not let {who} in: {failure.reason}; {advice}",
        principal=who,
    )


_NOTHING_HEARD = "see that the brokers are up and that no firewall is between"


def reach(config: Mapping[str, Any], *, within_s: float = TOOLS_WAIT_S) -> None:
    """See that a tool's cluster answers, before anything is asked of it.

    Where nothing is heard, the error output says so once before this gives up.

    Args:
        within_s: how long somebody waits, in seconds; three times as long for who may be slow.

    Raises:
        AccessError: the brokers do not let this client in, or it does not trust them.
        FatalClientError: none has answered in time.
    """
    contact = BrokerContact(config)
    contact.reach(lambda: False, within_s=within_s, on_slow=_say_to_somebody)


def _say_to_somebody(said: str) -> None:
    sys.stderr.write(f"{said}\n")
    sys.stderr.flush()
