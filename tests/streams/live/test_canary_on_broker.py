"""No secret and no key of a record in what the commands and their processes show."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from headrace.streams.cli import main as cli
from headrace.streams.devbroker import DevBroker
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support.secret_settings import CANARY, secret_settings, write_toml
from tests.support.supervised import Run
from tests.support.tenant import Tenant

APP = """
import time
from headrace.streams import KafkaStreams, serdes
from headrace.streams.kafka.schema_registry import SchemaRegistry
from headrace.topology import StreamsBuilder
from headrace.topology.serdes import avro

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


@dataclass
class Saved:
    """An application and its settings in files, which hold what nobody may see elsewhere."""

    tenant: Tenant
    home: Path
    hidden: list[str]

    @property
    def options(self) -> list[str]:
        return ["--config", str(self.home / "secrets.toml")]

    def shown_in(self, text: str) -> list[str]:
        return [secret for secret in self.hidden if secret in text]


@pytest.fixture
def saved(secured: DevBroker, tmp_path: Path) -> Saved:
    tenant = Tenant(secured, tmp_path / "state", f"t{secrets.token_hex(4)}", "exactly_once_v2")
    tenant.prepare(partitions=2)
    secured.grant(tenant.name, tenant.rights)
    login = secured.settings(tenant.name)
    settings = {
        "application.id": tenant.application,
        "bootstrap.servers": login["bootstrap.servers"],
        "state.dir": str(tmp_path / "state"),
        "commit.interval.ms": 20,
        "repartition.purge.interval.ms": 60_000,
    }
    text = APP.format(input=tenant.source, output=tenant.output, settings=settings, canary=CANARY)
    (tmp_path / "my_app.py").write_text(text)
    more, hidden = secret_settings(tmp_path, key_in_file=True)
    for name in ("sasl.password", "ssl.key.password"):
        (tmp_path / name).write_text(f"{(login | more)[name]}\n")
        more[f"{name}.file"] = str(tmp_path / name)
    named_by_file = {n: v for n, v in {**login, **more}.items() if f"{n}.file" not in more}
    write_toml(tmp_path / "secrets.toml", named_by_file)
    return Saved(tenant, tmp_path, [*hidden, login["sasl.password"]])


def shown_of(run: Run) -> str:
    """What anybody sees of the processes: their command lines and their environments."""
    own = psutil.Process(run.process.pid)
    return repr([(p.cmdline(), p.environ()) for p in (own, *own.children(recursive=True))])


@pytest.mark.parametrize(("value", "code"), [("poison", ExitCode.RECORD), ("ask", None)])
def test_commands_and_processes_show_no_secret_and_no_key(
    value: str, code: ExitCode | None, saved: Saved, tmp_path: Path
) -> None:
    run = Run(tmp_path, "my_app:app", "--workers=2", "--log-level=debug", "--max-restarts=0",
              "--status-every=0.3", *saved.options)  # fmt: skip
    try:
        run.wait_running(2)
        assert not saved.shown_in(shown_of(run))
        key = f"{CANARY}-key"
        saved.tenant.write_records([(key, "good"), (key, value)])
        ended = run.wait()
        assert ended != ExitCode.STOPPED
        assert code in (ended, None), run.text()[-4000:]
        assert len(run.events("application_failed")) == 1
        assert not saved.shown_in(run.text())
    finally:
        run.discard()
    target = f"{tmp_path}/my_app.py:app"
    commands = [
        (["check", target], 0, ""),
        (["check", target, "--deployed"], 0, ""),
        (["lag", target], 0, "Lag: "),
        (["topics", "list", "--app", target], 0, "keeps"),
        (["topics", "describe", "counts", "--app", target], 0, "cleanup.policy: compact"),
        (["acls", target, "--user", "x"], 0, "User:x: Read on"),
        (["top", target, "--times", "1"], 0, "rate/s"),
        (["reset", target, "--dry-run"], 0, "Nothing was done"),
        (["reset", target, "--set", "poll.ms=-1"], ExitCode.CONFIGURATION, "poll.ms"),
        # The file is read, and with the wrong password it is no key.
        (["reset", target, "--dry-run", "--set", f"ssl.key.password={CANARY}-wrong"],
         ExitCode.CONFIGURATION, "ssl.key.location"),
        (["reset", target, "--yes"], 0, "Done."),
    ]  # fmt: skip
    for command, ends_with, said in commands:
        done = CliRunner().invoke(cli.main, [*command, *saved.options])
        assert (done.exit_code, said in done.output) == (ends_with, True), done.output
        assert done.output
        assert not saved.shown_in(done.output), command
