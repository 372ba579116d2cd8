"""What nobody is to read is read by clients alone."""

from __future__ import annotations

import dataclasses
import pickle
import traceback
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner

from headrace.streams import KafkaStreams
from headrace.streams.cli import main as cli
from headrace.streams.config.client_names import CONSUMER, PRODUCER, SHARED, TUNING
from headrace.streams.config.config import StreamsConfig, table
from headrace.streams.config.secrets import SECRET_NAMES, Secret, guarded, revealed
from headrace.streams.errors import ConfigError
from headrace.streams.kafka import clients
from headrace.streams.kafka.clients import BrokerState, new_consumer, new_producer
from headrace.streams.kafka.schema_registry import SchemaRegistry
from headrace.streams.supervisor.channel import Launch
from headrace.topology import StreamsBuilder
from headrace.topology.errors import RegistryError

CANARY = "c4n4ry"
BASE: dict[str, object] = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
SECRETS: dict[str, object] = {
    **{name: f"{CANARY}-{name}" for name in SECRET_NAMES},
    "producer.sasl.password": f"{CANARY}-of-the-producer",
}
NOT_TAKEN = {
    "sasl.jaas.config": f"password={CANARY}",
    "sasl.pasword": CANARY,
    "ssl.truststore.password": CANARY,
    "consumer.ssl.keystore.key": CANARY,
    "my.token": CANARY,
}


def shown(thing: Any) -> str:
    """All that a debugger or a reporter may show of an object."""
    texts = [repr(thing), str(thing), f"{thing}"]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        texts.append(repr(dataclasses.asdict(thing)))
    held = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        names = kind.__dict__.get("__slots__", ())
        held |= {n: getattr(thing, n, None) for n in ([names] if isinstance(names, str) else names)}
    if not isinstance(thing, Secret):
        texts += [repr(value) for value in held.values()]
    return "\n".join(texts)


def with_locals(error: BaseException) -> str:
    """A traceback as reporters print it, from the first of our own frames on."""
    found = error.__traceback__
    while found is not None and "/tests/" in found.tb_frame.f_code.co_filename:
        found = found.tb_next
    told = traceback.TracebackException(type(error), error, found, capture_locals=True)
    return "".join(told.format())


def test_every_setting_is_either_secret_or_the_runtime_s_own() -> None:
    assert SECRET_NAMES <= SHARED | TUNING | CONSUMER | PRODUCER
    own = {own.name: "x" for own in table()}
    assert guarded(own) == own
    public = dict.fromkeys(("sasl.username", "ssl.ca.location", "consumer.fetch.min.bytes"), "x")
    assert guarded(public) == public
    assert set(map(repr, guarded({**SECRETS, **NOT_TAKEN}).values())) == {"***"}


def test_no_secret_shows_in_settings_or_applications_and_clients_get_it() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    app = KafkaStreams(builder.build(), {**BASE, **SECRETS})
    derived = app.config._clients
    for thing in (app, app.config, derived, app.config.consumer_config("i"),
                  app.config.producer_config(None), app.config.admin_config(),
                  Launch(target="a:b", settings=guarded(SECRETS))):  # fmt: skip
        assert CANARY not in shown(thing)
    assert revealed(app.config.admin_config())["sasl.password"] == SECRETS["sasl.password"]


@pytest.mark.parametrize("client", ["Consumer", "Producer"])
def test_clients_get_what_nobody_else_sees(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = StreamsConfig.parse({**BASE, **SECRETS})
    made: list[dict[str, Any]] = []

    def make(given: dict[str, Any]) -> Any:
        made.append(given)
        raise RuntimeError

    monkeypatch.setattr(confluent_kafka, client, make)
    monkeypatch.setattr(clients, f"Bounded{client}", make)
    finished, new = {
        "Consumer": (config.consumer_config("i"), new_consumer),
        "Producer": (config.producer_config(None), new_producer),
    }[client]
    with pytest.raises(RuntimeError) as raised:
        new(finished, BrokerState())  # type: ignore[operator]
    name = "sasl.password" if client == "Consumer" else "producer.sasl.password"
    assert made[0]["sasl.password"] == SECRETS[name]
    assert all(not isinstance(value, Secret) for value in made[0].values())
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)][1:]
    ours = [frame for frame in frames if frame.f_code is not make.__code__]
    assert ours
    assert CANARY not in "".join(repr(frame.f_locals) for frame in ours)


@pytest.mark.parametrize("wrong", [{name: value} for name, value in NOT_TAKEN.items()])
def test_no_secret_shows_in_errors_about_settings(wrong: dict[str, object]) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with pytest.raises(ConfigError) as raised:
        KafkaStreams(builder.build(), {**BASE, **SECRETS, **wrong, "poll.ms": -1})
    text = with_locals(raised.value)
    assert "poll.ms" in text
    assert CANARY not in text


def test_settings_go_to_executors_with_their_secrets() -> None:
    config = pickle.loads(pickle.dumps(StreamsConfig.parse({**BASE, **SECRETS})))
    assert revealed(config.admin_config())["sasl.password"] == SECRETS["sasl.password"]


@pytest.mark.parametrize("text", [f"sasl.password:{CANARY}", f"sasl.password {CANARY}"])
def test_a_setting_that_is_written_wrongly_is_not_repeated(text: str) -> None:
    done = CliRunner().invoke(cli.main, ["check", "x:y", "--set", text])
    assert done.exit_code == 2
    assert "the option that starts with 'sasl.password' is not NAME=VALUE" in " ".join(
        done.output.split()
    )
    assert CANARY not in done.output


@pytest.mark.parametrize(
    "url",
    [
        f"http://ann:{CANARY}@127.0.0.1:1",
        f"http://{CANARY}@127.0.0.1:1",
        f"http://127.0.0.1:1/?token={CANARY}",
        f"http://127.0.0.1:2,http://ann:{CANARY}@127.0.0.1:1",
        f"ann:{CANARY}@127.0.0.1:1",
        f"http://ann:{CANARY}@[::1",
    ],
)
def test_the_user_of_a_registry_s_url_shows_nowhere(url: str) -> None:
    settings = {"basic.auth.user.info": f"bob:{CANARY}"} if "@" not in url else {}
    settings |= {"timeout": 1, "max.retries": 0}

    def ask() -> None:
        registry = SchemaRegistry(url, settings)
        mine = {name: value for name, value in vars(registry).items() if name != "_client"}
        assert CANARY not in repr(mine)
        assert pickle.loads(pickle.dumps(registry))._url.reveal() == url
        registry.schema(1)

    with pytest.raises(RegistryError, match="schema registry at") as raised:
        ask()
    assert CANARY not in "".join(traceback.format_exception(raised.value))
    assert CANARY not in with_locals(raised.value)
