"""`headrace topics create`, against a real broker and against none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.streams.supervise.exit_codes import ExitCode
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


@pytest.mark.parametrize("options", [(), ("--partitions", "2")])
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


def test_where_no_broker_answers_the_way_to_one_is_told() -> None:
    done = _create("any", "--bootstrap-servers", "localhost:1")
    assert done.returncode == ExitCode.CLIENT
    assert "localhost:1, tried to connect" in done.stderr
    assert "headrace broker start" in done.stderr
    assert "Traceback" not in done.stderr
