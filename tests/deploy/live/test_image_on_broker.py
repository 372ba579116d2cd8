"""The image is built and run as its page describes it, on a real broker.

Without a container engine, the steps of the Dockerfile are executed in a clean Debian root.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

from tests.deploy.files import DEPLOY, commands_in, step
from tests.support import kafka, oracle
from tests.support.container import Container, Image, build_image, skip_reason
from tests.support.processes import ROOT, wait_until
from tests.support.topics import Topics
from tests.support.wheel_tests import build_wheel

pytestmark = [
    pytest.mark.long,  # It downloads Debian, Python and all packages of the image.
    pytest.mark.timeout(1200),
    pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason())),
]
PAGE = ROOT / "docs/deploy/container.md"
STOP_S = int(re.findall(r"--stop-timeout (\d+) ", PAGE.read_text())[0])
# The application of the page; its id is also the name of its group.
GROUP, INPUT, OUTPUT = "word-count", "sentences", "word-counts"
SENTENCES = ["the cat sat on the mat", "the dog saw the cat", "no dog sat on a mat"]


def build(context: Path, home: Path) -> Image:
    """Build deploy/ with the package of the work tree, after the changes of a test."""
    shutil.copytree(DEPLOY, context)
    build_wheel(context)
    return build_image(context, home)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    work = tmp_path_factory.mktemp("image")
    built = build(work / "deploy", work / "home")
    yield built
    built.discard()


@pytest.fixture
def environment(topics: Topics) -> Iterator[dict[str, str]]:
    """The variables of the page; topics and the group are deleted at the end."""
    for name in (INPUT, GROUP):
        topics.own(name)
    topics.delete_all()
    yield {"HEADRACE_BOOTSTRAP_SERVERS": topics.bootstrap}
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": topics.bootstrap})
    with suppress(confluent_kafka.KafkaException):
        admin.delete_consumer_groups([GROUP])[GROUP].result()


@contextmanager
def running(
    image: Image, environment: dict[str, str], log: Path, program: Sequence[str] | None = None
) -> Iterator[Container]:
    container = image.start(environment, f"volume-{log.parent.name}", log, program)
    try:
        yield container
    finally:
        container.discard()


def create_topics(image: Image, environment: dict[str, str]) -> None:
    (arguments,) = (found for found in commands_in(PAGE) if found[0] == "topics")
    done = image.call(arguments, environment)
    assert done.returncode == 0, done.stdout + done.stderr


def events(container: Container, name: str) -> list[dict[str, Any]]:
    found = []
    for line in container.text().splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") == name:
                found.append(event)
    return found


def count(container: Container, bootstrap: str, expected: Counter[bytes]) -> None:
    """Write the sentences, and wait until their words are counted."""
    kafka.write(bootstrap, INPUT, [(None, text.encode()) for text in SENTENCES])
    expected.update(word.encode() for text in SENTENCES for word in text.split())
    wait_until(
        lambda: (
            oracle.last_counts(kafka.read(bootstrap, OUTPUT)) == expected
            or not container.is_running
        ),
        what=lambda: f"all words are counted:\n{container.text()[-6000:]}",
    )
    assert container.is_running, container.text()[-6000:]


def wait_healthy(container: Container) -> None:
    check = step("HEALTHCHECK").words
    wait_until(
        lambda: container.call(check).returncode == 0 or not container.is_running,
        what=lambda: f"it is healthy:\n{container.text()[-6000:]}",
    )
    assert container.is_running, container.text()[-6000:]


def users(pid: int) -> set[str]:
    """Return the user IDs of a process and its descendants."""
    status = Path(f"/proc/{pid}/status").read_text()
    (own,) = re.findall(r"^Uid:\t(\d+)", status, re.M)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {own}.union(*(users(int(child)) for child in children))


def check_stop(container: Container) -> None:
    """Stop within the documented time; require exit code 0 and a last commit of each worker."""
    code = container.stop(STOP_S)
    assert code == 0, container.text()[-6000:]
    started = {event["worker_index"] for event in events(container, "worker_started")}
    stopped = {e["worker_index"]: e["last_commit"] for e in events(container, "worker_stopped")}
    assert started, container.text()[-6000:]
    assert stopped == dict.fromkeys(started, "done")


def test_the_container_counts_stops_and_continues(
    image: Image, environment: dict[str, str], topics: Topics, tmp_path: Path
) -> None:
    create_topics(image, environment)
    expected = Counter[bytes]()
    with running(image, environment, tmp_path / "first") as first:
        wait_healthy(first)
        assert users(first.pid) == {step("USER").text.partition(":")[0]}
        count(first, topics.bootstrap, expected)
        check_stop(first)
    with running(image, environment, tmp_path / "second") as second:
        count(second, topics.bootstrap, expected)
        check_stop(second)
        restored = {event["task"]: event["records"] for event in events(second, "task_restored")}
        assert set(restored.values()) <= {0}, restored
    oracle.check_increasing(kafka.read(topics.bootstrap, OUTPUT), expected)


def test_a_shell_as_process_1_does_not_forward_sigterm(
    image: Image, environment: dict[str, str], tmp_path: Path
) -> None:
    """So a stop kills the workers, and the check of the stop notices it."""
    create_topics(image, environment)
    shell = ["sh", "-c", 'headrace "$@"; exit $?', "sh"]
    with running(image, environment, tmp_path / "log", shell) as container:
        wait_healthy(container)
        assert container.stop(5) == 137
        assert events(container, "worker_stopped") == []
