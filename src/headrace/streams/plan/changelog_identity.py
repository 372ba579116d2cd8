"""Identity of changelogs, in the metadata of a task's offsets, and of their last records.

A changelog that is deleted and re-created keeps its name and is empty. If no host has local rows
any more, only these numbers distinguish it from a changelog that was never written to.

A number is the first half of the topic's id, and its name contains a digest of the topic's name.
Versions that only know the ids of input topics ignore all numbers with this prefix and do not copy
them into their commits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from headrace.state.store import LastRecord
from headrace.streams.kafka.protocols import Offsets, ReceivedMessage
from headrace.streams.plan.progress import CHANGELOG_MARK, COMMIT_ID, MAX_BYTES, OffsetMetadata
from headrace.streams.plan.topic_errors import ChangelogLostError
from headrace.streams.plan.topic_identity import changelog_number, without_changelogs
from headrace.topology.context.environment import Headers
from headrace.topology.timestamps import Stamped


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


# Digests that identify the last record of a changelog, or of a table's source topic.
#
# A topic id and an offset do not identify a record: after a cluster is restored from a snapshot, or
# after an unclean leader election, the same offsets can hold different records once the log has
# grown past its old end. So a position stores a digest of the last record in its rows. The last
# record of each commit has the commit id as a header, because the same key may get the same value
# again.


Row = tuple[bytes, "bytes | None", int]


def commit_header(commit_id: int) -> Headers:
    return [(COMMIT_ID, b"%d" % commit_id)]


def last_written(rows: Sequence[Row], end: int, commit_id: int) -> LastRecord:
    """Identify the last record that a commit wrote; `end` is the offset after it."""
    key, value, _ = rows[-1]
    return LastRecord(end - 1, _digest(key, value, b"%d" % commit_id))


def last_restored(record: ReceivedMessage) -> LastRecord:
    """Return offset and digest of a changelog record that a restore has read.

    >>> from confluent_kafka import Message
    >>> record = Message(offset=7, key=b"k", value=b"v", headers=commit_header(5))
    >>> last_restored(record) == last_written([(b"k", b"v", 0)], 8, 5)
    True
    """
    headers = dict(record.headers() or ())
    commit = headers.get(COMMIT_ID)
    commit = commit.encode() if isinstance(commit, str) else commit
    return LastRecord(record.offset(), _digest(record.key(), record.value(), commit))


def last_read(record: ReceivedMessage) -> LastRecord:
    """Identify an input's record by its timestamp: its headers belong to its producers."""
    received = record.received if isinstance(record, Stamped) else record
    time = b"%d" % received.timestamp()[1]
    return LastRecord(record.offset(), _digest(record.key(), record.value(), time))


def _digest(*parts: bytes | None) -> int:
    digest = hashlib.blake2b(digest_size=7)
    for part in parts:
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return int.from_bytes(digest.digest())
