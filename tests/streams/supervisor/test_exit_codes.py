"""Each error has the exit code of who has to act, and the page says the same."""

from __future__ import annotations

from headrace.streams.errors import (
    AbortableError,
    FatalClientError,
    ProcessorFailedError,
    RecordError,
    StreamsError,
    TaskMigratedError,
)
from headrace.streams.supervisor.exit_codes import TABLE, ExitCode, exit_code_of, is_crash
from tests.support.generated_pages import run_exit_codes
from tests.support.processes import ROOT


def test_operations_shows_the_table() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert run_exit_codes() in page, (
        "paste `python -m tests.support.generated_pages exit-codes` into it"
    )


def test_every_code_is_in_the_table() -> None:
    assert {ending.code for ending in TABLE} == set(ExitCode)


def test_every_error_that_nobody_catches_is_in_the_table() -> None:
    """Their own documentation says so; what the worker catches has no code of its own."""
    loaded = _all_below(StreamsError)
    final = {error for error in loaded if "t is not handled" in (error.__doc__ or "")}
    assert len(final) >= 8
    table = {ending.error for ending in TABLE}
    # What is more special than one of them has its code, see below.
    assert {error for error in final if not table & set(error.__mro__[1:])} <= table


def _all_below(error: type[Exception]) -> set[type[Exception]]:
    return {error}.union(*(_all_below(child) for child in error.__subclasses__()))


def test_a_subclass_has_the_code_of_its_parent() -> None:
    class PoisonError(RecordError):
        pass

    error = PoisonError("no", topic="in", partition=0, offset=0)
    assert exit_code_of(error) is ExitCode.RECORD


def test_only_crashes_are_started_again() -> None:
    assert is_crash(exit_code_of(FatalClientError("gone")))
    assert is_crash(exit_code_of(ValueError()))
    assert is_crash(exit_code_of(SystemExit(0)))
    # Were one of these to get through, the next start would begin from committed facts.
    assert is_crash(exit_code_of(AbortableError()))
    assert is_crash(exit_code_of(TaskMigratedError()))
    assert all(is_crash(code) for code in (-9, -11, -15, 1, 9, 77, 255))
    not_again = set(ExitCode) - {ExitCode.CRASHED, ExitCode.CLIENT}
    assert not any(is_crash(code) for code in not_again)


def test_a_processor_that_fails_without_a_record_is_not_started_again() -> None:
    """Its code would fail the same way, and what service managers restart is none of it."""
    code = exit_code_of(ProcessorFailedError("a user function raised KeyError", node="n"))
    assert code is ExitCode.RECORD
    assert not is_crash(code)
