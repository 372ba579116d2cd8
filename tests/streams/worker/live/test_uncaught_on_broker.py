"""An error in one process, on a real cluster: it alone is mended or ends, or all of them end."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.app import State
from headrace.streams.supervisor.exit_codes import ExitCode
from headrace.streams.worker.uncaught_errors import UncaughtErrorResponse
from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka
from tests.support.processes import wait_until
from tests.support.supervised import APP, Counted
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

HANDLED = "from headrace import UncaughtErrorResponse\n" + APP.replace(
    "{settings!r})",
    "{settings!r}, uncaught_error_handler=lambda _: UncaughtErrorResponse.ANSWER)",
)


def with_handler(app: Counted, answer: str, *, poison: str = "poison") -> None:
    """Write the application's file again, with a handler that answers this."""
    text = HANDLED.format(input=app.input, output=app.output, settings=app.settings)
    text = text.replace("ANSWER", answer).replace('"poison"', repr(poison))
    (app.home / "my_app.py").write_text(text)


def test_all_processes_end_within_seconds_and_a_later_start_begins_anew(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    with_handler(app, "SHUTDOWN_APPLICATION")
    with app.running(1) as one:
        one.wait_running(1)
        # What stops one process is nothing to the other, so that it ends by the word alone.
        with_handler(app, "SHUTDOWN_APPLICATION", poison="another poison")
        with app.running(1, "--set=state.dir=other", log="other-log") as other:
            other.wait_running(1)
            app.write()
            app.wait_counted(one)
            keys = [b"key-%02d" % number for number in range(20)]
            kafka.write(app.bootstrap, app.input, [(key, b"poison") for key in keys])
            app.expected.update(keys)
            begun_s = time.monotonic()
            codes = one.wait(), other.wait()
            took_s = time.monotonic() - begun_s
    assert codes == (ExitCode.RECORD, ExitCode.SHUT_DOWN)
    assert took_s < 20
    assert len(other.events("shutdown_request_received")) == 1
    reasons = [event["reason"] for event in other.events("application_failed")]
    assert len(reasons) == 1
    assert "is shut down on all hosts" in reasons[0]
    assert "RecordError" in reasons[0]
    assert f"{app.input}-" in reasons[0]
    assert "a secret of the record" not in one.text() + other.text()
    assert len(one.events("worker_started")) == len(other.events("worker_started")) == 1
    # The word is still there, and is not for who starts later.
    with app.running(1, log="again-log") as again:
        again.wait_running(1)
        app.write()
        app.wait_counted(again)
        time.sleep(3)
        assert again.process.poll() is None
        again.signal(signal.SIGTERM)
        assert again.wait() == ExitCode.STOPPED
    app.check_exact()


def test_the_record_that_ends_all_is_met_by_one_process_alone(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    with_handler(app, "SHUTDOWN_APPLICATION")
    with app.running(1) as one, app.running(1, "--set=state.dir=other", log="other-log") as other:
        one.wait_running(1)
        other.wait_running(1)
        app.write()
        app.wait_counted(one)
        app.write_one(b"poison")
        codes = {one.wait(), other.wait()}
    assert codes == {ExitCode.RECORD, ExitCode.SHUT_DOWN}
    assert len(one.events("shutdown_requested")) + len(other.events("shutdown_requested")) == 1
    assert (
        len(one.events("shutdown_request_received"))
        + len(other.events("shutdown_request_received"))
        == 1
    )


def test_a_crash_that_the_handler_shuts_down_is_not_started_again(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    with_handler(app, "SHUTDOWN_CLIENT")
    text = (tmp_path / "my_app.py").read_text()
    raises = "    def on_assignment(self, tasks):\n        raise OSError(5, 'disk')\n"
    others = "".join(
        f"    def {name}(self, *args):\n        pass\n" for name in ("on_commit", "on_running")
    )
    text = text.replace("builder =", f"class Fails:\n{raises}{others}builder =", 1)
    (tmp_path / "my_app.py").write_text(
        text.replace("uncaught_error", "worker_listener=Fails(), uncaught_error", 1)
    )
    with app.running(1) as run:
        assert run.wait() == ExitCode.SHUT_DOWN
        assert len(run.events("worker_started")) == 1


def test_a_worker_is_replaced_in_its_process_and_counts_each_record_once(
    topics: Topics, tmp_path: Path
) -> None:
    inputs, outputs = topics.create("in", partitions=1), topics.create("out", partitions=1)
    failures: list[Exception] = []
    has_failed = False

    def fails_once(value: str) -> str:
        nonlocal has_failed
        if value == "7" and not has_failed:
            has_failed = True
            raise ZeroDivisionError
        return value

    def handler(error: Exception) -> UncaughtErrorResponse:
        failures.append(error)
        return UncaughtErrorResponse.REPLACE_WORKER

    builder = StreamsBuilder()
    stream = builder.stream(inputs, key=serdes.string, value=serdes.string)
    stream.map_values(fails_once).group_by_key().count(store="counts").to_stream().to(outputs)
    settings = {
        "application.id": topics.name("app"),
        "bootstrap.servers": topics.bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": str(tmp_path),
        "commit.interval.ms": 20,
        "statestore.cache.max.bytes": 0,
    }
    states: list[State] = []
    app = KafkaStreams(
        builder.build(),
        settings,
        uncaught_error_handler=handler,
        state_listener=lambda new, _: states.append(new),
    )
    with app:
        app.start()
        kafka.write(topics.bootstrap, inputs, [(b"k", b"%d" % n) for n in range(10)])
        wait_until(
            lambda: len(kafka.read(topics.bootstrap, outputs)) >= 10, what="all records counted"
        )
    counts = [int.from_bytes(record.value) for record in kafka.read(topics.bootstrap, outputs)]
    assert counts == list(range(1, 11))
    assert len(failures) == 1
    assert states.count(State.CONNECTING) == 2
    assert states[-1] is State.NOT_RUNNING
