"""Logs are a line per fact, and quote nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from headrace.state.log import get_logger
from headrace.streams import logs


@pytest.fixture(autouse=True)
def configuration() -> Iterator[None]:
    """Whatever is configured here ends with the test."""
    yield
    structlog.reset_defaults()


def _json(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_of_json_has_event_level_time_and_what_was_bound() -> None:
    out = io.StringIO()
    logs.configure("json", stream=out, fields={"worker_index": 3, "task": "default"})
    log = structlog.get_logger().bind(application="app", task="0_1")
    log.warning("task_restored", records=5)
    (line,) = _json(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "task_restored",
        "level": "warning",
        "application": "app",
        "task": "0_1",
        "worker_index": 3,
        "records": 5,
    }


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_fact_is_one_line_whatever_its_text(log_format: logs.LogFormat) -> None:
    out = io.StringIO()
    logs.configure(log_format, stream=out)
    structlog.get_logger().error("application_failed", reason="2 settings:\n- a\n- b")
    assert out.getvalue().count("\n") == 1
    assert "application_failed" in out.getvalue()


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_has_places_and_no_values(log_format: logs.LogFormat) -> None:
    """An error's text, and the variables around it, may quote a record."""
    out = io.StringIO()
    logs.configure(log_format, stream=out, colors=False)
    payload = "payload-of-a-record"
    try:
        int(payload)
    except ValueError as error:
        structlog.get_logger().exception("first_failed")
        structlog.get_logger().error("second_failed", exc_info=error)
        structlog.get_logger().error("third_failed", exc_info=sys.exc_info())
    text = out.getvalue()
    assert text.count("\n") == 3
    assert text.count("ValueError") == 3
    assert text.count("test_logs.py") == 3
    assert payload not in text


def test_lines_below_the_level_are_left_out() -> None:
    out = io.StringIO()
    logs.configure("json", level="warning", stream=out)
    log = structlog.get_logger()
    log.info("state_changed")
    log.warning("store_dropped")
    assert [line["event"] for line in _json(out)] == ["store_dropped"]


def test_the_console_has_colors_on_a_terminal_alone() -> None:
    out = io.StringIO()
    logs.configure("console", stream=out)
    structlog.get_logger().info("plain")
    logs.configure("console", stream=out, colors=True)
    structlog.get_logger().info("coloured")
    plain, coloured = out.getvalue().splitlines()
    assert "\x1b" not in plain
    assert "\x1b" in coloured


@pytest.mark.parametrize("wrong", [{"log_format": "xml"}, {"level": "loud"}])
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        logs.configure(**wrong)


def test_a_reader_that_is_gone_stops_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    stream = os.fdopen(writing, "w", buffering=1)
    logs.configure("json", stream=stream)
    for _ in range(3):
        structlog.get_logger().info("state_changed", text="x" * 10_000)
    with contextlib.suppress(BrokenPipeError):
        stream.close()
    closed = io.StringIO()
    closed.close()
    logs.configure("json", stream=closed)
    structlog.get_logger().info("state_changed")


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError(27, "File too large"), ValueError("closed")])
def test_a_program_s_own_log_that_takes_no_line_stops_nobody(error: Exception) -> None:
    """As on a full disk: the worker's call would fail wherever it has something to say."""
    out: Any = Unwilling(error)
    structlog.configure(
        processors=[structlog.processors.CallsiteParameterAdder(), _as_line],
        logger_factory=structlog.PrintLoggerFactory(out),
    )
    log = get_logger().bind(task="0_1")
    log.warning("producer_replaced")
    out.error = None
    log.warning("producer_replaced", reason="time-out")
    # And who says it is the one who called.
    assert out.text == "producer_replaced 0_1 test_logs.py\n"


def test_a_mistake_in_a_program_s_own_log_is_raised() -> None:
    structlog.configure(processors=[_mistaken])
    with pytest.raises(ValueError, match="no field of that name"):
        get_logger().warning("producer_replaced")


class Unwilling:
    """A file that takes nothing while there is an error."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.text = ""

    def write(self, text: str) -> None:
        if self.error is not None:
            raise self.error
        self.text += text

    def flush(self) -> None:
        pass


def _as_line(_: Any, __: str, event: Any) -> str:
    return f"{event['event']} {event['task']} {event['filename']}"


def _mistaken(_: Any, __: str, ___: Any) -> str:
    raise ValueError("no field of that name")


def test_importing_the_library_configures_nothing() -> None:
    code = (
        "import structlog\n"
        "from headrace.streams import app, logs\n"
        "from headrace.streams.cli import main\n"
        "from headrace.streams.worker import runtime\n"
        "print(structlog.is_configured())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
