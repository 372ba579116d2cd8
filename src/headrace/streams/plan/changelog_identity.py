"""Identity of the changelogs that a task's state was written to, in the metadata of its offsets.

A changelog that is deleted and re-created keeps its name and is empty. If no host has local rows
any more, only these numbers distinguish it from a changelog that was never written to.

A number is the first half of the topic's id, and its name contains a digest of the topic's name.
Versions that only know the ids of input topics ignore all numbers with this prefix and do not copy
them into their commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.streams.kafka.protocols import Offsets
from headrace.streams.plan.progress import CHANGELOG_MARK, MAX_BYTES, OffsetMetadata
from headrace.streams.plan.topic_errors import ChangelogLostError
from headrace.streams.plan.topic_identity import changelog_number, without_changelogs


def changelog_numbers(ids: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers to commit for changelogs.

    >>> numbers = changelog_numbers({"app-counts-changelog": "mIZ3c7IdTReMqgcwdmKasA"})
    >>> lost_changelogs(numbers, {"app-counts-changelog": "mIZ3c7IdTReMqgcwdmKasA"})
    []
    >>> lost_changelogs(numbers, {"app-counts-changelog": "TaV9E4cwSRaMmdzz6DDvkg"})
    ['app-counts-changelog']
    """
    return dict(changelog_number(topic, topic_id) for topic, topic_id in sorted(ids.items()))


def lost_changelogs(committed: Mapping[str, int], found: Mapping[str, str]) -> list[str]:
    """Return the changelogs with another id than the committed number, if there is a number."""
    now = changelog_numbers(found)
    names = {topic: changelog_number(topic, topic_id)[0] for topic, topic_id in found.items()}
    return [t for t, name in names.items() if committed.get(name, now[name]) != now[name]]


def require_same_changelogs(
    task: object, stores: Mapping[str, str], start: Offsets, found: Mapping[str, str]
) -> dict[str, str]:
    """Return the ids of the changelogs in `stores` (by store); raise if any was re-created."""
    ids = {topic: found[topic] for topic in stores.values() if topic in found}
    committed = [OffsetMetadata.decode(offset.metadata).values for offset in start.values()]
    others = {topic for values in committed for topic in lost_changelogs(values, ids)}
    lost = {topic: store for store, topic in stores.items() if topic in others}
    if lost:
        raise ChangelogLostError(lost, stores=lost.values(), task=str(task))
    return ids


def committed_numbers(texts: Iterable[str]) -> list[Mapping[str, int]]:
    """Return the numbers in offset metadata, including metadata with a changelog mark."""
    found = (OffsetMetadata.parse(text.removeprefix(CHANGELOG_MARK)) for text in texts)
    return [progress.values for progress in found if progress is not None]


def known_changelogs(committed: Iterable[Mapping[str, int]], topics: Iterable[str]) -> list[str]:
    names = {name for values in committed for name in values}
    return [topic for topic in topics if changelog_number(topic, "")[0] in names]


def numbers_that_fit(values: Mapping[str, int], numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the changelog numbers that fit into an offset's metadata with `values` and any mark.

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
    """Replace the changelog numbers in an offset's metadata, as many as fit."""
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
