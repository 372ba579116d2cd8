"""Which changelogs the rows of a task are in: a number for each, beside the offsets of its inputs.

A changelog that somebody deletes and makes anew keeps its name, and is empty. Where no host has the
rows any more, nothing but these numbers tells it from one of which nothing was written yet.

A number is the first half of the topic's id; its name holds a digest of the topic's. Versions that
know of inputs' ids alone leave out all that begin alike, and do not keep a number of before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.streams.kafka.protocols import Offsets
from headrace.streams.plan.progress import CHANGELOG_MARK, MAX_BYTES, OffsetMetadata
from headrace.streams.plan.topic_errors import ChangelogLostError
from headrace.streams.plan.topic_identity import changelog_number, without_changelogs


def changelog_numbers(ids: Mapping[str, str]) -> dict[str, int]:
    """The numbers to commit for changelogs.

    Example:
        >>> numbers = changelog_numbers({"app-counts-changelog": "mIZ3c7IdTReMqgcwdmKasA"})
        >>> lost_changelogs(numbers, {"app-counts-changelog": "mIZ3c7IdTReMqgcwdmKasA"})
        []
        >>> lost_changelogs(numbers, {"app-counts-changelog": "TaV9E4cwSRaMmdzz6DDvkg"})
        ['app-counts-changelog']
    """
    return dict(changelog_number(topic, topic_id) for topic, topic_id in sorted(ids.items()))


def lost_changelogs(committed: Mapping[str, int], found: Mapping[str, str]) -> list[str]:
    """The changelogs that are others than those that were committed.

    Args:
        committed: the numbers beside an offset; without one of a changelog nothing is known of it.
    """
    now = changelog_numbers(found)
    names = {topic: changelog_number(topic, topic_id)[0] for topic, topic_id in found.items()}
    return [t for t, name in names.items() if committed.get(name, now[name]) != now[name]]


def require_same_changelogs(
    task: object, stores: Mapping[str, str], start: Offsets, found: Mapping[str, str]
) -> dict[str, str]:
    """Compare the changelogs of a task that are there with those that its rows were written to.

    Args:
        stores: the changelog of each logged store.

    Returns:
        The ids of its changelogs.

    Raises:
        ChangelogLostError: one is another one.
    """
    ids = {topic: found[topic] for topic in stores.values() if topic in found}
    committed = [OffsetMetadata.decode(offset.metadata).values for offset in start.values()]
    others = {topic for values in committed for topic in lost_changelogs(values, ids)}
    lost = {topic: store for store, topic in stores.items() if topic in others}
    if lost:
        raise ChangelogLostError(lost, stores=lost.values(), task=str(task))
    return ids


def committed_numbers(texts: Iterable[str]) -> list[Mapping[str, int]]:
    """The numbers that stand in what was committed beside offsets, those behind a mark too."""
    found = (OffsetMetadata.parse(text.removeprefix(CHANGELOG_MARK)) for text in texts)
    return [progress.values for progress in found if progress is not None]


def known_changelogs(committed: Iterable[Mapping[str, int]], topics: Iterable[str]) -> list[str]:
    """Those of the topics that a number was committed for."""
    names = {name for values in committed for name in values}
    return [topic for topic in topics if changelog_number(topic, "")[0] in names]


def numbers_that_fit(values: Mapping[str, int], numbers: Mapping[str, int]) -> dict[str, int]:
    """Those numbers that find room beside an offset, behind all others and with the longest mark.

    Args:
        values: the other numbers, and the largest that are yet to come.

    Example:
        >>> numbers = changelog_numbers({f"app-{n}-changelog": str(n) for n in range(200)})
        >>> fitting = numbers_that_fit({}, numbers)
        >>> 80 < len(fitting) < 90, numbers_that_fit({}, fitting) == fitting
        (True, True)
    """
    fitting: dict[str, int] = {}
    for name, number in numbers.items():
        if not _fits({**values, **fitting, name: number}):
            break
        fitting[name] = number
    return fitting


def with_changelogs(text: str, ids: Mapping[str, str]) -> str:
    """What stands beside an offset, with the numbers of these changelogs in place of others."""
    progress = OffsetMetadata.decode(text)
    values = without_changelogs(progress.values)
    fitting = numbers_that_fit(values, changelog_numbers(ids))
    return OffsetMetadata(progress.partition_time, {**values, **fitting}).encode()


def _fits(values: Mapping[str, int]) -> bool:
    try:
        text = OffsetMetadata(0, values).encode()
    except ValueError:
        return False
    return len(CHANGELOG_MARK) + len(text) <= MAX_BYTES
