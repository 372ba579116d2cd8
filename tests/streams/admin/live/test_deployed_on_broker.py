"""An application that would lose what is deployed does not start, on a real broker."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from headrace.streams.cli.main import main
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import TopologyChangedError
from headrace.streams.kafka.acls import GroupDeniedError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.deployed import DeployedTopology, topology_group
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.plan import plan_application
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of, is_crash
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics


class Upgraded:
    """A counting application in several versions."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.topics = topics
        self.bootstrap = topics.bootstrap
        self.directory = directory
        self.input = topics.create("in")
        self.settings = settings_of(topics, directory)
        self.group = self.settings["application.id"]
        self.tp = TopicPartition(self.input, 0)

    def version(self, *, steps: int = 0, store: str | None = None) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream(self.input, key=serdes.string, value=serdes.string)
        for _ in range(steps):
            stream = stream.filter(lambda k, v: True)
        stream.group_by_key().count(store=store)
        return builder.build()

    def run(self, topology: Topology, **more: Any) -> None:
        with live(topology, self.settings | more) as app:
            app.wait_running()

    def refused(self, topology: Topology) -> TopologyChangedError:
        error = Live(topology, self.settings).failure()
        assert isinstance(error, TopologyChangedError), error
        return error

    def admin(self) -> GroupAdmin:
        return GroupAdmin({"bootstrap.servers": self.bootstrap}, timeout_s=PATIENCE_S)

    def kept(self) -> CommittedOffset | None:
        offsets = self.admin().committed(topology_group(self.group), decided=True)
        return offsets.get(self.tp)

    def command(self, name: str, *arguments: str, steps: int = 0) -> Result:
        file = self.directory / f"app_{uuid.uuid4().hex}.py"
        file.write_text(
            "from headrace.streams import KafkaStreams, serdes\n"
            "from headrace.topology import StreamsBuilder\n"
            "builder = StreamsBuilder()\n"
            f"stream = builder.stream({self.input!r}, key=serdes.string, value=serdes.string)\n"
            f"for _ in range({steps}):\n"
            "    stream = stream.filter(lambda k, v: True)\n"
            "stream.group_by_key().count()\n"
            f"app = KafkaStreams(builder.build(), {self.settings!r})\n"
        )
        result = CliRunner().invoke(main, [name, f"{file}:app", *arguments])
        print(result.output)
        return result


@pytest.fixture
def app(topics: Topics, tmp_path: Path) -> Upgraded:
    """An application that has counted a record in a store with a generated name."""
    made = Upgraded(topics, tmp_path)
    kafka.write(made.bootstrap, made.input, [(b"k", b"v")])
    with live(made.version(), made.settings) as running:
        running.wait_processed(1)
    return made


def test_a_first_start_that_has_stored_nothing_does_not_bind_the_next(
    topics: Topics, tmp_path: Path
) -> None:
    app = Upgraded(topics, tmp_path)
    app.settings["consumer.session.timeout.ms"] = 6_000
    kafka.write(app.bootstrap, app.input, [(b"text", b"v")])

    def version(key: Any) -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream(app.input, key=key, value=serdes.string)
        stream.group_by_key().count(store="n")
        return builder.build()

    assert Live(version(serdes.json), app.settings).failure() is not None
    assert app.kept() is not None
    with capture_logs() as events, live(version(serdes.string), app.settings) as running:
        running.wait_processed(1)
    (event,) = [one for one in events if one["event"] == "topology_changed"]
    assert (event["refused"], event["accepted"]) == (False, True)
    # Now it has counted, so its description binds.
    assert "the keys of store n were written by serde string" in str(
        app.refused(version(serdes.json))
    )


def test_a_start_that_would_lose_a_store_is_refused_and_nothing_is_made(app: Upgraded) -> None:
    error = app.refused(app.version(steps=1))
    old, new = (f"KSTREAM-AGGREGATE-STATE-STORE-000000000{number}" for number in (1, 2))
    assert f"{old} is called {new} now" in str(error)
    assert f"topology.change.accept={error.code}" in str(error)
    assert app.topics.partitions(f"{app.group}-{old}-changelog") == 1
    assert app.topics.partitions(f"{app.group}-{new}-changelog") == 0
    assert exit_code_of(error) is ExitCode.CONFIGURATION
    assert not is_crash(exit_code_of(error))
    # What is deployed is still what it was.
    app.run(app.version())


def test_the_name_that_the_message_gives_is_the_way_out(app: Upgraded) -> None:
    app.run(app.version(steps=1, store="KSTREAM-AGGREGATE-STATE-STORE-0000000001"))


def test_a_change_is_accepted_by_its_own_code_and_by_no_other(app: Upgraded) -> None:
    error = app.refused(app.version(steps=1))
    app.run(app.version(steps=1), **{"topology.change.accept": error.code})
    # It is what is deployed from now on, and the setting may stay.
    app.run(app.version(steps=1))
    app.settings["topology.change.accept"] = error.code
    assert app.refused(app.version(steps=2)).code != error.code


def test_a_change_that_loses_nothing_starts_and_becomes_what_is_deployed(
    app: Upgraded,
) -> None:
    before = app.kept()
    topology = app.version()
    builder = StreamsBuilder()
    stream = builder.stream(app.input, key=serdes.string, value=serdes.string).group_by_key()
    stream.count()
    stream.reduce(max, store="largest")
    app.run(builder.build())
    after = app.kept()
    assert before is not None
    assert after is not None
    assert after.offset == before.offset + 1
    described = Deployment.decode(after.metadata)
    assert described is not None
    assert [store.name for store in described.stores][-1] == "largest"
    app.run(topology)


def test_a_start_without_a_change_writes_the_same_again(app: Upgraded) -> None:
    """So that it does not expire."""
    before = app.kept()
    app.run(app.version())
    assert before is not None
    assert app.kept() == before


def test_another_first_input_does_not_hide_what_is_deployed(app: Upgraded) -> None:
    other = app.topics.create("in")
    builder = StreamsBuilder()
    builder.stream(other).to(app.input)
    stream = builder.stream(app.input, key=serdes.string, value=serdes.string)
    stream.group_by_key().count(store="KSTREAM-AGGREGATE-STATE-STORE-0000000001")
    app.run(builder.build())
    error = app.refused(app.version(steps=1))
    assert "is called" in str(error)


def test_the_command_says_what_a_start_would(app: Upgraded) -> None:
    same = app.command("check", "--deployed")
    assert (same.exit_code, "can be started" in same.output) == (0, True)
    assert same.output.endswith("The code of functions is not compared.\n")
    changed = app.command("check", "--deployed", steps=1)
    assert changed.exit_code == 1
    error = app.refused(app.version(steps=1))
    assert all(f"Refused: {change}" in changed.output for change in error.changes)
    assert f"topology.change.accept={error.code}" in changed.output


def test_the_command_says_that_a_source_has_grown(app: Upgraded) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions

    admin = AdminClient({"bootstrap.servers": app.bootstrap})
    admin.create_partitions([NewPartitions(app.input, 2)])[app.input].result(PATIENCE_S)
    grown = app.command("check", "--deployed")
    assert grown.exit_code == 1
    assert "the source grew" in grown.output


def test_an_application_that_never_ran_has_nothing_deployed(topics: Topics, tmp_path: Path) -> None:
    done = Upgraded(topics, tmp_path).command("check", "--deployed")
    assert done.exit_code == 0
    assert "The application has not run" in done.output


def test_the_command_describes_what_kafka_streams_has_left(topics: Topics, tmp_path: Path) -> None:
    made = Upgraded(topics, tmp_path)
    store = "KSTREAM-AGGREGATE-STATE-STORE-0000000001"
    topics.create_named(f"{made.group}-{store}-changelog", config={"cleanup.policy": "compact"})
    offset = CommittedOffset(0, OffsetMetadata(5).encode())
    made.admin().set_offsets(made.group, {made.tp: offset})
    done = made.command("check", "--deployed")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines == [
        f"Kafka Streams ran {made.group} and committed offsets of 1 input partitions.",
        f"Stores with its topics: {store}.",
        "Serdes are not compared: the topics of Kafka Streams do not name them.",
        "The application can be started.",
    ]
    member = confluent_kafka.Consumer(
        {"bootstrap.servers": made.bootstrap, "group.id": made.group, "enable.auto.commit": False}
    )
    member.subscribe([made.input])
    wait_until(lambda: member.poll(0.1) is None and member.assignment(), what="it has joined")
    done = made.command("check", "--deployed")
    member.close()
    assert done.exit_code == 1
    refused = f"Refused: Kafka Streams committed the offsets of the group {made.group}, which has"
    assert refused in done.output


def test_after_a_reset_any_topology_may_start(app: Upgraded) -> None:
    kafka.write(app.bootstrap, app.input, [(b"a", b"x")])
    app.refused(app.version(steps=1))
    assert app.command("reset", "--yes").exit_code == 0
    app.run(app.version(steps=1))


class _Denied:
    """A cluster that gives no right on the group."""

    def __getattr__(self, _: str) -> Any:
        def refuse(*_: object, **__: object) -> Any:
            raise GroupDeniedError("no right")

        return refuse


class _Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, _: str) -> Any:
        return lambda event, **__: self.events.append(event)


def test_without_a_right_on_the_group_it_runs_unguarded_and_says_so() -> None:
    config = StreamsConfig.parse({"application.id": "a", "bootstrap.servers": "localhost:1"})
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().count(store="counts")
    plans = plan_application(builder.build(), config)
    log: Any = _Log()
    cluster: Any = _Denied()
    deployed = DeployedTopology(config, plans, cluster, log)
    deployed.check()
    with deployed:
        deployed.running()
    assert log.events == ["topology_not_read", "topology_not_stored"]
