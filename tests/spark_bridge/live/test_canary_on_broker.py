"""No secret and no key of a record in what a backfill shows, Spark's own files included."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from headrace.streams.devbroker import DevBroker
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.spark_bridge.live.test_page_on_broker import environment
from tests.spark_bridge.support.spark_cluster import spark_cluster
from tests.support.secret_settings import CANARY, secret_settings, write_toml
from tests.support.tenant import Tenant

APP = """
from headrace.streams import KafkaStreams, serdes
from headrace.streams.kafka.schema_registry import SchemaRegistry
from headrace.topology import StreamsBuilder
from headrace.topology.serdes import avro

def last(key, value, _):
    if value == "poison":
        raise ValueError(f"cannot work with {{key}}")
    return value

REGISTRY = SchemaRegistry("http://ann:{canary}@127.0.0.1:1", {{"timeout": 1, "max.retries": 0}})
builder = StreamsBuilder()
STRINGS = {{"key": serdes.string, "value": serdes.string}}
stream = builder.stream({source!r}, **STRINGS)
kept = stream.filter(lambda key, value: value != "ask")
by_key = kept.group_by(lambda key, _: key, name="by-key", **STRINGS)
by_key.aggregate(str, last, store="last", value=serdes.string).to_stream().to({output!r})
asked = stream.filter(lambda key, value: value == "ask").map_values(lambda value: 1)
asked.to({output!r}, value=avro.registered('"int"', registry=REGISTRY))
app = KafkaStreams(builder.build(), {{
    "application.id": {application!r}, "bootstrap.servers": "localhost:1", "state.dir": {home!r}}})
"""
KEY = f"{CANARY}-key"
COMMAND = [
    sys.executable,
    "-c",
    "from headrace.streams.cli.main import main; main()",
    "backfill",
    "my_app.py:app",
]


@dataclass
class Seen:
    """What anybody sees of the processes that this one has started, theirs included."""

    texts: set[str] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    self.texts.add("\0".join(process.cmdline()))
                    self.texts.add(repr(process.environ()))

    def has(self, word: str) -> bool:
        return any(word in text for text in self.texts)


@contextmanager
def this_process(_: Path) -> Iterator[str]:
    yield "local[2,1]"


Place = Callable[[Path], AbstractContextManager[str]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("good", this_process),
        ("poison", this_process),
        ("ask", this_process),
        ("poison", spark_cluster),
    ],
)
def test_a_backfill_shows_no_secret_and_no_key(
    value: str, place: Place, secured: DevBroker, tmp_path: Path
) -> None:
    tenant = Tenant(secured, tmp_path, f"t{secrets.token_hex(4)}", "exactly_once_v2")
    tenant.prepare()
    tenant.broker.grant(tenant.name, tenant.rights)
    tenant.write_records([(KEY, "good"), (KEY, value)])
    facts = {name: getattr(tenant, name) for name in ("source", "output", "application")}
    (tmp_path / "my_app.py").write_text(APP.format(**facts, canary=CANARY, home=str(tmp_path)))
    more, hidden = secret_settings(tmp_path, key_in_file=False)
    login = secured.settings(tenant.name)
    hidden.append(login["sasl.password"])
    settings = write_toml(tmp_path / "secrets.toml", {**login, **more})

    events, machines = tmp_path / "events", tmp_path / "spark"
    events.mkdir()
    machines.mkdir()
    seen = Seen()
    with place(machines) as master, seen.watching():
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        }
        options = [word for name, text in conf.items() for word in ("--conf", f"{name}={text}")]
        done = subprocess.run(
            [*COMMAND, "--config", str(settings), "--master", master, *options],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
        )
    said = done.stdout + done.stderr
    expected = ExitCode.STOPPED if value == "good" else ExitCode.CRASHED
    assert done.returncode == expected, said[-4000:]
    shown = {"said": said, "processes": "\n".join(seen.texts)}
    logs = [*events.rglob("*"), *machines.glob("*.log"), *machines.glob("work/*/*/std*")]
    shown |= {str(path): path.read_text(errors="replace") for path in logs if path.is_file()}
    if value == "poison":
        line = APP.splitlines().index("def last(key, value, _):") + 1
        assert f", function my_app.py:{line} last, " in " ".join(said.split())
    assert seen.has("pyspark.daemon")
    assert any("SparkListenerTaskEnd" in text for text in shown.values())
    if value == "good":
        written = {record.key: record.value for record in tenant.read(tenant.output)}
        assert written[KEY.encode()] == b"good"
    else:
        assert any("ExceptionFailure" in text for text in shown.values())
    leaks = [(name, text[max(0, text.index(word) - 300) :][:600]) for name, text in shown.items()
             for word in hidden if word in text]  # fmt: skip
    assert not leaks
