"""What a user is told of an error in an executor, which Spark wraps in pages of its own."""

from __future__ import annotations

from headrace.spark_bridge.cli.backfill import code_of
from headrace.spark_bridge.stages import stage_error
from headrace.streams.supervisor.exit_codes import ExitCode

WRAPPED = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "./project.zip/spark_bridge/task_run.py", line 11, in process
{error}

\tat org.apache.spark.api.python.BasePythonRunner
"""


def said(error: str) -> str:
    return str(stage_error((0, 2), RuntimeError(WRAPPED.format(error=error))))


def test_an_error_of_ours_is_said_without_what_spark_puts_around_it() -> None:
    found = said(
        "headrace.streams.errors.RecordError: cannot deserialize the value (orders-3 offset 17)"
    )
    assert found == (
        "sub-topology 0, 2 cannot be computed: cannot deserialize the value (orders-3 offset "
        "17). Nothing is visible. Correct the cause, and run the backfill again"
    )


def test_a_module_that_executors_lack_is_named_with_the_ways_out() -> None:
    found = said("ModuleNotFoundError: No module named 'msgspec'")
    assert "the Python of the executors has no module 'msgspec'" in found
    assert "Install headrace[spark]" in found
    assert "PYSPARK_PYTHON" in found
    assert "PythonException" not in found


def test_what_is_not_known_is_said_whole() -> None:
    assert "RuntimeError: Job aborted" in said("OSError: disk full")


def test_a_right_that_an_executor_lacks_is_no_failure_of_the_backfill() -> None:
    """So the command ends with the code of a missing right, and nobody starts it again."""
    lacks = "User:app lacks the right Read on the topic orders: Broker: denied; grant it"
    error = RuntimeError(WRAPPED.format(error=f"headrace.streams.kafka.acls.AccessError: {lacks}"))
    found = stage_error((0,), error)
    assert code_of(found) is ExitCode.ACCESS
    assert str(found) == f"sub-topology 0 cannot be computed: {lacks}"


def test_where_a_function_of_the_user_failed_is_said_on_the_same_line() -> None:
    note = "raised at my_app.py:9 step"
    found = said(f"headrace.streams.errors.RecordError: a user function raised ValueError\n{note}")
    assert f"raised ValueError; {note}. Nothing is visible" in found
