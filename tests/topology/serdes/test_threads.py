"""The first use of a class by several threads at once, in a process that may crash."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import ROOT

PROGRAM = """
import json, sys, threading
from dataclasses import field, make_dataclass

import msgspec

from headrace import avro, serdes
from headrace.streams.client.stores import Connection

FIELDS = [f"f{n}" for n in range(20)]
DOCUMENT = {name: {inner: 1 for inner in FIELDS} for name in FIELDS}
DATA = json.dumps(DOCUMENT).encode()
INNER = {"type": "record", "name": "Inner", "fields": [
    {"name": name, "type": "long"} for name in FIELDS]}
SCHEMA = {"type": "record", "name": "Outer", "fields": [
    {"name": name, "type": INNER if name == "f0" else "Inner"} for name in FIELDS]}

def json_of(cls):
    return lambda: serdes.json_of(cls).deserialize(DATA)

def avro_into(cls):
    serde = avro.serde(SCHEMA, into=cls)
    data = avro.serde(SCHEMA).serialize(DOCUMENT)
    return lambda: serde.deserialize(data)

class Answers:
    def ask(self, store, path, given, body=None):
        return {"key": "k", "value": DOCUMENT, "timestamp": 0, "partition": 0}

def remote_store(cls):
    store = Connection(Answers()).store("s", value_type=cls)
    return lambda: store.find("k")

def dataclasses(number):
    inner = make_dataclass(f"Inner{number}", [(name, int) for name in FIELDS])
    return make_dataclass(f"Outer{number}", [(name, inner) for name in FIELDS])

def structs(number):
    inner = msgspec.defstruct(f"Inner{number}", [(name, int) for name in FIELDS])
    return msgspec.defstruct(f"Outer{number}", [(name, inner) for name in FIELDS])

sys.setswitchinterval(1e-6)
use, kind = globals()[sys.argv[1]], globals()[sys.argv[2]]
for number in range(30):
    read = use(kind(number))
    gate = threading.Barrier(4)
    threads = [threading.Thread(target=lambda: (gate.wait(), read())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("kind", ["dataclasses", "structs"])
@pytest.mark.parametrize("use", ["json_of", "avro_into", "remote_store"])
def test_threads_that_use_a_class_for_the_first_time_do_not_crash(use: str, kind: str) -> None:
    """msgspec caches a class before it has inspected it completely."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, use, kind],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
