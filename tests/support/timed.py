"""Records with times of their own, and what happens between them: for tests of windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from hypothesis import strategies as st

from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver

Action = tuple[Any, ...]

KEYS = ("a", "b", "ab")
"""One begins as another does; with three partitions each has its own."""

TIMES = st.one_of(st.integers(0, 40), st.integers(0, 40), st.integers(0, 400))
DISTURBANCES = st.one_of(
    st.just(("commit",)),
    st.just(("commit",)),
    st.just(("abort",)),
    st.just(("restart",)),
    st.tuples(st.just("crash"), st.none(), st.booleans()),
    st.tuples(st.just("crash"), st.sampled_from(get_args(CrashPoint)), st.booleans()),
)


def actions(values: st.SearchStrategy[Any], topics: Sequence[str] = ("in",)) -> Any:
    """A strategy of records, commits, aborts, crashes and restarts.

    Args:
        values: of the records.
        topics: where they are sent to.
    """
    sends = st.tuples(
        st.just("send"), st.sampled_from(topics), st.sampled_from(KEYS), values, TIMES
    )
    return st.lists(st.one_of(sends, sends, sends, DISTURBANCES), max_size=25)


def partition_of(key: str, partitions: int) -> int:
    """Where the records of a key go."""
    return KEYS.index(key) % partitions


def perform(driver: TopologyTestDriver, steps: Sequence[Action], partitions: int) -> None:
    """Do all of it, and commit."""
    for step in steps:
        match step:
            case ("send", topic, key, value, time):
                place = partition_of(key, partitions)
                driver.input(topic).send(key, value, timestamp=time, partition=place)
            case ("commit",):
                driver.commit()
            case ("abort",):
                driver.abort()
            case ("restart",):
                driver.restart()
            case ("crash", at, keep):
                driver.crash(at, keep=keep)
            case _:
                raise AssertionError(step)
    driver.commit()
    driver.commit()  # an armed crash may have ended the one before


def by_partition(
    steps: Sequence[Action], partitions: int
) -> Iterator[tuple[int, list[tuple[str, str, Any, int]]]]:
    """The records of each partition that has some: topic, key, value and time, in order."""
    for partition in range(partitions):
        yield (
            partition,
            [
                step[1:]
                for step in steps
                if step[0] == "send" and partition_of(step[2], partitions) == partition
            ],
        )
