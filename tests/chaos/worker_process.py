"""One worker of the application in a process of its own, which dies where it is told to.

python -m tests.chaos.worker_process '{"settings": {...}, "prefix": "", "status": "w0.status"}'
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from headrace.streams import KafkaStreams
from headrace.streams.app import State
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.metrics.counters import Counters
from headrace.streams.metrics.snapshots import to_json
from headrace.streams.plan.plan import TaskId
from headrace.streams.supervisor.exit_codes import exit_code_of
from headrace.streams.tasks.task import Task
from tests.chaos import application
from tests.chaos.crashes import let_dump
from tests.chaos.status import STEPS, Field, Status

FACTS_EVERY_S = 0.5
SLOW_BATCHES = 12
"""How many batches of a slow restore are slow; changelogs grow with the run."""


class Publisher:
    """Writes down what the worker does, and kills it at the step that the nemesis asked for."""

    def __init__(self, status: Status, tasks: Path, *, slow_restore_ms: int = 0) -> None:
        self._status = status
        self._slow_restore_s = slow_restore_ms / 1000
        self._slow_batches = SLOW_BATCHES
        self._tasks = tasks
        self._begun_with = 0
        self.app: KafkaStreams | None = None
        status.clear()
        status[Field.PID] = os.getpid()
        status[Field.STARTED_NS] = time.time_ns()

    def probe(self, step: str) -> None:
        """Hear of a step; it may be the last one."""
        status = self._status
        number = STEPS.index(step)
        self.count(step)
        status[Field.STEP] = number
        status.add(Field.STEPS)
        if step == "transaction_begun":
            status[Field.IN_TRANSACTION] = 1
            status.add(Field.TRANSACTIONS)
        if step == "records_restored" and self._slow_restore_s and self._slow_batches:
            self._slow_batches -= 1
            time.sleep(self._slow_restore_s)
        if status[Field.DIE_AT] == number:
            time.sleep(status[Field.DIE_AFTER_MS] / 1000)
            os.kill(os.getpid(), signal.SIGKILL)

    def count(self, step: str = "") -> None:
        """Write down what the worker has counted; in its own thread, or when it has ended."""
        worker = None if self.app is None else self.app._worker
        if self.app is None or worker is None:
            return
        parts, status = worker._parts, self._status
        counters = parts.counters
        own = [one for task, one in counters.tasks.items() if self.reads_inputs(task)]
        is_ending = step == "offsets_sent"
        status[Field.COUNTED_OPEN] = sum(one.open for one in own) if is_ending else 0
        status[Field.COUNTED_PROCESSED] = sum(one.processed for one in own)
        status[Field.COUNTED_COMMITTED] = sum(one.committed for one in own)
        status[Field.COUNTED_UNDECIDED] = counters.undecided
        status[Field.COUNTED_RESTORED] = parts.restorer.restored
        status[Field.COUNTED_COMMITS] = counters.commits
        status[Field.COUNTED_UNDECIDED_COMMITS] = counters.undecided_commits
        status[Field.COUNTED_ABORTED] = worker._snapshots.aborted
        status[Field.COUNTED_BEGUN] = parts.transactions._begun_s is not None
        reactions = {**counters.reactions, "replace_producer": 0}
        status[Field.COUNTED_REACTIONS] = sum(reactions.values())

    def reads_inputs(self, task: TaskId) -> bool:
        """What is between two sub-topologies is deleted once it is read: nobody can recount it."""
        assert self.app is not None
        plan = next(plan for plan in self.app._plans if plan.id == task.sub_topology)
        return not any(topic.endswith("-repartition") for topic in plan.topics.all_sources)

    def watch_tasks(self) -> None:
        """Write down what tasks say of each chunk, and what is counted of it."""
        process, ran, status = Task.process, Counters.ran, self._status

        def told_process(task: Task, max_records: int) -> int:
            self._begun_with = 0
            if not self.reads_inputs(task.id):
                return process(task, max_records)
            self._begun_with = min(max_records, task.queued())
            status.add(Field.UNFINISHED, self._begun_with)
            done = process(task, max_records)
            status.add(Field.TOLD_PROCESSED, done)
            return done

        def told_ran(counters: Counters, task: TaskId, records: int, *, oldest_ms: int) -> None:
            ran(counters, task, records, oldest_ms=oldest_ms)
            if self.reads_inputs(task):
                status.add(Field.COUNTED_PROCESSED, records)
                status.add(Field.UNFINISHED, -self._begun_with)

        setattr(Task, "process", told_process)  # noqa: B010
        setattr(Counters, "ran", told_ran)  # noqa: B010

    def tell_lags(self) -> None:
        """Write down how far behind the worker saw itself at last."""
        assert self.app is not None
        lags = [(one.topic, one.partition, one.committed, one.end) for one in self.app.lags()]
        self._tasks.with_suffix(".lags").write_text(json.dumps(lags))

    def tell_facts(self) -> None:
        """Write down twice a second what a worker tells its supervisor, for queries."""
        path, draft = self._tasks.with_suffix(".facts"), self._tasks.with_suffix(".facts-new")

        def tell() -> None:
            while True:
                time.sleep(FACTS_EVERY_S)
                facts = None if self.app is None else self.app.metrics().workers[0].snapshot
                try:
                    draft.write_bytes(b"%d " % os.getpid() + (to_json(facts) if facts else b""))
                    draft.replace(path)
                except OSError:
                    continue  # its disk is full at the moment

        threading.Thread(target=tell, name="tells-facts", daemon=True).start()

    def on_state(self, new: State, _: State) -> None:
        self._status[Field.RUNNING] = new is State.RUNNING

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        self._status[Field.TASKS] = len(tasks)
        if not tasks:
            self._status[Field.IN_TRANSACTION] = 0
        draft = self._tasks.with_suffix(".new")
        draft.write_text(json.dumps([str(task) for task in tasks]))
        draft.replace(self._tasks)

    def on_running(self) -> None:
        pass

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        status = self._status
        status[Field.IN_TRANSACTION] = 0
        status.add(Field.COMMITTED_RECORDS, records)
        status[Field.COMMITTED_NS] = time.time_ns()
        status.add(Field.COMMITS)

    def on_restore_start(self, place: TopicPartition, store: str, begin: int, end: int) -> None:
        if end > begin:
            self._status.add(Field.RESTORING)

    def on_batch_restored(self, place: TopicPartition, store: str, offset: int, count: int) -> None:
        self._status.add(Field.TOLD_RESTORED, count)
        self.count()

    def on_restore_end(self, place: TopicPartition, store: str, total: int) -> None:
        self._status[Field.RESTORING] = max(0, self._status[Field.RESTORING] - 1)
        self._status.add(Field.RESTORED)


class MovedClock(SystemClock):
    """The machine's clocks, of which the nemesis moves the one on the wall."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970, as this worker has it."""
        return super().now_ms() + self._status[Field.WALL_AHEAD_MS]


def _log_as_json() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )


def run(plan: dict[str, Any]) -> int:
    """Run until told to stop; returns the exit status."""
    # Where a worker hangs is seen with SIGUSR1; its log then shows what each thread does, as it
    # does where a library crashes.
    let_dump()
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _log_as_json()
    status = Path(plan["status"])
    numbers = Status(status)
    publisher = Publisher(
        numbers,
        status.with_suffix(".tasks"),
        slow_restore_ms=plan.get("slow_restore_ms", 0),
    )
    try:
        publisher.app = KafkaStreams(
            application.build_topology(plan["prefix"], plan.get("version", 1)),
            plan["settings"],
            state_listener=publisher.on_state,
            restore_listener=publisher,
            worker_listener=publisher,
            probe=publisher.probe,
            clock=MovedClock(numbers),
        )
        publisher.watch_tasks()
        publisher.tell_facts()
        publisher.app.run()
        publisher.tell_lags()
    except StreamsError as error:
        return int(exit_code_of(error))
    finally:
        publisher.count()
    return 0


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1])))
