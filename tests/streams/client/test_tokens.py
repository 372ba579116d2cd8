"""Tokens as files and variables have them: a line end is none of it, and no error shows one."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import StreamsBuilder, connect, connect_async, serdes
from headrace.streams.cli.top import Served, ServedError
from headrace.streams.config.secrets import Secret
from headrace.streams.errors import ConfigError
from tests.support.hosts import Hosts

TOKEN = "0123456789abcdef"
NO_TOKENS = (
    f"{TOKEN}\n{TOKEN}",
    f"{TOKEN}\r\nHost: x",
    f"{TOKEN}ł",
    "\x00" + TOKEN,
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    words.group_by_key().count(store="counts").to_stream().to("out")
    path = tmp_path_factory.mktemp("hosts")
    token = path / "token"
    token.write_text(f"{TOKEN}\n")
    made = Hosts(path, builder.build(), [{0}], token_file=token)
    made.send("words", ("k", "v"))
    yield made
    made.close()


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f" {TOKEN}\r\n", Secret(f"{TOKEN}\n")])
def test_space_around_a_token_is_none_of_it(hosts: Hosts, token: str | Secret) -> None:
    with connect(hosts.hosts[0].server.url, token=token) as application:
        assert application.store("counts").get("k") == 1


@pytest.mark.parametrize("token", NO_TOKENS)
def test_what_no_header_can_hold_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    for made in (connect, connect_async):
        with pytest.raises(ConfigError, match="the token must be printable ASCII") as refused:
            made("http://127.0.0.1:1", token=token)
        assert TOKEN not in "".join(traceback.format_exception(refused.value))
    file = tmp_path / "token"
    file.write_text(token, newline="")
    with pytest.raises(ServedError, match="the token must be printable ASCII") as served:
        Served("http://127.0.0.1:1", file)
    assert str(file) in str(served.value)
    assert TOKEN not in "".join(traceback.format_exception(served.value))


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="the token is empty"):
        connect("http://127.0.0.1:1", token=" \n")
