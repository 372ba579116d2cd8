"""Settings that a real broker does not take end the application at once, by their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.errors import ConfigError
from headrace.topology import StreamsBuilder
from tests.support import kafka
from tests.support.live import settings_of
from tests.support.topics import Topics


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("producer_transaction_timeout_ms", 86_400_000, "transaction.max.timeout.ms"),
        ("consumer_session_timeout_ms", 3_600_000, "group.max.session.timeout.ms"),
    ],
)
def test_a_setting_that_the_broker_refuses_is_named(
    setting: str, value: int, named: str, topics: Topics, tmp_path: Path
) -> None:
    builder = StreamsBuilder()
    topic = topics.create("in")
    builder.stream(topic).to(topics.create("out"))
    kafka.write(topics.bootstrap, topic, [(b"key", b"1")])
    more = {setting: value, "consumer_max_poll_interval_ms": 3_600_000}
    with pytest.raises(ConfigError, match=re.escape(named)):
        KafkaStreams(builder.build(), settings_of(topics, tmp_path, **more)).run()
