"""The error that a record stops an application with names a step that helps, and can be taken."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace import StreamsBuilder, TopologyTestDriver, serdes
from headrace.streams.errors import RecordError
from headrace.streams.supervisor.exit_codes import ExitCode
from headrace.streams.supervisor.worker_process import _exit_code, _FailureFormat


def failure(data: bytes) -> RecordError:
    builder = StreamsBuilder()
    numbers = builder.stream("in", key=serdes.string, value=serdes.json)
    numbers.map_values(lambda value: 1 // value).to("out", value=serdes.json)
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(RecordError) as raised:
        driver.input("in").send_bytes(b"k", data)
    return raised.value


@pytest.mark.parametrize(
    ("data", "step"),
    [(b"0", "correct the code"), (b"{", "deserialization.exception.handler")],
)
def test_the_step_fits_what_failed(data: bytes, step: str) -> None:
    said = str(failure(data))
    assert step in said
    assert ("correct the code" in said) == (data == b"0")
    assert "headrace skip in " in said


class Reports:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_and_flush(self, report: Any) -> bool:
        self.sent.append(report)
        return True


def test_a_worker_names_the_application_that_it_was_told_to_run() -> None:
    def work() -> None:
        raise failure(b"0")

    reports = Reports()
    format_ = _FailureFormat(
        full=False, target="my apps/shops.py:app", again=["--config", "my own.toml"]
    )
    code = _exit_code(work, cast("Any", reports), format_)
    assert code is ExitCode.RECORD
    named = "--app 'my apps/shops.py:app' --config 'my own.toml'"
    assert f"headrace skip in 0 0 {named}" in str(reports.sent[0])
    assert "MODULE:APP" not in str(reports.sent[0])
