"""That the trials of endings notice each way in which a worker can end wrongly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.streams.supervisor.exit_codes import ExitCode
from tests.chaos.endings import ENDINGS, Ending, Seen, wrong_with


def right_of(ending: Ending) -> Seen:
    """As it must be."""
    return Seen(int(ending.code), f"worker_failed {' and '.join(ending.names)}", 0)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_an_end_by_its_name_is_right(ending: Ending) -> None:
    assert wrong_with(ending, right_of(ending)) == []


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_every_other_end_is_noticed(ending: Ending) -> None:
    right = right_of(ending)
    wrong = {
        "it went on for 90 s": replace(right, code=None),
        f"it ended with 1 instead of {int(ending.code)}": replace(right, code=1),
        f"it ended with {ExitCode.STOPPED:d} instead of {int(ending.code)}": replace(right, code=0),
        f"its log does not name {', '.join(ending.names)}": replace(right, text="worker_failed"),
        "it wrote 3 records": replace(right, written=3),
    }
    for words, seen in wrong.items():
        assert wrong_with(ending, seen) == [words]
