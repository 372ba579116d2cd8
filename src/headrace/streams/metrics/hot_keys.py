"""Hot keys: the most frequently changed keys of each store, in bounded memory.

A space-saving sketch (Metwally, Agrawal, El Abbadi, 2005) for each store of each task. It receives
the distinct keys of each commit rather than records: a key that changes in each commit is hot if
few other keys are, regardless of its number of records. Weights halve each minute, so that a key
does not stay hot forever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import islice

from headrace.streams.metrics.snapshots import ApplicationSnapshot, HotKey, TaskSnapshot
from headrace.streams.plan.plan import TaskId

HALVED_S = 60.0
"""Half-life of a change's weight, in seconds."""
COUNTERS = 8
"""Counted keys per reported key, so that infrequent keys are evicted first."""
LOOKED_MAX = 500
"""Maximum number of keys per commit; of more keys, each n-th key is sampled with weight n."""
KEY_BYTES_MAX = 1_024
"""Maximum size of a counted key: longer keys use memory and are unreadable in a table."""
_FORGOTTEN = 0.5


class Sketch:
    """Space-saving sketch of the keys of a task's store.

    >>> sketch = Sketch(2)
    >>> for commit in range(3):
    ...     sketch.add([b"hot", b"key %d" % commit])
    >>> [(hot.key, hot.share) for hot in sketch.most(1)]
    [(b'hot', 1.0)]

    Args:
        size: number of counted keys.
        halved_s: time of the last decay, in seconds of a monotonic clock.
    """

    __slots__ = ("_commits", "_counts", "_heap", "_size", "_step", "halved_s")

    def __init__(self, size: int, halved_s: float = 0.0) -> None:
        self._size = size
        self.halved_s = halved_s
        self._counts: dict[bytes, tuple[float, float]] = {}
        """Count of each key, and its maximum error."""
        self._heap: list[tuple[float, bytes]] = []
        """Each key with its count or an earlier count."""
        self._commits = 0.0
        self._step = 0

    def add(self, keys: Collection[bytes]) -> None:
        every = -(-len(keys) // LOOKED_MAX)
        self._step += 1
        looked = keys if every == 1 else islice(keys, self._step % every, None, every)
        self._commits += 1
        counts = self._counts
        for key in looked:
            counted = counts.get(key)
            if counted is not None:
                counts[key] = (counted[0] + every, counted[1])
            elif len(key) <= KEY_BYTES_MAX:
                self._take(key, every)

    def _take(self, key: bytes, weight: int) -> None:
        """Count a new key, evicting the key with the lowest count if the sketch is full."""
        counts, heap = self._counts, self._heap
        if len(counts) < self._size:
            counts[key] = (float(weight), 0.0)
            heap.append((float(weight), key))
            if len(heap) == self._size:
                heapify(heap)
            return
        while (now := counts[heap[0][1]][0]) != heap[0][0]:
            heapreplace(heap, (now, heap[0][1]))
        least, other = heap[0]
        del counts[other]
        counts[key] = (least + weight, least)
        heapreplace(heap, (least + weight, key))

    def halve(self) -> None:
        self._commits /= 2
        self._counts = {
            key: (count / 2, over / 2)
            for key, (count, over) in self._counts.items()
            if count / 2 >= _FORGOTTEN
        }
        self._heap = [(count, key) for key, (count, _) in self._counts.items()]
        heapify(self._heap)

    def most(self, number: int) -> tuple[HotKey, ...]:
        largest = sorted(self._counts.items(), key=lambda one: (-one[1][0], one[0]))[:number]
        commits = max(self._commits, 1.0)
        return tuple(
            HotKey(key=key, share=min(1.0, count / commits), max_error=min(1.0, over / commits))
            for key, (count, over) in largest
        )


class HotKeys:
    """Sketches of a worker's tasks, updated only by its thread.

    Args:
        most: number of reported keys per store and task; 0 disables counting.
        times_bytes: by store: number of bytes at the end of a row's key that are a window's or
            session's times, and not part of the key.
    """

    def __init__(
        self, most: int, times_bytes: Mapping[str, int], *, monotonic_s: Callable[[], float]
    ) -> None:
        self._most = most
        self._times_bytes = times_bytes
        self._monotonic_s = monotonic_s
        self._sketches: dict[tuple[TaskId, str], Sketch] = {}

    def written(
        self, deltas: Iterable[tuple[TaskId, Mapping[str, Sequence[tuple[bytes, object, int]]]]]
    ) -> None:
        if not self._most:
            return
        now_s = self._monotonic_s()
        for task, stores in deltas:
            for store, rows in stores.items():
                sketch = self._present(task, store, now_s)
                times = self._times_bytes.get(store, 0)
                if times:
                    sketch.add(dict.fromkeys(row[0][:-times] for row in rows))
                else:
                    sketch.add([row[0] for row in rows])

    def _present(self, task: TaskId, store: str, now_s: float) -> Sketch:
        """Return the sketch of a store, with decayed weights."""
        sketch = self._sketches.get((task, store))
        if sketch is None:
            sketch = self._sketches[task, store] = Sketch(COUNTERS * self._most, now_s)
        elif now_s - sketch.halved_s >= HALVED_S:
            sketch.halve()
            sketch.halved_s = now_s
        return sketch

    def retain(self, tasks: Collection[TaskId]) -> None:
        for task, store in [one for one in self._sketches if one[0] not in tasks]:
            del self._sketches[task, store]

    def of(self, task: TaskId, store: str) -> tuple[HotKey, ...]:
        sketch = self._sketches.get((task, store))
        return () if sketch is None else sketch.most(self._most)


def without_keys(app: ApplicationSnapshot) -> ApplicationSnapshot:
    """Return the snapshot without hot keys, for clients that may read metrics but no data."""
    tasks = (task for snapshot in app.snapshots for task in snapshot.tasks)
    if not any(store.hot_keys for task in tasks for store in task.stores):
        return app
    return replace(
        app,
        workers=tuple(
            view
            if view.snapshot is None
            else replace(
                view,
                snapshot=replace(
                    view.snapshot, tasks=tuple(map(_without_keys, view.snapshot.tasks))
                ),
            )
            for view in app.workers
        ),
    )


def _without_keys(task: TaskSnapshot) -> TaskSnapshot:
    return replace(task, stores=tuple(replace(store, hot_keys=()) for store in task.stores))
