"""RocksDB's list of its files may lose its end or be overwritten: no row goes in silence."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from pathlib import Path

import pytest

from headrace.state.errors import StateError, StoreCorruptedError
from headrace.state.file_list import OpenFileList, StoredFileList
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.secondary import RocksSecondary
from headrace.state.spec import StoreSpec
from tests.state.broken import HERE, filled

DAMAGED = "is truncated or damaged"


def opened(path: Path, memory: RocksMemory) -> RocksTaskState:
    return RocksTaskState(path, [StoreSpec("a"), StoreSpec("b")], memory=memory)


def rows(state: RocksTaskState, name: str) -> list[tuple[bytes, bytes]]:
    return list(state.store(name).scan())


def left_by_a_kill(state: RocksTaskState, path: Path) -> tuple[Path, Path]:
    """What a process leaves behind that is killed now: the directory, and the list in it."""
    killed = path.parent / "killed"
    shutil.copytree(path, killed)
    state.close()
    (manifest,) = killed.glob("MANIFEST-*")
    return killed, manifest


def overwrite(file: Path, begin: int, data: bytes) -> None:
    """As a bad disk would: the file stays as long as it is."""
    with file.open("r+b") as opened_file:
        opened_file.seek(begin)
        opened_file.write(data[: file.stat().st_size - begin])


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_list_of_files_without_its_end_loses_no_rows_in_silence(
    path: Path, memory: RocksMemory, cut: int
) -> None:
    """What is in it last may be that the store's family was made anew; its rows lie elsewhere."""
    state = opened(path, memory)
    state.write({"a": [(b"old", b"1")]}, {"a": HERE})
    state.drop_store("a")
    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    killed, manifest = left_by_a_kill(state, path)
    os.truncate(manifest, manifest.stat().st_size - cut)
    try:
        again = opened(killed, memory)
    except StoreCorruptedError:
        return
    found = (rows(again, "a"), again.position("a"))
    again.close()
    assert found in (([(b"k", b"1")], HERE), ([], None))


@pytest.mark.parametrize("cut", range(1, 60, 4))
def test_a_list_of_files_without_its_end_loses_no_flushed_rows_in_silence(
    path: Path, memory: RocksMemory, cut: int
) -> None:
    """What is in it last is the file of a bulk restore, and no log has its rows."""
    state = opened(path, memory)
    state.begin_restore()
    state.restore({"a": [(b"k", b"1")]})
    state.end_restore({"a": HERE, "b": HERE})
    state.write({"b": [(b"k", b"1")]}, {"b": HERE})
    killed, manifest = left_by_a_kill(state, path)
    os.truncate(manifest, manifest.stat().st_size - cut)
    with pytest.raises(StoreCorruptedError, match=DAMAGED):
        opened(killed, memory)


def test_a_list_of_files_that_a_start_has_begun_is_held_to_its_length(
    path: Path, memory: RocksMemory
) -> None:
    """Each opening writes a list of its own, and may be killed before it writes anything else."""
    filled(path, memory)
    state = opened(path, memory)
    killed, manifest = left_by_a_kill(state, path)
    os.truncate(manifest, manifest.stat().st_size - 5)
    with pytest.raises(StoreCorruptedError, match=DAMAGED):
        opened(killed, memory)


@pytest.mark.parametrize("restored", [False, True], ids=["rows in the log", "rows in files"])
@pytest.mark.parametrize("end", range(4, 140, 8))
def test_a_list_of_files_that_is_overwritten_loses_no_rows_in_silence(
    path: Path, memory: RocksMemory, restored: bool, end: int
) -> None:
    """Seen: RocksDB takes what it cannot read of it for a line that was not written to its end."""
    state = opened(path, memory)
    if restored:
        state.begin_restore()
        state.restore({"a": [(b"k", b"1")]})
        state.end_restore({"a": HERE, "b": HERE})
    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    killed, manifest = left_by_a_kill(state, path)
    overwrite(manifest, manifest.stat().st_size - end, random.Random(end).randbytes(64))
    reads = path.parent / "reads"
    shutil.copytree(killed, reads)
    try:
        again = opened(killed, memory)
    except StoreCorruptedError:
        pass
    else:
        found = (rows(again, "a"), again.position("a"))
        again.close()
        assert found in (([(b"k", b"1")], HERE), ([], None))
    try:
        beside = RocksSecondary(reads, ["a", "b"], memory=memory)
    except StateError:
        return
    position = beside.position("a")
    assert position is None or dict(beside.store("a").scan()) == {b"k": b"1"}
    beside.close()


def test_a_list_that_has_grown_since_is_no_damage(path: Path, memory: RocksMemory) -> None:
    """A process may be killed between a flush and the commit that would say so."""
    state = opened(path, memory)
    state.write({"a": [(b"k", b"1")]}, {"a": HERE})
    state._flush()
    killed, _ = left_by_a_kill(state, path)
    again = opened(killed, memory)
    assert (rows(again, "a"), again.position("a")) == ([(b"k", b"1")], HERE)
    again.close()


def test_a_list_of_an_older_release_is_held_to_its_length_alone(tmp_path: Path) -> None:
    file = tmp_path / "MANIFEST-000005"
    file.write_bytes(b"x" * 180)
    with OpenFileList(file) as found:
        assert not StoredFileList.decode(b'["MANIFEST-000005",180]').is_damaged(found)
        assert StoredFileList.decode(b'["MANIFEST-000005",181]').is_damaged(found)


def test_a_list_that_grows_is_summed_on_from_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "MANIFEST-000005"
    file.write_bytes(b"abc")
    with OpenFileList(file) as found:
        first = found.checksum(3)
        file.write_bytes(b"abcdef")
        assert (found.listed.size, found.size_now()) == (3, 6)
        assert found.checksum(6) == zlib.crc32(b"abcdef")
        assert found.checksum(3) == first == zlib.crc32(b"abc")
