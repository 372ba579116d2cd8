"""An application that is derived from another tells the listeners of both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from headrace import RestoreListener, WorkerListener
from headrace.streams import KafkaStreams
from headrace.streams.app import State
from headrace.streams.errors import ConfigError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.restore import RestoreListeners
from headrace.streams.worker.protocols import WorkerListeners
from headrace.topology import StreamsBuilder


class Recorder:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *arguments: self.heard.append((name, arguments))


def test_both_hear_the_same() -> None:
    one, other = Recorder(), Recorder()
    worker, restore = WorkerListeners((one, other)), RestoreListeners((one, other))
    place = TopicPartition("changelog", 1)
    tasks = [TaskId(0, 1)]
    worker.on_assignment(tasks)
    worker.on_running()
    worker.on_commit(tasks, 5)
    restore.on_restore_start(place, "store", 0, 9)
    restore.on_batch_restored(place, "store", 4, 3)
    restore.on_restore_end(place, "store", 7)
    assert one.heard == other.heard
    assert [name for name, _ in one.heard] == [
        "on_assignment",
        "on_running",
        "on_commit",
        "on_restore_start",
        "on_batch_restored",
        "on_restore_end",
    ]
    assert one.heard[4] == ("on_batch_restored", (place, "store", 4, 3))


def test_a_derived_application_has_other_settings_and_the_same_listeners() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    changes: list[State] = []
    settings = {"application.id": "a", "bootstrap.servers": "localhost:1", "worker.id": "w"}
    app = KafkaStreams(builder.build(), settings, state_listener=lambda new, _: changes.append(new))
    derived = app.derived(
        {"worker.id": "w-1"}, worker_listener=Recorder(), restore_listener=Recorder()
    )
    assert (app.config.worker_id, derived.config.worker_id) == ("w", "w-1")
    assert derived.config.application_id == "a"
    derived.close()
    derived.run()
    assert changes == [State.PENDING_SHUTDOWN, State.NOT_RUNNING]
    assert app.state is State.CREATED


class OneMethod:
    def on_restore_start(self, tp: object, store: str, begin: int, end: int) -> None: ...


class FewArguments(RestoreListener, WorkerListener):
    def on_restore_end(self, store: str) -> None: ...  # type: ignore[override]

    def on_commit(self) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("name", "callback", "message"),
    [
        ("restore_listener", print,
         r"on_batch_restored, on_restore_end, and a builtin\w+ has no on_restore_start\. Derive"),
        ("restore_listener", OneMethod(), "an OneMethod has no on_batch_restored"),
        ("restore_listener", FewArguments(),
         r"restore_listener.on_restore_end is called as on_restore_end\(tp, store, total\), and "),
        ("restore_listener", FewArguments, r"Write restore_listener=FewArguments\(\)"),
        ("worker_listener", FewArguments(),
         r"worker_listener.on_commit is called as on_commit\(tasks, records\), and "),
        ("worker_listener", OneMethod(), "an OneMethod has no on_assignment"),
        ("state_listener", lambda state: None,
         r"is called as listener\(new, old\), and .* takes \(state\); give it 2 parameters"),
        ("state_listener", "changed", "must be a function, not 'changed'"),
        ("uncaught_error_handler", lambda: None, r"is called as handler\(error\), and "),
    ],
)  # fmt: skip
def test_a_callback_that_cannot_be_called_is_rejected(
    name: str, callback: Any, message: str
) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    settings = {"application.id": "a", "bootstrap.servers": "localhost:1"}
    with pytest.raises(ConfigError, match=f"^{name}") as raised:
        KafkaStreams(builder.build(), settings, **{name: callback})
    assert re.search(message, str(raised.value)), raised.value


def test_a_listener_may_override_some_methods_only() -> None:
    class Ends(RestoreListener):
        def on_restore_end(self, tp: TopicPartition, store: str, total: int) -> None: ...

    class Commits(WorkerListener):
        def on_commit(self, tasks: Sequence[TaskId], records: int) -> None: ...

    builder = StreamsBuilder()
    builder.stream("in").to("out")
    settings = {"application.id": "a", "bootstrap.servers": "localhost:1"}
    KafkaStreams(
        builder.build(), settings, restore_listener=Ends(), worker_listener=Commits()
    ).close()
