"""`headrace topics create`, against a real broker and against none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support.topics import Topics

HEADRACE = Path(sys.executable).with_name("headrace")


def _create(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [HEADRACE, "topics", "create", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_topics_are_created_with_their_partitions(topics: Topics) -> None:
    one, two = topics.name("one"), topics.name("two")
    options = ("--partitions", "3", "--bootstrap-servers", topics.bootstrap)
    done = _create(one, two, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Created: {one} (3 partitions)\nCreated: {two} (3 partitions)\n"
    assert (topics.partitions(one), topics.partitions(two)) == (3, 3)


@pytest.mark.parametrize(
    "options", [(), ("--partitions", "2"), ("--partitions", "3", "--any-count")]
)
def test_a_topic_that_fits_is_left_as_it_is(topics: Topics, options: tuple[str, ...]) -> None:
    """So the same line can be run again."""
    name = topics.create(partitions=2)
    done = _create(name, *options, "--bootstrap-servers", topics.bootstrap)
    assert (done.returncode, done.stdout) == (0, f"Exists: {name} (2 partitions)\n"), done.stderr


def test_another_partition_count_is_refused_and_nothing_is_created(topics: Topics) -> None:
    name, new = topics.create(partitions=2), topics.name("new")
    done = _create(new, name, "--partitions", "3", "--bootstrap-servers", topics.bootstrap)
    assert done.returncode == 1
    assert f"{name} has 2" in done.stderr
    assert (topics.partitions(name), topics.partitions(new)) == (2, 0)


def test_a_name_that_kafka_refuses_is_named(topics: Topics) -> None:
    done = _create("no spaces", "--bootstrap-servers", topics.bootstrap)
    assert done.returncode == 1
    assert "cannot create no spaces" in done.stderr


@pytest.mark.slow
def test_where_no_broker_answers_the_way_to_one_is_told() -> None:
    done = _create("any", "--bootstrap-servers", "localhost:1")
    assert done.returncode == ExitCode.CLIENT
    assert "localhost:1, tried to connect" in done.stderr
    assert "headrace broker start" in done.stderr
    assert "Traceback" not in done.stderr


def _set(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [HEADRACE, "topics", "set", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_config_is_set_and_the_others_stay(topics: Topics) -> None:
    name = topics.create(config={"cleanup.policy": "compact"})
    done = _set(name, "retention.ms=77", "--bootstrap-servers", topics.bootstrap)
    assert (done.returncode, done.stdout) == (0, f"Set: {name} (retention.ms=77)\n"), done.stderr
    admin = GroupAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=20)
    (facts,) = admin.describe([name]).values()
    assert (facts.retention_ms, facts.cleanup_policy) == (77, {"compact"})


@pytest.mark.parametrize(
    ("config", "said"),
    [("retention.ms=soon", "cannot set configs of"), ("retention.ms", "is not CONFIG=VALUE")],
)
def test_what_is_no_config_is_named(topics: Topics, config: str, said: str) -> None:
    name = topics.create()
    done = _set(name, config, "--bootstrap-servers", topics.bootstrap)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topic_that_is_not_there_has_no_configs(topics: Topics) -> None:
    name = topics.name("none")
    done = _set(name, "retention.ms=1", "--bootstrap-servers", topics.bootstrap)
    assert done.returncode == 1
    assert f"cannot set configs of {name}" in done.stderr


def test_what_an_application_reads_as_a_table_is_compacted(topics: Topics, tmp_path: Path) -> None:
    names = {kind: topics.name(kind) for kind in ("orders", "cards", "out")}
    module = tmp_path / f"tables_{topics.name('app').replace('-', '_')}.py"
    module.write_text(
        "from headrace import KafkaStreams, StreamsBuilder\n"
        "builder = StreamsBuilder()\n"
        f"cards = builder.table({names['cards']!r}, store='cards')\n"
        f"joined = builder.stream({names['orders']!r}).join(cards, lambda order, card: card)\n"
        f"joined.to({names['out']!r})\n"
        "app = KafkaStreams(builder.build(), {'application.id': 'a', "
        f"'bootstrap.servers': {topics.bootstrap!r}}})\n"
    )
    done = _create("--app", f"{module}:app")
    assert done.returncode == 0, done.stderr
    cards = f"Created: {names['cards']} (1 partition, compacted, as it is read as a table)"
    assert cards in done.stdout.splitlines()
    assert f"Created: {names['orders']} (1 partition)" in done.stdout.splitlines()
    admin = GroupAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=30)
    policies = {k: admin.describe([n])[n].cleanup_policy for k, n in names.items()}
    assert policies == {"orders": {"delete"}, "cards": {"compact"}, "out": {"delete"}}
    assert f"Exists: {names['cards']} (1 partition)" in _create("--app", f"{module}:app").stdout
    options = ("--bootstrap-servers", topics.bootstrap)
    command = [HEADRACE, "topics", "set", names["cards"], "cleanup.policy=delete", *options]
    subprocess.run(command, check=True)
    said = _create("--app", f"{module}:app").stdout
    assert "not compacted, though it is read as a table: headrace topics set" in said
