"""`KafkaStreams.clean_up` deletes the local state of its application, and of no other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace import KafkaStreams, StreamsBuilder
from headrace.state.directory import StateDirectory
from headrace.state.errors import StateLockedError


def app(state_dir: Path) -> KafkaStreams:
    builder = StreamsBuilder()
    builder.table("prices", store="prices").to_stream().to("out")
    settings = {
        "application.id": "prices",
        "bootstrap.servers": "localhost:1",
        "state.dir": str(state_dir),
    }
    return KafkaStreams(builder.build(), settings)


def filled(state_dir: Path, application_id: str = "prices") -> Path:
    directory = StateDirectory(state_dir, application_id).acquire_task("0_1", wait_ms=0)
    (directory.path / "rows").write_text("1")
    directory.release()
    return directory.path


def test_it_deletes_the_state_of_its_application_only(tmp_path: Path) -> None:
    own, other = filled(tmp_path), filled(tmp_path, "prices-2")
    app(tmp_path).clean_up()
    assert (own.exists(), other.exists()) == (False, True)
    app(tmp_path).clean_up()  # without any state it does nothing


def test_a_state_directory_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    app(tmp_path / "new").clean_up()
    assert list(tmp_path.iterdir()) == []


def test_state_that_another_process_uses_is_not_deleted(tmp_path: Path) -> None:
    filled(tmp_path)
    used = StateDirectory(tmp_path, "prices").acquire_task("0_1", wait_ms=0)
    with pytest.raises(StateLockedError, match=r"task 0_1 is locked in .* by process"):
        app(tmp_path).clean_up()
    assert (used.path / "rows").exists()
    used.release()
    app(tmp_path).clean_up()
    assert not used.path.exists()


def test_an_application_that_runs_must_be_closed_first(tmp_path: Path) -> None:
    running, own = app(tmp_path), filled(tmp_path)
    running.start()
    wait_until_begun(running)
    with pytest.raises(RuntimeError, match=r"is connecting.* Call close\(\) before clean_up\(\)"):
        running.clean_up()
    assert own.exists()
    running.close()
    running.clean_up()
    assert not own.exists()


def wait_until_begun(running: KafkaStreams) -> None:
    pause = threading.Event()
    while running.state.name == "CREATED":
        pause.wait(0.01)
