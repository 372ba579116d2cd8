"""Brokers that cannot be reached, cannot be trusted, or do not let the application in."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from structlog.testing import capture_logs
from structlog.typing import EventDict

from headrace.streams import KafkaStreams
from headrace.streams.app import State
from headrace.streams.devbroker import DevBroker
from headrace.streams.devbroker.cluster import choose_base
from headrace.streams.errors import ConfigError, FatalClientError, StopRequestedError
from headrace.streams.kafka.acls import AccessError
from headrace.streams.kafka.clients import BrokerState
from headrace.streams.kafka.connectivity import BrokerMonitor, reach
from headrace.streams.kafka.unreached import Unreached
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of, is_crash
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka
from tests.support.live import Live, live
from tests.support.patience import PATIENCE_S
from tests.support.processes import IMPORT_PATH, wait_until

CLOSED = "localhost:1"
UNRESOLVABLE = "no-such-host.invalid:9092"


def topology() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("in", key=serdes.string, value=serdes.string)
    words.group_by_key().count(store="counts").to_stream().to("out")
    return builder.build()


def settings(home: Path, **more: Any) -> dict[str, Any]:
    return {
        "application.id": "contact",
        "bootstrap.servers": CLOSED,
        "state.dir": home,
        "processing.guarantee": "exactly_once_v2",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def named(logs: list[EventDict], event: str) -> list[EventDict]:
    return [entry for entry in logs if entry["event"] == event]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("servers", "said"),
    [
        (CLOSED, ["localhost:1, tried to connect", "Connection refused"]),
        (UNRESOLVABLE, ["no-such-host.invalid:9092", "Failed to resolve"]),
        (f"{CLOSED},{UNRESOLVABLE}", ["localhost:1", "refused", "no-such-host", "resolve"]),
    ],
)
def test_an_application_waits_for_brokers_and_says_what_it_tried(
    tmp_path: Path, servers: str, said: list[str]
) -> None:
    with capture_logs() as logs:
        app = Live(topology(), settings(tmp_path, bootstrap_servers=servers))
        app.app.start()
        wait_until(lambda: bool(named(logs, "brokers_not_reached")))
        assert app.state is State.CONNECTING
        app.app.close()
    (first, *_) = named(logs, "brokers_not_reached")
    assert first["log_level"] == "warning"
    assert first["servers"] == servers
    assert [part for part in said if part not in first["reason"]] == []
    assert first["advice"]
    assert first["next"].startswith("retries until a broker answers; logged")
    assert app.states == [State.CONNECTING, State.PENDING_SHUTDOWN, State.NOT_RUNNING]


@pytest.mark.slow
def test_the_warning_comes_again_with_back_off() -> None:
    stop = threading.Event()
    with capture_logs() as logs:
        brokers = BrokerMonitor({"bootstrap.servers": CLOSED})

        def wait() -> None:
            with pytest.raises(StopRequestedError):
                brokers.reach(stop.is_set)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: len(named(logs, "brokers_not_reached")) == 3)
        stop.set()
        thread.join()
    first, second, third = (entry["waited_s"] for entry in named(logs, "brokers_not_reached"))
    assert third - second > 1.5 * (second - first)


@pytest.mark.slow
def test_whoever_says_it_for_several_processes_leaves_one_of_them_a_line_for_debugging() -> None:
    # Whatever a test before this one has configured: at "info", debugging is not captured.
    structlog.reset_defaults()
    stop, told = threading.Event(), []

    def say(unreached: Unreached) -> bool:
        told.append(unreached)
        stop.set()
        return True

    with capture_logs() as logs, pytest.raises(StopRequestedError):
        BrokerMonitor({"bootstrap.servers": CLOSED}, report=say).reach(stop.is_set)
    assert [unreached.servers for unreached in told] == [CLOSED]
    assert [entry["log_level"] for entry in named(logs, "brokers_not_reached")] == ["debug"]


@pytest.mark.slow
def test_a_mistake_beside_the_worker_ends_it_and_does_not_leave_it_waiting() -> None:
    """Seen: nobody told the worker that the brokers were back, and it stood for a minute."""

    def say(_: Unreached) -> bool:
        raise OSError("nobody reads the reports")

    brokers = BrokerMonitor({"bootstrap.servers": CLOSED}, report=say)
    vars(brokers)["_was_reached"] = True
    brokers.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    def is_told() -> bool:
        try:
            brokers.turn()
        except OSError as error:
            return str(error) == "nobody reads the reports"
        return False

    wait_until(is_told)
    brokers.close()


@pytest.mark.slow
def test_a_command_says_that_a_silent_broker_does_not_answer_before_it_gives_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that takes connections and never answers may only be slow."""
    with socket.create_server(("localhost", 0)) as silent:
        servers = f"localhost:{silent.getsockname()[1]}"
        with pytest.raises(FatalClientError, match=f"no broker of {servers} answers within"):
            reach({"bootstrap.servers": servers}, within_s=0.5)
    said = capsys.readouterr().err
    assert f"no broker of {servers} answers within" in said
    assert "waiting for up to 2 s" in said
    assert len([line for line in said.splitlines() if "no broker" in line]) == 1


@pytest.mark.slow
def test_one_broker_that_refuses_does_not_end_the_wait_for_another_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("localhost", 0)) as silent:
        servers = f"{CLOSED},localhost:{silent.getsockname()[1]}"
        with pytest.raises(FatalClientError, match="Connection refused"):
            reach({"bootstrap.servers": servers}, within_s=0.5)
    assert "waiting for up to 2 s" in capsys.readouterr().err


def test_a_line_of_a_clients_log_is_an_event_unless_a_call_raises_the_same() -> None:
    with capture_logs() as logs:
        heard = BrokerState()
        heard.on_log(logging.WARNING, "PARTCNT", "[thrd:main]: the count is another one")
        heard.on_log(logging.WARNING, "GETPID", "[thrd:main]: load in progress: retrying")
        heard.on_log(
            logging.ERROR,
            "ADDPARTS",
            '[thrd:main]: C/1: Failed to add partition "out" [0] to transaction: Broker: Topic '
            "authorization failed",
        )
    assert [entry["facility"] for entry in named(logs, "client_warned")] == ["PARTCNT"]
    assert heard.denied_topic == "out"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"security.protocol": "SLL"}, 'Invalid value "SLL"'),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/ca.pem"}, "/ca.pem does not exist"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-999",
             "sasl.username": "u", "sasl.password": "hidden"},
            "SCRAM-SHA-999",
        ),
        ({"security.protocol": "SASL_PLAINTEXT"}, "set sasl.mechanism"),
        ({"consumer.fetch.min.bytes": "many"}, "fetch.min.bytes"),
        ({"producer.linger.ms": -5}, "-5"),
    ],
)  # fmt: skip
def test_settings_that_a_client_does_not_take_are_found_before_anything_runs(
    tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        KafkaStreams(topology(), {**settings(tmp_path), **more})
    assert len(raised.value.problems) == 1
    assert said in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_the_check_of_settings_leaves_no_thread_behind(tmp_path: Path) -> None:
    KafkaStreams(topology(), settings(tmp_path))
    before = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        KafkaStreams(topology(), settings(tmp_path))
    assert len(os.listdir("/proc/self/task")) <= before


APP = """
from headrace.streams import KafkaStreams, serdes
from headrace.topology import StreamsBuilder

builder = StreamsBuilder()
words = builder.stream("in", key=serdes.string, value=serdes.string)
words.group_by_key().count(store="counts").to_stream().to("out")
app = KafkaStreams(builder.build(), {"application.id": "tools", "bootstrap.servers": "localhost:1"})
"""
COMMANDS = {
    "topics": ["topics", "create", "in"],
    "check": ["check", "app.py:app", "--deployed"],
    "reset": ["reset", "app.py:app", "--yes"],
    "changelog": ["changelog", "restore-from-local", "app.py:app", "--dry-run"],
    "plan": ["backfill", "app.py:app", "--dry-run"],
    "drop": ["backfill", "app.py:app", "--drop", "--id", "b"],
    "backfill": ["backfill", "app.py:app"],
}


def each_command(home: Path, *more: str) -> dict[str, tuple[int, str]]:
    """Run all commands at once; what each ended with, and its error output."""
    (home / "app.py").write_text(APP)
    started = {
        name: subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                "from headrace.streams.cli.main import main; main()",
                *line,
                *more,
            ],
            cwd=home,
            env={**os.environ, "PYTHONPATH": IMPORT_PATH},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, line in COMMANDS.items()
    }
    ended = {name: process.communicate(timeout=PATIENCE_S)[1] for name, process in started.items()}
    return {name: (started[name].returncode, said) for name, said in ended.items()}


@pytest.mark.slow
def test_each_command_says_that_no_broker_answers(tmp_path: Path) -> None:
    for name, (code, said) in each_command(
        tmp_path, "--set", f"bootstrap.servers={CLOSED}"
    ).items():
        assert code == ExitCode.CLIENT, (name, said)
        assert "no broker of localhost:1 answers" in said, name
        assert "Connection refused" in said, name
        assert "Traceback" not in said, name
        assert len(said.splitlines()) == 1, (name, said)


def test_each_command_says_that_the_password_is_wrong(secured: DevBroker, tmp_path: Path) -> None:
    settings_file = str(secured.settings_file("admin"))
    wrong = ["--config", settings_file, "--set", "sasl.password=guessed"]
    for name, (code, said) in each_command(tmp_path, *wrong).items():
        assert code == ExitCode.ACCESS, (name, said)
        assert "rejects User:admin" in said, name
        assert "invalid credentials" in said, name
        assert "guessed" not in said, name
        assert len(said.splitlines()) == 1, (name, said)


def other_authority(secured: DevBroker, home: Path) -> dict[str, str]:
    from headrace.streams.devbroker.security import Security

    stranger = Security(home / "stranger")
    stranger.prepare()
    return {**secured.settings(), "ssl.ca.location": str(stranger.authority)}


def wrong_password(secured: DevBroker, home: Path) -> dict[str, str]:
    return {**secured.settings(), "sasl.password": "guessed"}


def wrong_mechanism(secured: DevBroker, home: Path) -> dict[str, str]:
    return {**secured.settings(), "sasl.mechanism": "PLAIN"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (wrong_password, "rejects User:admin"),
        (wrong_mechanism, "supported mechanisms: SCRAM-SHA-512"),
        (other_authority, "certificate of the broker localhost"),
    ],
)
def test_what_a_person_has_to_correct_ends_the_application_at_once(
    secured: DevBroker,
    tmp_path: Path,
    wrong: Callable[[DevBroker, Path], dict[str, str]],
    said: str,
) -> None:
    app = Live(topology(), {**settings(tmp_path), **wrong(secured, tmp_path)})
    error = app.failure()
    assert isinstance(error, AccessError)
    assert said in str(error)
    assert "guessed" not in str(error)
    assert app.states[0] is State.CONNECTING
    assert State.REBALANCING not in app.states
    code = exit_code_of(error)
    assert code is ExitCode.ACCESS
    assert not is_crash(code)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT"])
def test_another_security_protocol_is_a_broker_that_closes(
    secured: DevBroker, protocol: str
) -> None:
    """Nothing says why; so what was tried is told, and what it may be."""
    with pytest.raises(FatalClientError, match=r"localhost:\d+, tried .*(?i:closed|disconnect)"):
        reach({**secured.settings(), "security.protocol": protocol}, within_s=3)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_brokers_that_go_away_for_longer_than_calls_are_repeated_end_nothing(
    tmp_path: Path,
) -> None:
    port = choose_base(1)
    broker = DevBroker(tmp_path / "broker", port=port)
    bootstrap = broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        for made in admin.create_topics([NewTopic("in", 1), NewTopic("out", 1)]).values():
            made.result(PATIENCE_S)
        kafka.write(bootstrap, "in", [(b"a", b"1")] * 10)
        chosen = settings(tmp_path / "state", bootstrap_servers=bootstrap, task_timeout_ms=8000)
        with capture_logs() as logs, live(topology(), chosen) as app:
            # Killed before the commit's markers are written, the broker may lose them for good, as
            # the topic has one replica: docs/operations.md, "A transaction that never ends".
            app.wait(lambda: _last_count(bootstrap) == 10, what="counted")
            broker.kill(1)
            app.wait(lambda: app.state is State.CONNECTING, what="connecting")
            waits = "brokers_not_reached"
            app.wait(lambda: any(e["waited_s"] > 12 for e in named(logs, waits)), what=waits)
            DevBroker(tmp_path / "broker", port=port).start()
            kafka.write(bootstrap, "in", [(b"a", b"1")] * 10)
            # A commit whose answer is lost while brokers come back counts for nobody, so the
            # outputs say how far it is.
            app.wait(lambda: _last_count(bootstrap) == 20, what="all counted")
            assert named(logs, "brokers_reached")
            assert app.state is not State.CONNECTING
        assert _last_count(bootstrap) == 20
    finally:
        broker.stop()


def _last_count(bootstrap: str) -> int:
    """0 too while a broker that has just started does not know its topics yet."""
    outputs = kafka.read(bootstrap, "out")
    return int.from_bytes(outputs[-1].value or b"", "big") if outputs else 0


def test_the_settings_file_of_a_user_reaches_the_broker(secured: DevBroker) -> None:
    reach(tomllib.loads(secured.settings_file("admin").read_text()))
