"""A log or list whose damage RocksDB would read for ever is corruption, and said at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.state.errors import StoreCorruptedError
from headrace.state.file_list import require_readable
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.secondary import RocksSecondary
from headrace.state.spec import StoreSpec
from tests.state.broken import HERE

OPENS = """
import sys
from pathlib import Path
from headrace.state.rocks import RocksMemory
from headrace.state.errors import StoreCorruptedError
from headrace.state.rocks import RocksTaskState
from headrace.state.spec import StoreSpec
memory = RocksMemory(block_cache_bytes=8 << 20, write_buffer_bytes=16 << 20)
try:
    RocksTaskState(Path(sys.argv[1]), [StoreSpec("a")], memory=memory)
except StoreCorruptedError as error:
    print(error)
"""


@pytest.fixture
def killed(tmp_path: Path, memory: RocksMemory) -> Path:
    """What a process leaves behind that is killed after its first commits."""
    state = RocksTaskState(tmp_path / "db", [StoreSpec("a")], memory=memory)
    for number in range(3):
        state.write({"a": [(b"k", b"%d" % number)]}, {"a": HERE})
    copy = tmp_path / "killed"
    shutil.copytree(tmp_path / "db", copy)
    state.close()
    return copy


def second_kind(file: Path) -> int:
    """Where the kind of the second record stands."""
    first = file.read_bytes()
    return 7 + int.from_bytes(first[4:6], "little") + 6


@pytest.mark.parametrize("pattern", ["*.log", "MANIFEST-*"])
@pytest.mark.parametrize("kind", [5, 6, 7, 8, 11])
def test_a_kind_of_used_logs_is_corruption_and_holds_nobody(
    killed: Path, pattern: str, kind: int, memory: RocksMemory
) -> None:
    (file,) = killed.glob(pattern)
    data = bytearray(file.read_bytes())
    data[second_kind(file)] = kind
    file.write_bytes(data)
    # RocksDB keeps Python's lock meanwhile, so that only another process could give up on it.
    command = [sys.executable, "-c", OPENS, str(killed)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"{file} has a record of an unknown kind" in ended.stdout, ended.stderr
    with pytest.raises(StoreCorruptedError):
        RocksSecondary(killed, ["a"], memory=memory)


@pytest.mark.parametrize("size", [1, 31 << 10, 33 << 10, 100 << 10])
def test_records_of_all_sizes_are_none_of_them(
    tmp_path: Path, memory: RocksMemory, size: int
) -> None:
    """Small ones stand many in a block, large ones go over several, and some blocks end unused."""
    path = tmp_path / "db"
    state = RocksTaskState(path, [StoreSpec("a")], memory=memory)
    for number in range(40):
        state.write({"a": [(b"k%d" % number, b"\x06" * (size + 100 * number))]}, {"a": HERE})
        require_readable(path)
    state.close()


def test_files_that_are_empty_or_not_there_are_none_of_them(tmp_path: Path) -> None:
    require_readable(tmp_path / "nowhere")
    (tmp_path / "000004.log").touch()
    require_readable(tmp_path)


def test_the_end_of_a_block_that_holds_no_record_is_not_taken_for_one(tmp_path: Path) -> None:
    """Where less is left than the head of a record, it is filled with zeros."""
    first = b"abcd" + (32_768 - 7 - 3).to_bytes(2, "little") + b"\x01"
    second = b"abc\x06" + (1).to_bytes(2, "little") + b"\x01x"
    log = tmp_path / "000004.log"
    log.write_bytes(first + bytes(32_768 - 7) + second)
    require_readable(tmp_path)
    log.write_bytes(first + bytes(32_768 - 7) + second[:6] + b"\x06x")
    with pytest.raises(StoreCorruptedError):
        require_readable(tmp_path)
