"""What rows of the default serde take in memory, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROWS = 200_000

PROGRAM = f"""
from pathlib import Path

from headrace import serdes
from headrace.state.buffer import Coding
from headrace.state.buffers import make_buffer
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.topology.serdes.normalise import exact_types, normaliser

def resident():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024

json = serdes.json
spec = StoreSpec("s", kind="memory")
buffer = make_buffer(
    spec,
    MemoryTaskState([spec]).store("s"),
    Coding(
        encode=json.serialize,
        decode=json.deserialize,
        stored_form="bytes",
        exact=exact_types(json),
        keep=normaliser(json),
    ),
)
before = resident()
for number in range({ROWS}):
    buffer.put(b"%d" % number, {{"number": number, "name": "customer"}}, number)
changes = buffer.delta()
print((resident() - before) // {ROWS})
"""


@pytest.mark.slow
def test_rows_of_json_take_the_memory_of_their_bytes() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    each = int(done.stdout)
    assert 100 < each < 700, "4,400 with the buffer that orjson makes them in"
