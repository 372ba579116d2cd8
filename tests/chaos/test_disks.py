from __future__ import annotations

from pathlib import Path

from headrace.state.codec import encode_timestamped
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import Position
from tests.chaos.application import application_id
from tests.chaos.disks import read_stores


def write(directory: Path, task: str, rows: dict[bytes, bytes], *, offset: int) -> Path:
    path = directory / application_id("run-") / "tasks" / task
    memory = RocksMemory(block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    state = RocksTaskState(path / "rocksdb", [StoreSpec("regions")], memory=memory)
    delta = [(key, encode_timestamped(7, value)) for key, value in rows.items()]
    state.write({"regions": delta}, {"regions": Position("id", offset, 1, 1)})
    state.close()
    return path


def test_the_newest_generation_of_a_task_is_read(tmp_path: Path) -> None:
    write(tmp_path, "1_2", {b"old": b"1"}, offset=3)
    write(tmp_path, "1_2.g9", {b"older": b"1"}, offset=4)
    newest = write(tmp_path, "1_2.g10", {b"new": b"2"}, offset=5)
    (dump,) = read_stores("run-", [tmp_path])
    assert (dump.store, dump.partition, dump.where) == ("regions", 2, str(newest))
    assert dump.position == 5
    assert dump.rows == {b"new": (7, b"2")}


def test_each_host_is_read_and_one_without_state_has_none(tmp_path: Path) -> None:
    hosts = [tmp_path / "a", tmp_path / "b", tmp_path / "none"]
    write(hosts[0], "1_0", {b"k": b"1"}, offset=1)
    write(hosts[1], "1_0", {b"k": b"2"}, offset=2)
    assert [dump.position for dump in read_stores("run-", hosts)] == [1, 2]


def test_what_cannot_be_read_claims_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "1_0", {b"k": b"1"}, offset=1)
    for manifest in (path / "rocksdb").glob("MANIFEST-*"):
        manifest.write_bytes(b"nonsense")
    (dump,) = read_stores("run-", [tmp_path])
    assert dump.position is None
    assert not dump.rows
    assert "cannot be read" in dump.where
