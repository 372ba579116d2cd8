"""What Spark is told of an error in an executor, which it writes where others read it."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge.errors import BackfillError
from headrace.spark_bridge.executor_errors import without_record_texts
from headrace.streams import TopologyTestDriver
from headrace.streams.errors import StreamsError
from headrace.topology import StreamsBuilder, serdes
from tests.spark_bridge.support.local_engine import backfilled

CANARY = "c4n4ry"
STRINGS = {"key": serdes.string, "value": serdes.string}


def fail(*given: Any) -> Any:
    raise ValueError(f"cannot work with {given!r}")


def of_backfill(*, repartitioned: bool) -> None:
    """Fail on the first record, or on the one that was made of it for the second sub-topology."""
    builder = StreamsBuilder()
    lines = builder.stream("in", **STRINGS)
    if repartitioned:
        lines = lines.select_key(lambda key, _: key).repartition(name="again", **STRINGS)
    lines.map_values(fail).to("out", **STRINGS)
    topology = builder.build()
    cluster = TopologyTestDriver(topology).cluster
    cluster.append("in", CANARY.encode(), CANARY.encode(), 0, 0, None)
    backfilled(topology, {}, cluster)


def told(error: BaseException) -> str:
    """As Spark writes it."""
    return "".join(traceback.TracebackException(type(error), error, error.__traceback__).format())


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("repartitioned", [False, True])
def test_no_cause_leaves_an_executor_that_may_quote_a_record(
    repartitioned: bool, full: bool
) -> None:
    with (
        pytest.raises(StreamsError, match="raised ValueError") as raised,
        without_record_texts(full=full),
    ):
        of_backfill(repartitioned=repartitioned)
    text = told(raised.value)
    assert (CANARY in text) is full
    assert full or f"raised at {Path(__file__)}:" in text
    file = f"{__name__.replace('.', '/')}.py"
    assert f", function {file}:{fail.__code__.co_firstlineno} fail, task " in text


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (KeyError(CANARY), "BackfillError: KeyError (set log.errors=full"),
        (ModuleNotFoundError("No module named 'msgspec'"), "No module named 'msgspec'"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_of_others_errors_those_of_the_system_are_said_whole(error: Exception, shown: str) -> None:
    with (
        pytest.raises((BackfillError, OSError, ImportError)) as raised,
        without_record_texts(full=False),
    ):
        raise error from ValueError(CANARY)
    text = told(raised.value)
    assert shown in text
    assert CANARY not in text
