"""What is said of rows that are older than whoever asks accepts: how old they are, and why."""

from __future__ import annotations

import pytest

from headrace.streams.queries.answers import PartitionPosition
from headrace.streams.queries.committed_rows import AgeLimit
from headrace.streams.queries.errors import TooOldError
from headrace.streams_web.stores.store_query import StoreQuery


def position(age_ms: int, state: str | None, partition: int | None = 1) -> PartitionPosition:
    return PartitionPosition(
        partition=partition,
        offset=5,
        max_offset=5,
        commit_id=1,
        committed_ms=0,
        age_ms=age_ms,
        state=state,
        inputs={},
        host=None,
    )


WHY = [
    (position(120, "running"), "the rows of {of} are 120 ms old, and at most 0 ms are accepted"),
    (position(120, None, None), "are 120 ms old, and at most 0 ms are accepted"),
    (
        position(12_500, "running"),
        "changes of 12.5 s, and at most 0 s are accepted: the worker with its task",
    ),
    (
        position(12_500, "restoring"),
        "12.5 s, and at most 0 s are accepted: its task here is restoring",
    ),
    (
        position(12_500, None),
        "{of} may lack changes of 12.5 s, and at most 0 s are accepted: no worker of this host has",
    ),
    (
        position(12_500, None, None),
        "may lack changes of 12.5 s, and at most 0 s are accepted: no worker",
    ),
]


@pytest.mark.parametrize(("where", "said"), WHY)
def test_a_program_is_told_how_old_rows_are_and_why(where: PartitionPosition, said: str) -> None:
    with pytest.raises(TooOldError) as refused:
        AgeLimit(0).require("counts", where, lambda: False)
    assert said.format(of="partition 1 of store 'counts'") in str(refused.value)
    assert str(refused.value).endswith("accept them with max_age=")
    AgeLimit(15_000).require("counts", where, lambda: False)


@pytest.mark.parametrize(("where", "said"), WHY)
def test_who_asks_over_http_is_told_so_too(where: PartitionPosition, said: str) -> None:
    with pytest.raises(TooOldError) as refused:
        StoreQuery("counts", (("max_age", "0s"),)).require_age((position(0, "running", 0), where))
    assert said.format(of="partition 1 of store 'counts'") in str(refused.value)
    assert str(refused.value).endswith("Use max_age= to accept rows older than 0 s")
    StoreQuery("counts", (("max_age", "15s"),)).require_age((where,))
