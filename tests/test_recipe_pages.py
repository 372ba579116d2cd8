"""The recipes have one form, fit a screen, and are found from their index."""

from __future__ import annotations

import doctest
import functools
import re
import shlex
import threading
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest

from headrace import StreamsBuilder, TopologyTestDriver
from headrace.streams.cli.main import main
from headrace.streams.cli.options import _flattened
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.client_check import check_clients
from tests.support.postgres import PostgresServer
from tests.support.recipes import RECIPES, blocks, renamed, scope_of
from tests.support.secret_settings import client_key
from tests.test_docs import PRIVATE_WORDS

INDEX = RECIPES / "index.md"
PAGES = sorted(page for page in RECIPES.glob("*.md") if page != INDEX)
LINES_MAX = 90
LINKS_MAX = 4
_OF_RELATED = re.compile(r"^- ", re.M)

of_each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@of_each_page
def test_a_recipe_fits_a_screen(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= LINES_MAX


@of_each_page
def test_a_recipe_shows_code_with_its_output_then_variations_and_links(page: Path) -> None:
    text = page.read_text()
    headings = re.findall(r"^#+ .*$", text, re.M)
    assert headings[0].startswith("# ")
    assert headings[-1] == "## Related"
    shown, _, related = text.rpartition("\n## Related\n")
    assert 1 <= len(_OF_RELATED.findall(related)) <= LINKS_MAX
    assert shown.index("```") < shown.index("\n## Variations\n")
    first = shown.partition("\n## Variations\n")[0]
    assert any(example.want for example in doctest.DocTestParser().get_examples(first))


@of_each_page
def test_a_recipe_uses_standard_terms(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose)
    assert [line for line in prose.splitlines() if PRIVATE_WORDS.search(line)] == []


def test_the_index_has_each_recipe_once_under_its_title() -> None:
    entries = re.findall(r"^\| .* \| \[(.*)\]\((.*\.md)\) \|$", INDEX.read_text(), re.M)
    titles = {page.name: page.read_text().partition("\n")[0].removeprefix("# ") for page in PAGES}
    assert sorted(name for _, name in entries) == sorted(titles)
    assert {name: title for title, name in entries} == titles


@of_each_page
def test_the_commands_of_a_recipe_have_the_options_that_it_uses(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shop.toml", "admin.toml"):
        (tmp_path / name).touch()
    for line in "".join(blocks(page, "sh")).splitlines():
        command: click.Command = main
        words = shlex.split(line)[1:]
        context = click.Context(main, info_name="headrace")
        while isinstance(command, click.Group):
            name, *words = words
            found = command.get_command(context, name)
            assert found is not None, line
            command = found
        command.make_context(command.name, words)


def test_the_settings_of_the_recipe_on_tls_are_accepted_by_the_clients(tmp_path: Path) -> None:
    (block,) = blocks("tls-and-sasl", "toml")
    _, certificate = client_key()
    (tmp_path / "ca.pem").write_text(certificate)
    (tmp_path / "kafka").write_text("secret")
    files = {"/etc/kafka/": f"{tmp_path}/", "/run/secrets/": f"{tmp_path}/"}
    settings = _flattened(tomllib.loads(renamed(block, files)))
    check_clients(StreamsConfig.parse({"application.id": "shop", **settings}))


psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


class Cities(BaseHTTPRequestHandler):
    """A service that knows where Ann lives."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ann" else 404)
        self.end_headers()
        self.wfile.write(b'"Rome"')

    def log_message(self, *_: Any) -> None:
        pass


def test_the_async_client_of_the_recipe_on_http_gets_answers() -> None:
    httpx = pytest.importorskip("httpx2")
    (code,) = blocks("enrich-by-http", "python")
    patient = renamed(code, {"timeout=2": "timeout=60"})
    with ThreadingHTTPServer(("localhost", 0), Cities) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://localhost:{server.server_port}"
        scope: dict[str, Any] = {"functools": functools, "httpx": httpx, "SERVICE": url}
        exec(patient, scope)
        builder = StreamsBuilder()
        enriched = builder.stream("orders").map_async(
            scope["with_city"],
            timeout=timedelta(minutes=1),
            on_error=lambda _, error: type(error).__name__,
        )
        enriched.to("out")
        with TopologyTestDriver(builder.build()) as driver:
            driver.input("orders").send_many(
                [("o1", {"customer": "ann"}), ("o2", {"customer": "bob"})]
            )
            found = driver.output("out").as_dict()
        server.shutdown()
    assert found == {"o1": {"customer": "ann", "city": "Rome"}, "o2": "HTTPStatusError"}


@pytest.mark.slow
def test_the_recipe_fills_a_table_of_postgres(postgres: PostgresServer) -> None:
    topology = scope_of("postgres")["shop"](postgres.url)
    with TopologyTestDriver(topology, real_sinks=True) as driver:
        driver.input("orders").send_many([("ann", {"cents": 250}), ("ann", {"cents": 100})])
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute("SELECT * FROM totals").fetchall() == [("ann", 2, 350)]
