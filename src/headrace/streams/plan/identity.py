"""Identity of topics, in the metadata of committed offsets and in the last records of changelogs.

A topic that is deleted and re-created keeps its name and gets another id, and an offset of the old
topic has no meaning in the new topic. The id of an offset's topic is two numbers in its metadata.
The names of the numbers contain a digest of the topic's name, because Kafka Streams commits the
numbers of all inputs of a task with each of them, and keeps the largest number of each name.

A re-created changelog is empty. If no host has local rows any more, only its number distinguishes
it from a changelog that was never written to. A changelog's number is the first half of its topic's
id, and its name contains a digest of the topic's name. Versions that only know the ids of input
topics ignore all numbers with this prefix and do not copy them into their commits.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence

from headrace.state.store import LastRecord
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.protocols import Offsets, ReceivedMessage
from headrace.streams.plan.progress import CHANGELOG_MARK, COMMIT_ID, MAX_BYTES, OffsetMetadata
from headrace.topology.context.environment import Headers
from headrace.topology.timestamps import Stamped

# Errors about topics that were deleted and re-created, or that have lost records.


class TopicReplacedError(StreamsError):
    """Raised if an input topic was deleted and re-created: its committed offsets are meaningless.

    It is not handled: a person has to decide where to start in the new topic, because an offset of
    the old topic could skip records.

    Args:
        before: the id of the topic that the application has read.
        now: the id of the existing topic.

    Examples:
        >>> print(TopicReplacedError("orders", before="mIZ3c7IdTReMqgcwdmKasA",
        ...     now="TaV9E4cwSRaMmdzz6DDvkg"))
        topic orders was deleted and re-created: the application has read the topic with id \
mIZ3c7IdTReMqgcwdmKasA, and now its id is TaV9E4cwSRaMmdzz6DDvkg; no offset of the new topic is \
committed. Stop all workers. To start from scratch, run headrace reset; to keep the state and \
continue with the new topic, run headrace offsets set MODULE:APP --topic orders --to beginning
    """

    def __init__(self, topic: str, *, before: str, now: str) -> None:
        super().__init__(topic, before, now)
        self.topic = topic
        self.before = shown(before)
        self.now = shown(now)

    def __str__(self) -> str:
        return (
            f"topic {self.topic} was deleted and re-created: the application has read the topic "
            f"with id {self.before}, and now its id is {self.now}; no offset of the new topic is "
            "committed. Stop all workers. To start from scratch, run headrace reset; to keep the "
            "state and continue with the new topic, run headrace offsets set MODULE:APP --topic "
            f"{self.topic} --to beginning"
        )


class ChangelogLostError(StreamsError):
    """Raised if a changelog is gone, although the input of its rows is committed.

    It is not handled: the state would start empty, and local rows, which may be the last copy,
    would be dropped.

    Args:
        code: the value of ``topology.change.accept`` that lets the stores start empty; None if that
            is not possible.
        stores: the stores of the changelogs, if new changelogs with the same names exist.
        is_shortened: whether the topics still exist and have lost records at their ends.

    Examples:
        >>> error = ChangelogLostError(["a-counts-changelog"], stores=["counts"], task="0_1")
        >>> str(error).partition(".")[0]
        'changelogs that are gone: a-counts-changelog (store counts), replaced by new \
topics of the same names, detected by task 0_1'
    """

    def __init__(
        self,
        changelogs: Iterable[str],
        *,
        code: str | None = None,
        stores: Iterable[str] = (),
        task: str | None = None,
        is_shortened: bool = False,
    ) -> None:
        self.is_shortened = is_shortened
        self.changelogs = tuple(changelogs)
        self.code = code
        self.stores = tuple(stores)
        self.task = task
        super().__init__(self.changelogs, code, self.stores, task, is_shortened)

    def __str__(self) -> str:
        accept = (
            ""
            if self.code is None
            else ", or, if these stores are new and may start empty, set "
            f"topology.change.accept={self.code}"
        )
        new = ", replaced by new topics of the same names" if self.stores else ""
        by = "" if self.task is None else f", detected by task {self.task}"
        what, delete = "are gone", ""
        if self.is_shortened:
            what, new = "lack records that were committed to them", ""
            delete = ", delete these topics,"
        return (
            f"changelogs that {what}: {', '.join(self._named())}{new}{by}. The group has offsets "
            "after the input of their rows, so the state would start empty, and rows on this host, "
            "which may be the last copy, would be dropped; nothing was created or dropped. To lose "
            f"nothing, stop all workers{delete} and run headrace changelog restore-from-local on "
            "each host that has rows: it writes the changelogs again from these rows. Otherwise "
            f"run headrace reset, which starts from scratch{accept}"
        )

    def _named(self) -> list[str]:
        if not self.stores:
            return list(self.changelogs)
        both = zip(self.changelogs, self.stores, strict=True)
        return [f"{changelog} (store {store})" for changelog, store in both]


# Topics.


PREFIX = "headrace.topic."

_LONGS = struct.Struct(">qq")
_CHANGELOG = re.compile(re.escape(PREFIX) + "[0-9a-f]{8}")


def id_values(topic: str, topic_id: str) -> dict[str, int]:
    """Return the numbers to commit for a topic.

    >>> values = id_values("orders", "mIZ3c7IdTReMqgcwdmKasA")
    >>> len(values), committed_id("orders", values)
    (2, 'mIZ3c7IdTReMqgcwdmKasA')
    >>> committed_id("customers", values) is None
    True
    """
    high, low = _LONGS.unpack(_bytes(topic_id))
    first, second = _names(topic)
    return {first: high, second: low}


def committed_id(topic: str, values: Mapping[str, int]) -> str | None:
    first, second = _names(topic)
    if first not in values or second not in values:
        return None
    return _text(_LONGS.pack(values[first], values[second]))


def without_ids(values: Mapping[str, int]) -> dict[str, int]:
    """Remove the ids of topics and changelogs from the numbers in an offset's metadata."""
    return {name: value for name, value in values.items() if not name.startswith(PREFIX)}


def changelog_number(topic: str, topic_id: str) -> tuple[str, int]:
    """Return the name and the number to commit (see `changelog_identity`)."""
    return _name_of(topic), _LONGS.unpack(_bytes(topic_id))[0]


def without_changelogs(values: Mapping[str, int]) -> dict[str, int]:
    """Remove the ids of changelogs from the numbers in an offset's metadata.

    >>> values = id_values("orders", "mIZ3c7IdTReMqgcwdmKasA")
    >>> without_changelogs({**values, **dict([changelog_number("counts", "1")])}) == values
    True
    """
    return {name: value for name, value in values.items() if not _CHANGELOG.fullmatch(name)}


def same_topic(one: str, other: str) -> bool:
    """Return whether two topic ids are equal, in any encoding."""
    return _bytes(one) == _bytes(other)


def shown(topic_id: str) -> str:
    """Return a topic id in the format of Kafka's tools.

    >>> shown("MW+GJMW8RceFURJXaStKCA")
    'MW-GJMW8RceFURJXaStKCA'
    """
    return _text(_bytes(topic_id))


def _names(topic: str) -> tuple[str, str]:
    digest = _name_of(topic)
    return f"{digest}.0", f"{digest}.1"


def _name_of(topic: str) -> str:
    return f"{PREFIX}{zlib.crc32(topic.encode()):08x}"


def _bytes(topic_id: str) -> bytes:
    try:
        data = base64.b64decode(topic_id.replace("-", "+").replace("_", "/") + "==", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) == _LONGS.size:
        return data
    return hashlib.sha256(topic_id.encode()).digest()[: _LONGS.size]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def with_topic_id(text: str, topic: str, topic_id: str | None) -> str:
    """Add the id of the offset's topic to the result of `OffsetMetadata.encode`; None adds nothing.

    Bytes after the end of the text are removed.

    >>> text = with_topic_id(OffsetMetadata(5).encode(), "orders", "mIZ3c7IdTReMqgcwdmKasA")
    >>> committed_id("orders", OffsetMetadata.decode(text).values)
    'mIZ3c7IdTReMqgcwdmKasA'
    """
    progress = OffsetMetadata.decode(text)
    if topic_id is None:
        return progress.encode()
    return OffsetMetadata(
        progress.partition_time, {**progress.values, **id_values(topic, topic_id)}
    ).encode()


def require_same(known: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise TopicReplacedError if a known topic has another id."""
    for topic, now in current.items():
        before = known.get(topic)
        if before is not None and not same_topic(before, now):
            raise TopicReplacedError(topic, before=before, now=now)


# Changelogs.


def changelog_numbers(ids: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers to commit for changelogs.

    >>> numbers = changelog_numbers({"app-counts-changelog": "mIZ3c7IdTReMqgcwdmKasA"})
    >>> lost_changelogs(numbers, {"app-counts-changelog": "mIZ3c7IdTReMqgcwdmKasA"})
    []
    >>> lost_changelogs(numbers, {"app-counts-changelog": "TaV9E4cwSRaMmdzz6DDvkg"})
    ['app-counts-changelog']
    """
    return dict(changelog_number(topic, topic_id) for topic, topic_id in sorted(ids.items()))


def lost_changelogs(committed: Mapping[str, int], current: Mapping[str, str]) -> list[str]:
    """Return the changelogs with another id than the committed number, if there is a number."""
    now = changelog_numbers(current)
    names = {topic: changelog_number(topic, topic_id)[0] for topic, topic_id in current.items()}
    return [t for t, name in names.items() if committed.get(name, now[name]) != now[name]]


def require_same_changelogs(
    task: object, stores: Mapping[str, str], start: Offsets, current: Mapping[str, str]
) -> dict[str, str]:
    """Return the ids of the changelogs in `stores` (by store); raise if any was re-created."""
    ids = {topic: current[topic] for topic in stores.values() if topic in current}
    committed = [OffsetMetadata.decode(offset.metadata).values for offset in start.values()]
    others = {topic for values in committed for topic in lost_changelogs(values, ids)}
    lost = {topic: store for store, topic in stores.items() if topic in others}
    if lost:
        raise ChangelogLostError(lost, stores=lost.values(), task=str(task))
    return ids


def committed_numbers(texts: Iterable[str]) -> list[Mapping[str, int]]:
    """Return the numbers in offset metadata, including metadata with a changelog mark."""
    metadata = (OffsetMetadata.parse(text.removeprefix(CHANGELOG_MARK)) for text in texts)
    return [progress.values for progress in metadata if progress is not None]


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
