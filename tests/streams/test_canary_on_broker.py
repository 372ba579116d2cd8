"""No secret and no key of a record in what the commands and their processes show."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from streams import cli
from streams.exit_codes import ExitCode
from tests.streams.test_secrets import CANARY, SECRETS
from tests.support import kafka
from tests.support.supervised import Run
from tests.support.topics import Topics

APP = """
import time
from streams import KafkaStreams, serdes
from streams.schema_registry import SchemaRegistry
from topology import StreamsBuilder, avro

def step(key, value):
    if value == "poison":
        raise ValueError(f"cannot work with {{key}}")
    return value

REGISTRY = SchemaRegistry("http://ann:{canary}@127.0.0.1:1", {{"timeout": 1, "max.retries": 0}})
builder = StreamsBuilder()
stream = builder.stream({input!r}, key=serdes.string, value=serdes.string)
counted = stream.map_values(step, with_key=True).group_by_key().count(store="counts")
counted.to_stream().to({output!r})
asked = stream.filter(lambda key, value: value == "ask").map_values(lambda value: 1)
asked.to({output!r}, value=avro.registered('"int"', registry=REGISTRY))
app = KafkaStreams(builder.build(), {settings!r})
"""


@pytest.fixture
def saved(topics: Topics, tmp_path: Path) -> str:
    """Save an application and its settings; returns its input."""
    source, sink = topics.create("in", partitions=2), topics.create("out", partitions=2)
    settings = {
        "application.id": topics.name("app"),
        "bootstrap.servers": topics.bootstrap,
        "state.dir": str(tmp_path / "state"),
        "commit.interval.ms": 20,
    }
    text = APP.format(input=source, output=sink, settings=settings, canary=CANARY)
    (tmp_path / "my_app.py").write_text(text)
    lines = [f'"{name}" = {json.dumps(value)}' for name, value in SECRETS.items()]
    (tmp_path / "secrets.toml").write_text("\n".join(lines))
    return source


def shown_of(run: Run) -> str:
    """What anybody sees of the processes: their command lines and their environments."""
    own = psutil.Process(run.process.pid)
    return repr([(p.cmdline(), p.environ()) for p in (own, *own.children(recursive=True))])


@pytest.mark.parametrize(("value", "code"), [("poison", ExitCode.RECORD), ("ask", None)])
def test_commands_and_processes_show_no_secret_and_no_key(
    value: str, code: ExitCode | None, saved: str, topics: Topics, tmp_path: Path
) -> None:
    options = ["--settings", str(tmp_path / "secrets.toml")]
    run = Run(tmp_path, "my_app:app", "--workers=2", "--log-level=debug", "--max-restarts=0",
              "--status-every=0.3", *options)  # fmt: skip
    try:
        run.wait_running(2)
        assert CANARY not in shown_of(run)
        key = f"{CANARY}-key".encode()
        kafka.write(topics.bootstrap, saved, [(key, b"good"), (key, value.encode())])
        ended = run.wait()
        assert ended != ExitCode.STOPPED
        assert code in (ended, None), run.text()[-4000:]
        assert len(run.events("application_failed")) == 1
        assert CANARY not in run.text()
    finally:
        run.discard()
    target = f"{tmp_path}/my_app.py:app"
    commands = [
        ["check", target],
        ["check", target, "--deployed"],
        ["reset", target, "--dry-run"],
        ["reset", target, "--set", "poll.ms=-1"],
    ]
    for command in commands:
        done = CliRunner().invoke(cli.main, [*command, *options])
        assert done.output
        assert CANARY not in done.output, command
