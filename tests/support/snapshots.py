"""Snapshots of workers as large as one likes, made up."""

from __future__ import annotations

from typing import Any

from headrace.streams.metrics.counters import COMMIT_BOUNDS_S, LATENCY_BOUNDS_S, Distribution
from headrace.streams.metrics.snapshots import (
    ApplicationSnapshot,
    InputSnapshot,
    LatencySnapshot,
    NodeSnapshot,
    ProcessorCounter,
    SkewSnapshot,
    StoreSnapshot,
    TaskSnapshot,
    WorkerSnapshot,
    WorkerView,
)


def input_snapshot(partition: int = 0, **others: Any) -> InputSnapshot:
    known: dict[str, Any] = {
        "topic": "orders", "partition": partition, "internal": False, "committed": 90,
        "processed": 95, "end": 100, "queued": 3, "behind_ms": 1_500,
        "event_time_ms": 1_700_000_000_000,
    }  # fmt: skip
    return InputSnapshot(**(known | others))


def task_snapshot(
    partition: int = 0, *, sub: int = 0, nodes: int = 1, **others: Any
) -> TaskSnapshot:
    stores = tuple(
        StoreSnapshot(
            name=f"store-{n}", keys=10, is_counted=True, size_bytes=1_000, uncommitted_bytes=20,
            cached_bytes=30, cache_hits=6, cache_misses=4, restore_remaining=0,
        )
        for n in range(nodes)
    )  # fmt: skip
    known: dict[str, Any] = {
        "id": f"{sub}_{partition}", "sub_topology": sub, "partition": partition, "state": "running",
        "state_s": 12.5, "processed": 100, "committed": 90, "inputs": (input_snapshot(partition),),
        "stores": stores, "stream_time_ms": 1_700_000_000_000,
        "skew": SkewSnapshot(
            slowest="orders-0", slowest_ms=1_699_996_400_000, fastest="orders-1",
            fastest_ms=1_700_000_000_000, is_idle=True,
        ),
    }  # fmt: skip
    return TaskSnapshot(**(known | others))


def node_snapshot(name: str = "node-0", **others: Any) -> NodeSnapshot:
    known: dict[str, Any] = {
        "sub_topology": 0, "name": name, "dropped": {"late": 2, "null key": 1}, "own_s": 0.5,
        "user_s": 0.25,
    }  # fmt: skip
    return NodeSnapshot(**(known | others))


def worker_snapshot(
    *, tasks: int = 1, first: int = 0, nodes: int = 1, **others: Any
) -> WorkerSnapshot:
    commits = Distribution(COMMIT_BOUNDS_S, (3, *[0] * len(COMMIT_BOUNDS_S)), 0.012)
    latency = Distribution(LATENCY_BOUNDS_S, (1, 2, *[0] * (len(LATENCY_BOUNDS_S) - 1)), 0.05)
    known: dict[str, Any] = {
        "id": "host-0", "at_s": 100.0, "at_ms": 1_700_000_000_000, "is_running": True,
        "is_paused": False, "processed": 100 * tasks, "committed": 90 * tasks, "commits": 3,
        "commit_latency": commits,
        "latencies": (LatencySnapshot(sub_topology=0, latency=latency),),
        "rebalances": 2, "aborted": 1, "reactions": {"abort": 1}, "producers_replaced": 0,
        "restored": 50, "restored_per_s": 0.0, "cpu_s": 3.5, "memory_bytes": 1 << 27,
        "busy_s": {"process": 2.0, "poll": 1.0},
        "nodes": tuple(node_snapshot(f"node-{n}") for n in range(nodes)),
        "tasks": tuple(task_snapshot(first + n, nodes=nodes) for n in range(tasks)),
        "counters": (ProcessorCounter(node="node-0", name="refused", value=3),),
    }  # fmt: skip
    return WorkerSnapshot(**(known | others))


def application_snapshot(workers: int = 1, tasks: int = 1, **others: Any) -> ApplicationSnapshot:
    views = tuple(
        WorkerView(
            index=n, state="running", pid=1_000 + n, restarts=n,
            snapshot=worker_snapshot(tasks=tasks, first=n * tasks, **others),
        )
        for n in range(workers)
    )  # fmt: skip
    return ApplicationSnapshot(
        application="shop", version="0.1.0", topology="0123456789ab", workers=views
    )
