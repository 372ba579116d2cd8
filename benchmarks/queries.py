"""Rate and latency of queries, in the process and over HTTP: ``python -m benchmarks.queries``.

Four tasks have generated counts. Another process writes commits to them all the time, as a worker
does, unless ``--quiet`` is set. The output has gets per second, and the median and the 99th
percentile of a call, for batches of keys and for single keys.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import click

from headrace import KafkaStreams, StreamsBuilder, serdes
from headrace.state.codec import encode_timestamped, partition_for_key
from headrace.state.rocks import RocksMemory, RocksTaskState
from headrace.state.spec import StoreSpec
from headrace.state.store import Position
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer

TASKS, BATCH, COMMIT_ROWS = 4, 1_000, 2_000
_ROOT = Path(__file__).parents[1]


def _application(state_dir: Path) -> KafkaStreams:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    words.group_by_key().count(store="counts").to_stream().to("counted")
    settings = {"application.id": "queried", "bootstrap.servers": "nowhere:1"}
    return KafkaStreams(builder.build(), {**settings, "state.dir": str(state_dir)})


def _open_states(base: Path) -> list[RocksTaskState]:
    memory = RocksMemory(block_cache_bytes=64 << 20, write_buffer_bytes=64 << 20)
    paths = [base / "queried" / "tasks" / f"0_{n}" / "rocksdb" for n in range(TASKS)]
    return [RocksTaskState(path, [StoreSpec("counts")], memory=memory) for path in paths]


def _write(states: Sequence[RocksTaskState], numbers: range, count: int) -> None:
    rows: list[list[tuple[bytes, bytes | None]]] = [[] for _ in states]
    for number in numbers:
        key = b"key-%07d" % number
        row = encode_timestamped(number, count.to_bytes(8, "big"))
        rows[partition_for_key(key, TASKS)].append((key, row))
    now_ms = time.time_ns() // 1_000_000
    for state, delta in zip(states, rows, strict=True):
        state.write({"counts": delta}, {"counts": Position("id", count, count, now_ms)})


def _keep_writing(base: Path, keys: int) -> None:
    states = _open_states(base)
    print("ready", flush=True)
    count = 1
    while True:
        count += 1
        begin = count * COMMIT_ROWS % keys
        _write(states, range(begin, min(keys, begin + COMMIT_ROWS)), count)
        time.sleep(0.02)


def _timed(query: Callable[[], object], seconds: float) -> list[float]:
    took, end_s = [], time.perf_counter() + seconds
    while (begin_s := time.perf_counter()) < end_s:
        query()
        took.append(time.perf_counter() - begin_s)
    return took


def _print(name: str, took: list[float], rows: int) -> None:
    took.sort()
    p50, p99 = statistics.median(took), took[len(took) * 99 // 100]
    print(
        f"{name:24}{rows * len(took) / sum(took):10,.0f} gets/s   p50 {p50 * 1000:7.3f} ms   "
        f"p99 {p99 * 1000:7.3f} ms"
    )


@click.command()
@click.option("--keys", default=200_000, show_default=True, help="Number of keys.")
@click.option("--seconds", default=5.0, show_default=True, help="Duration of each figure in s.")
@click.option("--quiet", is_flag=True, help="No concurrent commits.")
@click.option("--write-to", type=click.Path(path_type=Path), hidden=True)
def main(keys: int, seconds: float, quiet: bool, write_to: Path | None) -> None:
    """Measure queries of one host."""
    if write_to is not None:
        _keep_writing(write_to, keys)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        states = _open_states(base)
        _write(states, range(keys), 1)
        for state in states:
            state.close()
        if quiet:
            _measure(base, keys, seconds)
            return
        command = [sys.executable, "-m", "benchmarks.queries", f"--keys={keys}", "--write-to", name]
        with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            _measure(base, keys, seconds)
            writer.kill()


def _measure(base: Path, keys: int, seconds: float) -> None:
    random = Random(1)
    app = _application(base)

    def some_key() -> str:
        return f"key-{random.randrange(keys):07d}"

    def batch() -> list[str]:
        return [some_key() for _ in range(BATCH)]

    health = HealthSnapshot(snapshot=app.metrics(), turned_s=0.0, is_loaded=True, has_failed=False)
    with (
        app.queries() as queries,
        HttpServer(lambda: health, "0", log=EventLog(), queries=lambda: queries) as server,
    ):
        counts = queries.store("counts")
        assert None not in counts.get_many(batch())
        _print("in process, batches", _timed(lambda: counts.get_many(batch()), seconds), BATCH)
        _print("in process, single", _timed(lambda: counts.get(some_key()), seconds), 1)
        address = server.url.removeprefix("http://")

        persistent = http.client.HTTPConnection(address)

        def query(
            method: str, path: str, body: str | None = None, *, reconnect: bool = False
        ) -> None:
            connection = http.client.HTTPConnection(address) if reconnect else persistent
            connection.request(method, f"/api/stores/counts/{path}", body)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            if reconnect:
                connection.close()

        many = _timed(lambda: query("POST", "get", json.dumps({"keys": batch()})), seconds)
        _print("HTTP, batches", many, BATCH)
        _print("HTTP, single", _timed(lambda: query("GET", some_key()), seconds), 1)
        connecting = _timed(lambda: query("GET", some_key(), reconnect=True), seconds)
        _print("HTTP, new connections", connecting, 1)
        persistent.close()


if __name__ == "__main__":
    main()
