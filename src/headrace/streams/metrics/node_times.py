"""Sampling profiler of a worker's thread, with a sample every 50 ms by default.

    worker's thread:  … the program's frame ─► a user's function ─► …
    the sampler:            ▲ its line is that of a node    ▲ its file shows whose code it is

Nothing is done per record. A sample takes some microseconds. A node's time is its number of samples
multiplied by their distance: accurate after minutes, and rough before.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from headrace.streams.metrics.measures import NodeKey, Times
from headrace.topology.compile.compiler import Program

SAMPLE_INTERVAL_S = 0.05
_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
_LIBRARIES = tuple(
    {path + os.sep for name, path in sysconfig.get_paths().items() if name.endswith("lib")}
)


class NodeTimes:
    """Sampling profiler of a worker's thread, every 50 ms by default.

    Args:
        programs: the programs that the worker runs.
        every_s: seconds between two samples; 0 disables them.
        frames: returns the innermost frame of each thread.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        *,
        every_s: float = SAMPLE_INTERVAL_S,
        frames: Callable[[], Mapping[int, FrameType]] = sys._current_frames,
    ) -> None:
        self._programs = {program.filename: program for program in programs}
        self._every_s = every_s
        self._frames = frames
        self._ended = threading.Event()
        self._nodes: dict[NodeKey, float] = {}
        self._busy: dict[str, float] = {}

    def times(self) -> Times:
        return Times(self._nodes.copy(), self._busy.copy())

    @contextmanager
    def watching(self, thread: int, activity: Callable[[], str | None]) -> Iterator[None]:
        """Sample a thread until the end of the block; `activity` returns its step of the loop."""
        if not self._every_s:
            yield
            return
        sampler = threading.Thread(
            target=self._run, args=(thread, activity), name="headrace-node-times", daemon=True
        )
        sampler.start()
        try:
            yield
        finally:
            self._ended.set()
            sampler.join(10 * self._every_s)

    def _run(self, thread: int, activity: Callable[[], str | None]) -> None:
        last_s = time.monotonic()
        while not self._ended.wait(self._every_s):
            now_s = time.monotonic()
            # The actual distance counts, because this thread may have been delayed.
            self.sample(self._frames().get(thread), now_s - last_s, activity())
            last_s = now_s

    def sample(self, frame: FrameType | None, seconds: float, activity: str | None) -> None:
        """Add seconds to the current location of a thread; `frame` is None after its end."""
        callees: list[FrameType] = []
        while frame is not None:
            program = self._programs.get(frame.f_code.co_filename)
            if program is not None:
                line: int | None = frame.f_lineno  # None between two lines
                node = program.line_nodes[line - 1] if line else ""
                if node:
                    key = NodeKey(program.sub_topology.id, node, _is_user_code(callees[::-1]))
                    self._nodes[key] = self._nodes.get(key, 0.0) + seconds
                    break
            callees.append(frame)
            frame = frame.f_back
        what = "process" if frame is not None else activity
        if what is not None:
            self._busy[what] = self._busy.get(what, 0.0) + seconds


def _is_user_code(called: Sequence[FrameType]) -> bool:
    """Return whether called code is the user's, by the first frame outside of this library.

    A direct callee of the program is the user's, wherever it is installed; after a function of this
    library, installed code is a dependency.
    """
    for depth, frame in enumerate(called):
        file = frame.f_code.co_filename
        if file.startswith("<") and depth:
            continue  # generated code: its caller determines the owner
        if not file.startswith(_PACKAGE_DIR):
            return depth == 0 or not file.startswith(_LIBRARIES)
    return False
