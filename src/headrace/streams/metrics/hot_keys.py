"""Which keys change most: a sketch of the rows that commits write, of a bounded size.

A space-saving sketch (Metwally, Agrawal, El Abbadi, 2005) of each store of each task. It is told
the keys that a commit has written, once each, and never of records: a key that changes in each
commit stands out where few keys do, however many records it has. What is older weighs less, by half
for each minute, so that a key is not hot for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import islice

from headrace.streams.metrics.snapshots import ApplicationSnapshot, HotKey, TaskSnapshot
from headrace.streams.plan.plan import TaskId

HALVED_S = 60.0
"""After so long a change weighs half as much."""
COUNTERS = 8
"""So many keys are counted for one that is told, so that those that come now and then go first."""
LOOKED_MAX = 500
"""So many keys of a commit are looked at; of more each n-th is, and counts n times."""
KEY_BYTES_MAX = 1_024
"""A longer key is left out: it takes memory, and nobody reads it in a table."""
_FORGOTTEN = 0.5


class Sketch:
    """The keys of one store of one task.

    >>> sketch = Sketch(2)
    >>> for commit in range(3):
    ...     sketch.add([b"hot", b"key %d" % commit])
    >>> [(hot.key, hot.share) for hot in sketch.most(1)]
    [(b'hot', 1.0)]

    Args:
        size: how many keys it counts.
    """

    __slots__ = ("_commits", "_counts", "_heap", "_size", "_step")

    def __init__(self, size: int) -> None:
        self._size = size
        self._counts: dict[bytes, tuple[float, float]] = {}
        """How often each was written, and by how much that may be too often."""
        self._heap: list[tuple[float, bytes]] = []
        """Each key once, with its count or an earlier one."""
        self._commits = 0.0
        self._step = 0

    def add(self, keys: Collection[bytes]) -> None:
        """Count the keys of one commit, each of them once."""
        every = -(-len(keys) // LOOKED_MAX)
        self._step += 1
        looked = keys if every == 1 else islice(keys, self._step % every, None, every)
        self._commits += 1
        counts = self._counts
        for key in looked:
            found = counts.get(key)
            if found is not None:
                counts[key] = (found[0] + every, found[1])
            elif len(key) <= KEY_BYTES_MAX:
                self._take(key, every)

    def _take(self, key: bytes, weight: int) -> None:
        """Count a new key, in the place of the one with the lowest count where all are taken."""
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
        """Have all count half."""
        self._commits /= 2
        self._counts = {
            key: (count / 2, over / 2)
            for key, (count, over) in self._counts.items()
            if count / 2 >= _FORGOTTEN
        }
        self._heap = [(count, key) for key, (count, _) in self._counts.items()]
        heapify(self._heap)

    def most(self, number: int) -> tuple[HotKey, ...]:
        """The keys that were written most often."""
        found = sorted(self._counts.items(), key=lambda one: (-one[1][0], one[0]))[:number]
        commits = max(self._commits, 1.0)
        return tuple(
            HotKey(key=key, share=min(1.0, count / commits), over=min(1.0, over / commits))
            for key, (count, over) in found
        )


@dataclass(frozen=True, slots=True)
class _Kept:
    sketch: Sketch
    halved_s: float


class HotKeys:
    """The sketches of a worker's tasks; changed by its thread alone.

    Args:
        most: how many keys of a store of a task are told; 0 counts none.
        times_bytes: by store, how many bytes at the end of a row's key are a window's or a
            session's times, and no part of the key.
    """

    def __init__(
        self, most: int, times_bytes: Mapping[str, int], *, monotonic_s: Callable[[], float]
    ) -> None:
        self._most = most
        self._times_bytes = times_bytes
        self._monotonic_s = monotonic_s
        self._kept: dict[tuple[TaskId, str], _Kept] = {}

    def written(
        self, deltas: Iterable[tuple[TaskId, Mapping[str, Sequence[tuple[bytes, object, int]]]]]
    ) -> None:
        """A commit has written these rows of tasks."""
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
        """The sketch of a store, in which what is older weighs less."""
        kept = self._kept.get((task, store))
        if kept is None:
            kept = self._kept[task, store] = _Kept(Sketch(COUNTERS * self._most), now_s)
        elif now_s - kept.halved_s >= HALVED_S:
            kept.sketch.halve()
            self._kept[task, store] = replace(kept, halved_s=now_s)
        return kept.sketch

    def keep_to(self, tasks: Collection[TaskId]) -> None:
        """Forget the tasks that are not among these."""
        for task, store in [one for one in self._kept if one[0] not in tasks]:
            del self._kept[task, store]

    def of(self, task: TaskId, store: str) -> tuple[HotKey, ...]:
        """The keys of a store that change most."""
        kept = self._kept.get((task, store))
        return () if kept is None else kept.sketch.most(self._most)


def without_keys(app: ApplicationSnapshot) -> ApplicationSnapshot:
    """The application without keys of stores, which are data: for whoever may see figures alone."""
    tasks = (task for facts in app.facts for task in facts.tasks)
    if not any(store.hot_keys for task in tasks for store in task.stores):
        return app
    return replace(
        app,
        workers=tuple(
            view
            if view.facts is None
            else replace(
                view,
                facts=replace(view.facts, tasks=tuple(map(_without_keys, view.facts.tasks))),
            )
            for view in app.workers
        ),
    )


def _without_keys(task: TaskSnapshot) -> TaskSnapshot:
    return replace(task, stores=tuple(replace(store, hot_keys=()) for store in task.stores))
