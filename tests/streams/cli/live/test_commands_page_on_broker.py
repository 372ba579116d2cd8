"""The lines of the pages on commands and on security do what they say."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main
from headrace.streams.cli.options import _flattened
from headrace.streams.config.config import StreamsConfig
from headrace.streams.devbroker import DevBroker
from headrace.streams.kafka.client_check import check_clients
from tests.support import tutorials
from tests.support.live import live
from tests.support.processes import ROOT
from tests.support.secret_settings import KEY_PASSWORD, client_key, write_toml
from tests.support.tenant import Tenant, word_count
from tests.support.topics import Topics


def blocks(page: str, kind: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S)


def lines(page: str) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.splitlines()]


def run(line: str, names: Mapping[str, str], environ: Mapping[str, str]) -> str:
    words = [names.get(word, word) for word in shlex.split(line)[1:]]
    done = CliRunner().invoke(main, words, env=dict(environ), catch_exceptions=False)
    assert done.exit_code == 0, (line, done.output)
    return done.output


def test_the_tour_of_the_commands_runs_line_by_line(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {block.file: block.text for block in tutorials.blocks("first-application")}
    names = {name: topics.name(name) for name in ("orders", "revenue")}
    program = files["revenue.py"]
    for old, new in names.items():
        program = program.replace(f'"{old}"', f'"{new}"')
    module = f"revenue_{secrets.token_hex(4)}"
    (tmp_path / f"{module}.py").write_text(program)
    (tmp_path / "orders.jsonl").write_text(files["orders.jsonl"])
    monkeypatch.chdir(tmp_path)
    environ = {
        "HEADRACE_BOOTSTRAP_SERVERS": topics.bootstrap,
        "HEADRACE_STATE_DIR": str(tmp_path / "state"),
    }
    names |= {
        "revenue:app": f"{module}:app",
        "orders=orders.jsonl": f"{names['orders']}=orders.jsonl",
    }
    tour = lines("commands.md")
    begun = next(n for n, line in enumerate(tour) if line.startswith("headrace lag"))
    said = {line: run(line, names, environ) for line in tour[:begun]}
    assert said["headrace try revenue:app --input orders=orders.jsonl"].count('"key"') == 2
    tail = "headrace topics tail orders --app revenue:app --max 3 --with all"
    assert said[tail].count('"customer"') == 3
    made: dict[str, Any] = {}
    exec(program, made)
    settings = {**made["app"].settings, "bootstrap.servers": topics.bootstrap,
                "state.dir": str(tmp_path / "state")}  # fmt: skip
    with live(made["app"].topology, settings) as app:
        app.wait_processed(6)
        run("headrace lag revenue:app --above 0", names, environ)
    said |= {line: run(line, names, environ) for line in tour[begun:]}
    sums = said["headrace topics tail sums --app revenue:app"]
    found = {r["key"]: r["value"] for r in map(json.loads, sums.splitlines())}
    assert found == {"ada": 750, "bob": 300}
    assert "Nothing was done (--dry-run)" in said["headrace reset revenue:app --dry-run"]


def of_page(name: str) -> dict[str, Any]:
    """A block of settings of the page on security, by the comment that names it."""
    (found,) = (b for b in blocks("security.md", "toml") if b.startswith(f"# {name}\n"))
    return _flattened(tomllib.loads(found))


def test_the_settings_of_the_page_on_security_are_taken_by_the_clients(tmp_path: Path) -> None:
    key, certificate = client_key()
    here = {
        "/etc/kafka/ca.pem": certificate,
        "/etc/kafka/shop.pem": certificate,
        "/etc/kafka/shop.key": key,
        "/run/secrets/shop-key": KEY_PASSWORD,
        "/run/secrets/oauth": "secret",
        "/run/secrets/kafka": "secret",
    }
    for path, text in here.items():
        (tmp_path / Path(path).name).write_text(text)
    base = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
    for name in ("tls.toml", "client-certificate.toml", "sasl.toml", "oauth.toml"):
        given = {
            n: str(tmp_path / Path(v).name) if v in here else v for n, v in of_page(name).items()
        }
        check_clients(StreamsConfig.parse({**base, **given}))


APP = """
from headrace import KafkaStreams
from tests.support.tenant import word_count
app = KafkaStreams(word_count({source!r}, {output!r}), {settings!r})
"""


def test_the_lines_of_the_page_on_security_grant_what_the_application_needs(
    secured: DevBroker, tmp_path: Path
) -> None:
    tenant = Tenant(secured, tmp_path / "state", f"t{secrets.token_hex(4)}", "exactly_once_v2")
    tenant.prepare()
    login = secured.settings(tenant.name)
    (tmp_path / "password").write_text(f"{login['sasl.password']}\n")
    own = {"bootstrap.servers": login["bootstrap.servers"],
           "ssl.ca.location": login["ssl.ca.location"], "sasl.username": tenant.name,
           "sasl.password.file": str(tmp_path / "password")}  # fmt: skip
    given = {**of_page("sasl.toml"), **own}
    write_toml(tmp_path / "sasl.toml", given)
    write_toml(tmp_path / "admin.toml", secured.settings())
    settings = {"application.id": tenant.application, "bootstrap.servers": "localhost:1",
                "state.dir": str(tmp_path / "state"), "task.timeout.ms": 20_000,
                "processing.guarantee": "exactly_once_v2"}  # fmt: skip
    text = APP.format(source=tenant.source, output=tenant.output, settings=settings)
    (tmp_path / "my_app.py").write_text(text)
    names = {"my_app:app": f"{tmp_path}/my_app.py:app", "orders": tenant.source,
             "shop": tenant.name,
             **{f: str(tmp_path / f) for f in ("admin.toml", "sasl.toml")}}  # fmt: skip
    said = {line: run(line, names, {}) for line in lines("security.md")[:2]}
    shown, granted = said.values()
    assert f"User:{tenant.name}: Read on the topic {tenant.source}" in shown
    assert "Granted." in granted
    with live(word_count(tenant.source, tenant.output), {**settings, **given}) as app:
        app.wait(lambda: len(tenant.read(tenant.output)) >= 2, what="counts of a and b")
    for line in lines("security.md")[2:]:
        assert login["sasl.password"] not in run(line, names, {})
    revoke = "headrace acls my_app:app --user shop --revoke --yes --config admin.toml"
    assert "Revoked." in run(revoke, names, {})
    line = ["lag", names["my_app:app"], "--config", names["sasl.toml"]]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 13, done.output
