"""The secured dev broker itself: who gets in, who does not, and what its files say."""

from __future__ import annotations

import itertools
import secrets
import stat
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.streams.cli.main import main
from headrace.streams.devbroker import DevBroker, DevBrokerError, DirectoryRefusedError
from headrace.streams.devbroker.cluster import BrokerNode, ClusterRecord, save
from headrace.streams.kafka.acls import Right
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until


def create(settings: dict[str, str], topic: str, *, copies: int = 1) -> KafkaError | None:
    admin = AdminClient({**settings, "log_level": 2})
    try:
        admin.create_topics([NewTopic(topic, 1, copies)])[topic].result(PATIENCE_S)
    except KafkaException as error:
        return error.args[0]
    return None


def test_the_administrator_may_do_everything_and_a_user_what_was_granted(
    secured: DevBroker,
) -> None:
    secured.grant("clerk")
    name = f"clerks-{secrets.token_hex(4)}"
    denied = create(secured.settings("clerk"), name)
    assert denied is not None
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert create(secured.settings(), f"admins-{name}") is None

    right = Right("Create", "topic", "clerks-", is_prefix=True)
    secured.grant("clerk", [right])
    # A node hears of a right a moment after it was given.
    wait_until(lambda: create(secured.settings("clerk"), name) is None, what="the right to create")
    secured.revoke("clerk", [right])
    others = (f"{name}-{number}" for number in itertools.count())
    wait_until(
        lambda: create(secured.settings("clerk"), next(others)) is not None, what="it is gone"
    )


def test_the_settings_of_a_user_are_a_file_that_others_cannot_read(secured: DevBroker) -> None:
    secured.grant("clerk")
    path = secured.settings_file("clerk")
    assert tomllib.loads(path.read_text()) == secured.settings("clerk")
    for private in (path, *secured.directory.joinpath("secure").iterdir()):
        assert stat.S_IMODE(private.stat().st_mode) & 0o077 == 0, private


def test_a_command_grants_and_prints_no_password(secured: DevBroker) -> None:
    arguments = ["grant", "teller", "--application", "bank", "--source", "in", "--output", "out"]
    told = CliRunner().invoke(main, ["broker", *arguments, "--dir", str(secured.directory)])
    assert told.exit_code == 0, told.output
    assert "Granted User:teller: Read on the topic in" in told.output
    assert "Granted User:teller: Write on transactional ids whose names begin" in told.output
    assert secured.settings("teller")["sasl.password"] not in told.output
    assert str(secured.directory / "teller.toml") in told.output


def test_an_unknown_user_is_named_with_the_command_that_makes_it(secured: DevBroker) -> None:
    with pytest.raises(DevBrokerError, match=r"no user nobody .*\n.*broker grant nobody"):
        secured.settings("nobody")


@pytest.mark.parametrize("secure", [True, False])
def test_a_directory_stays_secured_or_open(tmp_path: Path, secure: bool) -> None:
    save(tmp_path, ClusterRecord("id", (BrokerNode(1, 29_000, 29_001),), secure=secure))
    with pytest.raises(DirectoryRefusedError, match="with --secure" if secure else "without --s"):
        DevBroker(tmp_path, port=0, secure=not secure).start()


def test_an_open_broker_has_no_users(tmp_path: Path) -> None:
    save(tmp_path, ClusterRecord("id", (BrokerNode(1, 29_000, 29_001),)))
    assert DevBroker(tmp_path).settings("anybody") == {"bootstrap.servers": "localhost:29000"}
    with pytest.raises(DevBrokerError, match="broker start --secure"):
        DevBroker(tmp_path).grant("anybody")


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.slow
def test_three_secured_nodes_know_each_other(tmp_path: Path) -> None:
    with DevBroker(tmp_path / "three", nodes=3, port=0, secure=True) as cluster:
        assert create(cluster.settings(), "copied", copies=3) is None
