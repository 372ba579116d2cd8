"""A right that is taken away while the application processes: named, and nothing lost or doubled.

Each case has a user, an application and topics of its own on the secured broker.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from headrace.streams.app import State
from headrace.streams.devbroker import DevBroker
from headrace.streams.kafka.acls import AccessError, Right
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of
from tests.support import oracle
from tests.support.live import Live, live
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.tenant import Tenant

WORDS = "abcde"
CASES: list[tuple[str, str, str]] = [
    ("Read", "topic", "the topic {source}"),
    ("Write", "topic", "the topic {output}"),
    ("Read", "group", "the group {application}"),
    ("Write", "transactional id", "the transactional id {application}-"),
]


class Stream:
    """Writes words one after the other, and counts them."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self.written: Counter[bytes] = Counter({b"a": 2, b"b": 1})
        """With what `Tenant.prepare` has written."""

    @contextmanager
    def flowing(self) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._flow, args=(ended,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _flow(self, ended: threading.Event) -> None:
        producer = Producer({**self._tenant.broker.settings(), "log_level": 2})
        words = itertools.cycle(WORDS)
        while not ended.wait(0.02):
            word = next(words)
            producer.produce(self._tenant.source, word, word)
            producer.poll(0)
            self.written[word.encode()] += 1
        assert producer.flush(PATIENCE_S) == 0


def taken(tenant: Tenant, operation: str, resource: str) -> list[Right]:
    """The rights of the case: of topics, those on the topics that are the tenant's own."""
    own = (tenant.source, tenant.output)
    found = [
        right
        for right in tenant.rights
        if (right.operation, right.resource) == (operation, resource)
        and (resource != "topic" or right.name in own)
    ]
    assert len(found) == 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("right", "resource", "on_what"), CASES)
def test_a_right_that_is_taken_away_stops_it_and_given_back_nothing_is_lost_or_doubled(
    right: str, resource: str, on_what: str, secured: DevBroker, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"statestore.cache.max.bytes": 0}
    tenant = Tenant(secured, tmp_path, f"t{secrets.token_hex(4)}", "exactly_once_v2", more)
    tenant.prepare()
    secured.grant(tenant.name, tenant.rights)
    lost = taken(tenant, right, resource)
    stream = Stream(tenant)
    with stream.flowing(), capture_logs() as logs:
        app = Live(tenant.topology, tenant.settings)
        app.app.start()
        app.wait(lambda: app.processed >= 20, what="it counts")
        secured.revoke(tenant.name, lost)
        wait_until(lambda: app.state is State.ERROR, seconds=PATIENCE_S, what="it notices")
        with pytest.raises(AccessError) as raised:
            app.app.close()
    error = raised.value
    names = {name: getattr(tenant, name) for name in ("source", "output", "application")}
    named = f"User:{tenant.name} lacks the right {right} on {on_what.format(**names)}"
    assert exit_code_of(error) is ExitCode.ACCESS
    assert named in str(error)
    assert "\n" not in str(error)
    told = [e["event"] for e in logs if "uthorization" in repr(e) and e["log_level"] != "debug"]
    # Who may not read the group cannot look for the word to shut down either, and says so once; and
    # records come before the description of the topology is kept, which wants the same rights.
    beside = ("shutdown_requests_unreadable", "topology_not_stored")
    assert [event for event in told if event not in beside] == ["application_failed"]
    assert len(told) <= 1 + len(beside)
    secured.grant(tenant.name, lost)

    def counted() -> bool:
        return oracle.last_counts(tenant.read(tenant.output)) == stream.written

    with live(tenant.topology, tenant.settings) as again:
        wait_until(
            lambda: again.state is State.ERROR or counted(), seconds=PATIENCE_S, what="all counts"
        )
    oracle.check_exact(tenant.read(tenant.output), stream.written)
