"""Secrets by file: read at the start, and never shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.secrets import SECRET_NAMES, guarded, over, revealed
from headrace.streams.errors import ConfigError
from headrace.streams.tasks.restore import RestoreListeners
from headrace.streams.worker.protocols import WorkerListeners
from headrace.topology import StreamsBuilder
from tests.support.secret_settings import client_key

BASE: dict[str, Any] = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
CANARY = "c4n4ry"


def parsed(**more: Any) -> dict[str, Any]:
    settings = {**BASE, **{name.replace("_", "."): value for name, value in more.items()}}
    return revealed(StreamsConfig.parse(settings).admin_config())


@pytest.mark.parametrize("name", sorted(SECRET_NAMES))
def test_each_secret_can_be_in_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{CANARY}\r\n")
    assert parsed(**{f"{name}.file": file})[name] == CANARY
    assert parsed(**{f"admin.{name}.file": str(file)})[name] == CANARY


def test_only_the_ends_of_lines_behind_it_are_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("  two\nlines \n\n")
    assert parsed(**{"sasl.password.file": file})["sasl.password"] == "  two\nlines "


def test_the_file_is_read_anew_for_each_start(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("old")
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    app = KafkaStreams(builder.build(), {**BASE, "sasl.password.file": str(file)})
    file.write_text(CANARY)
    listeners: Any = {
        "worker_listener": WorkerListeners(),
        "restore_listener": RestoreListeners(),
    }
    later = app.derived({}, **listeners)
    assert revealed(later.config.admin_config())["sasl.password"] == CANARY
    other = app.derived({"sasl.password": "given"}, **listeners)
    assert revealed(other.config.admin_config())["sasl.password"] == "given"
    assert CANARY not in repr(vars(later))


def test_a_client_takes_a_key_that_was_in_a_file(tmp_path: Path) -> None:
    key, certificate = client_key()
    (tmp_path / "key").write_text(key)
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    settings = {
        **BASE,
        "security.protocol": "SSL",
        "ssl.certificate.pem": certificate,
        "ssl.key.pem.file": str(tmp_path / "key"),
    }
    with pytest.raises(ConfigError, match=r"ssl\.key\.pem"):  # its password is missing
        KafkaStreams(builder.build(), settings)
    (tmp_path / "password").write_text(f"{CANARY}-of-the-key\n")
    password = {"ssl.key.password.file": str(tmp_path / "password")}
    KafkaStreams(builder.build(), {**settings, **password})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "cannot be read (No such file or directory); correct the path"),
        ("directory", "cannot be read (Is a directory)"),
        (b"\n", "is empty; write the secret into it"),
        (b"\xff", "is not UTF-8 text"),
        (b"x" * ((1 << 20) + 1), "too large for a secret (1048576 bytes)"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, made: object, said: str) -> None:
    file = tmp_path / "secret"
    if isinstance(made, bytes):
        file.write_bytes(made)
    elif made is not None:
        file.mkdir()
    with pytest.raises(ConfigError) as raised:
        parsed(**{"sasl.password.file": file, "poll.ms": -1})
    assert f"sasl.password.file names {file}, which" in str(raised.value)
    assert said in str(raised.value)
    assert "poll.ms must be" in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_others_may_not_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(CANARY)
    file.chmod(0)
    with pytest.raises(ConfigError, match="Permission denied"):
        parsed(**{"sasl.password.file": file})


def test_a_secret_where_its_file_should_be_named_is_not_repeated() -> None:
    key, _ = client_key()
    with pytest.raises(ConfigError, match="is a secret itself") as raised:
        parsed(**{"ssl.key.pem.file": key})
    assert key.splitlines()[1] not in str(raised.value)


def test_one_of_two_is_to_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="are both set; leave one of them out"):
        parsed(**{"sasl.password.file": tmp_path / "x", "sasl.password": CANARY})


def test_what_is_laid_over_takes_the_place_of_either() -> None:
    of_file, itself = {"sasl.password.file": "f", "a": 1}, {"sasl.password": "s"}
    assert over(of_file, itself) == {"a": 1, "sasl.password": "s"}
    assert over(itself, of_file) == of_file
    of_producer = {"producer.sasl.password.file": "p"}
    assert over(of_file, of_producer) == {**of_file, **of_producer}


def test_the_name_of_a_file_is_no_secret() -> None:
    given = {"sasl.password.file": "/run/secrets/kafka", "producer.ssl.key.pem.file": "/k"}
    assert guarded(given) == given
    assert repr(guarded({"sasl.pasword.file": CANARY})) == "{'sasl.pasword.file': ***}"
