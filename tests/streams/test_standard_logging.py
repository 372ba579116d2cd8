"""A program that runs an application in itself has its own word on logs, and nobody else has."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
import structlog

from headrace.state.log import get_logger
from headrace.streams.kafka.clients import BrokerState

EMBEDDED = """
{setup}
from headrace import KafkaStreams, StreamsBuilder, serdes
builder = StreamsBuilder()
builder.stream("in", value=serdes.string).to("out")
app = KafkaStreams(builder.build(), {{
    "application.id": "shout", "bootstrap.servers": "localhost:1"}})
{before_run}
app.close()
app.run()
{after}
"""
CHANGED = "state_changed application=shout old=created new='pending shutdown'"


def embedded(setup: str, *, before_run: str = "", after: str = "") -> tuple[str, list[str]]:
    """Run a program; returns what it wrote to its output and the lines of its errors."""
    code = EMBEDDED.format(setup=setup, before_run=before_run, after=after)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


@pytest.fixture
def unconfigured() -> Any:
    """Whatever an earlier test made of structlog, here it is as it is imported."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.mark.slow
def test_a_program_that_says_nothing_of_logs_sees_nothing_that_is_well() -> None:
    assert embedded("") == ("", [])


@pytest.mark.slow
def test_a_level_of_the_program_is_obeyed() -> None:
    assert embedded("import logging; logging.basicConfig(level=logging.WARNING)") == ("", [])


def test_events_go_where_the_program_says_under_the_name_of_their_module() -> None:
    said, lines = embedded("import logging; logging.basicConfig(level=logging.INFO)")
    assert said == ""
    assert lines[0] == f"INFO:headrace.streams.app:{CHANGED}"


@pytest.mark.slow
def test_a_record_has_the_fields_and_the_line_that_said_it() -> None:
    setup = (
        "import logging\n"
        "logging.basicConfig(level='INFO', format='%(event)s|%(application)s|%(old)s|"
        "%(filename)s|%(funcName)s')"
    )
    _, lines = embedded(setup)
    assert lines[0] == "state_changed|shout|created|app.py|_notify"


@pytest.mark.slow
def test_the_level_can_change_while_it_runs() -> None:
    setup = "import logging; logging.basicConfig(level=logging.WARNING)"
    louder = "logging.getLogger('headrace.streams').setLevel(logging.INFO)"
    _, lines = embedded(setup, before_run=louder)
    assert lines[0] == f"INFO:headrace.streams.app:{CHANGED}"
    _, lines = embedded(
        "import logging; logging.basicConfig(level=logging.INFO)",
        before_run="logging.getLogger('headrace').setLevel(logging.ERROR)",
    )
    assert lines == []


@pytest.mark.slow
def test_a_program_that_has_configured_structlog_gets_all_events_there() -> None:
    setup = (
        "import logging, structlog\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "structlog.configure(processors=[structlog.processors.JSONRenderer()])"
    )
    said, lines = embedded(setup)
    assert lines == []
    assert said.splitlines()[0] == (
        '{"application": "shout", "old": "created", "new": "pending shutdown", '
        '"event": "state_changed"}'
    )


@pytest.mark.slow
def test_structlog_over_logging_has_the_names_of_modules_too() -> None:
    setup = (
        "import logging, structlog\n"
        "logging.basicConfig(level=logging.INFO, format='%(name)s %(message)s')\n"
        "structlog.configure(processors=[structlog.stdlib.render_to_log_kwargs],\n"
        "    wrapper_class=structlog.stdlib.BoundLogger,\n"
        "    logger_factory=structlog.stdlib.LoggerFactory())"
    )
    _, lines = embedded(setup)
    assert lines[0] == "headrace.streams.app state_changed"


@pytest.mark.slow
def test_ours_is_taken_whenever_it_is_asked_for() -> None:
    said, lines = embedded(
        "", before_run="from headrace.streams import logs; logs.configure('json')"
    )
    assert said == ""
    assert '"event": "state_changed"' in lines[0]


@pytest.mark.slow
def test_running_it_configures_neither() -> None:
    said, _ = embedded(
        "",
        after="import logging, structlog; print(structlog.is_configured(), logging.root.handlers)",
    )
    assert said == "False []\n"


@pytest.mark.usefixtures("unconfigured")
def test_a_client_s_own_lines_go_there_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headrace")
    heard = BrokerState()
    heard.on_log(logging.WARNING, "CONFWARN", "a setting is odd")
    heard.on_log(logging.DEBUG, "STATE", "up")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "client_warned facility=CONFWARN text='a setting is odd'"),
        ("DEBUG", "client_logged facility=STATE text=up"),
    ]


@pytest.mark.usefixtures("unconfigured")
def test_an_error_s_text_stays_out_and_its_places_are_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        int("payload-of-a-record")
    except ValueError as error:
        get_logger().bind(task="0_1").error("task_failed", exc_info=error)
    (record,) = caplog.records
    assert "ValueError" in record.getMessage()
    assert "test_standard_logging.py" in record.getMessage()
    assert "payload-of-a-record" not in caplog.text
    assert record.exc_info is None


@pytest.mark.usefixtures("unconfigured")
def test_fields_with_names_of_logging_s_own_are_kept_beside_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    get_logger().error("store_dropped", name="counts", process="a b", last_output=["one", "two"])
    (record,) = caplog.records
    assert record.getMessage() == ("store_dropped name=counts process='a b'\n    one\n    two")
    assert (vars(record)["name_"], record.name) == ("counts", __name__)
