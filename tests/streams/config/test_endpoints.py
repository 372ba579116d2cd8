"""Where a host can be asked, in the client ids of its consumers."""

from __future__ import annotations

import re

import pytest

from headrace import StreamsConfig
from headrace.streams.config.endpoints import endpoint_of, with_endpoint
from headrace.streams.errors import ConfigError

GIVEN = {"application.id": "shop", "bootstrap.servers": "h:1"}


@pytest.mark.parametrize(
    "where", ["10.0.0.7:9464", "shop-0.shop.svc:80", "[fe80::1]:65535", "my_host_at_home:1"]
)
@pytest.mark.parametrize("client_id", ["shop-consumer", "a_at_b", "ü_at_1.2.3.4_3a80", ""])
def test_an_endpoint_is_read_as_it_was_written(client_id: str, where: str) -> None:
    written = with_endpoint(client_id, where)
    assert endpoint_of(written) == where
    assert re.fullmatch(r"[a-zA-Z0-9._-]*", written.removeprefix(client_id))


def test_a_client_id_of_others_has_none() -> None:
    assert with_endpoint("shop", None) == "shop"
    for other in ("shop-consumer", "look_at_me", "x_at_", "x_at__3a80", "x_at_h_3a99999999"):
        assert endpoint_of(other) is None


def test_the_consumer_alone_carries_it_whatever_its_client_id_is() -> None:
    config = StreamsConfig.parse({**GIVEN, "application.server": "h:80"})
    assert config.consumer_config("w")["client.id"] == "shop-consumer_at_h_3a80"
    assert config.restore_config()["client.id"] == "shop-restore"
    assert config.producer_config(None)["client.id"] == "shop-producer"
    config = StreamsConfig.parse(
        {**GIVEN, "application.server": "h:80", "consumer.client.id": "mine"}
    )
    assert config.consumer_config("w")["client.id"] == "mine_at_h_3a80"
    assert StreamsConfig.parse(GIVEN).consumer_config("w")["client.id"] == "shop-consumer"


@pytest.mark.parametrize("wrong", ["h", "h:", ":80", "h:0", "h:70000", "http://h:80", "a b:1", 80])
def test_what_is_no_endpoint_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT, as other hosts"):
        StreamsConfig.parse({**GIVEN, "application.server": wrong})
