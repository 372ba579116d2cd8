"""Partitions and tasks in few words, for messages that name many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from headrace.streams.seams.clients import TopicPartition


def named_places(places: Iterable[TopicPartition]) -> str:
    """Name partitions.

    Example:
        >>> named_places(TopicPartition("a", p) for p in (0, 1, 2, 5))
        'a-0..2,5'
    """
    return ", ".join(f"{topic}-{_ranges(some)}" for topic, some in _by_topic(places).items())


def named_tasks(sub_topology: int, partitions: Iterable[int]) -> str:
    """Name the tasks of a sub-topology.

    Example:
        >>> named_tasks(1, [0, 1, 2]), named_tasks(1, [4])
        ('tasks 1_0..2', 'task 1_4')
    """
    chosen = sorted(set(partitions))
    return f"task{'s' if len(chosen) > 1 else ''} {sub_topology}_{_ranges(chosen)}"


def topic_options(places: Iterable[TopicPartition], counts: Mapping[str, int]) -> str:
    """The options that name partitions to ``headrace offsets set``.

    Args:
        counts: how many each topic has, where it is known; all of them need no numbers.

    Example:
        >>> both = [TopicPartition("a", 0), TopicPartition("a", 1)]
        >>> topic_options([*both, TopicPartition("b", 1)], {"a": 2, "b": 2})
        '--topic a --topic b:1'
    """
    options = []
    for topic, partitions in _by_topic(places).items():
        whole = len(partitions) > 1 and len(partitions) == counts.get(topic)
        chosen = "" if whole else ":" + ",".join(map(str, partitions))
        options.append(f"--topic {topic}{chosen}")
    return " ".join(options)


def _by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place in sorted(set(places)):
        found.setdefault(place.topic, []).append(place.partition)
    return found


def _ranges(numbers: Iterable[int]) -> str:
    return ",".join(
        str(first) if first == last else f"{first}..{last}" for first, last in _runs(numbers)
    )


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of sorted numbers."""
    first = last = None
    for number in numbers:
        if first is not None and last is not None and number > last + 1:
            yield first, last
            first = None
        first, last = (number if first is None else first), number
    if first is not None and last is not None:
        yield first, last
