"""A producer that alone has a wrong password says so, and no time-out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge.handover.rows import make_producer
from headrace.streams.config.config import StreamsConfig
from headrace.streams.devbroker import DevBroker
from headrace.streams.kafka.acls import AccessError
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of
from tests.support.live import Live
from tests.support.topologies import key_count

WRONG = {"producer.sasl.password": "c4n4ry"}


def settings(secured: DevBroker, home: Path, **more: Any) -> dict[str, Any]:
    own = {"application.id": "credentials", "state.dir": str(home)}
    return {**secured.settings(), **own, **WRONG, **more}


def require_told(error: BaseException) -> None:
    assert isinstance(error, AccessError)
    assert "rejects User:admin" in str(error)
    assert "correct sasl.mechanism, sasl.username and sasl.password" in str(error)
    assert "c4n4ry" not in str(error)
    assert exit_code_of(error) is ExitCode.ACCESS


def test_the_producer_of_a_hand_over_is_not_let_in(secured: DevBroker, tmp_path: Path) -> None:
    config = StreamsConfig.parse(settings(secured, tmp_path))
    producer = make_producer({**config.producer_config("credentials"), "transactional.id": "t"})
    with pytest.raises(AccessError) as raised:
        producer.init()
    require_told(raised.value)
    producer.close()


def test_the_producer_of_a_worker_is_not_let_in(secured: DevBroker, tmp_path: Path) -> None:
    secured_topics(secured)
    more = {"processing.guarantee": "exactly_once_v2"}
    require_told(Live(key_count(), settings(secured, tmp_path, **more)).failure())


def secured_topics(secured: DevBroker) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    settings: dict[str, Any] = {**secured.settings()}
    admin = AdminClient(settings)
    for made in admin.create_topics([NewTopic("in", 1), NewTopic("out", 1)]).values():
        made.exception(60)
