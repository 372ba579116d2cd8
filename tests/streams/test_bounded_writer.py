"""A writer whose reader does not read waits for nothing, and counts what it drops."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from headrace.streams.bounded_writer import BoundedWriter
from tests.support.processes import wait_until


class Pipe:
    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, 4096)
        self.dropped: list[int] = []
        self.writer = BoundedWriter(
            self.write_end, on_dropped=self.dropped.append, max_bytes=20_000
        )


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.read_end)  # ends what still waits
    made.writer.close()
    os.close(made.write_end)


def test_what_is_read_arrives_whole_and_in_order(pipe: Pipe) -> None:
    lines = [f"line {number}\n" for number in range(100)]
    for line in lines:
        pipe.writer.write(line)
    pipe.writer.close(within_s=60)
    assert os.read(pipe.read_end, 10_000).decode() == "".join(lines)
    assert pipe.dropped == []


def test_nothing_waits_for_a_reader_that_does_not_read(pipe: Pipe) -> None:
    lines = [b"%06d %s\n" % (number, b"x" * 92) for number in range(1_000)]
    for line in lines:
        pipe.writer.write(line.decode())
    pipe.writer.close(within_s=0.05)
    found = b""
    os.set_blocking(pipe.read_end, False)

    def read() -> bool:
        nonlocal found
        while True:
            try:
                found += os.read(pipe.read_end, 65_536)
            except BlockingIOError:
                return bool(pipe.dropped) and found.count(b"\n") == 1_000 - sum(pipe.dropped)

    wait_until(read, what="what was kept, and how much was not")
    assert found == b"".join(lines[: found.count(b"\n")])
    assert 500 < sum(pipe.dropped) < 1_000


def test_a_reader_that_is_gone_is_no_error(pipe: Pipe) -> None:
    gone = Pipe()
    os.close(gone.read_end)
    for _ in range(5):
        gone.writer.write("lost\n")
    gone.writer.close(within_s=60)
    os.close(gone.write_end)
    assert gone.dropped == []
