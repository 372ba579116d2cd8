"""Gate that prevents an application from running during the handover of a backfill to it.

A handover keeps its state in the group `<application.id>.backfill`, as notes in offset metadata;
the first note is at partition 0 of a topic. While that note is `open`, changelogs may be
incomplete, and a worker that restored from them would continue from a state that never existed.

The handover waits until its transactions are completed before it proceeds, so a worker need not
wait: while a transaction is pending, the previous note was already `open`.

A worker checks before anything is created, and again after it has joined the group, before a task
starts (see `headrace.streams.tasks.gate_watch`). The handover writes the note first and then checks
the members, so at least one side detects the other. Both checks read all topics, because another
program with other topics may be handed over meanwhile. Tasks wait for the second check, so it is a
single request of bounded size: on a cluster with more than 2,000 topics it reads only the topics of
this program, of the deployed version, and of the notes found before. On such a cluster, the worker
does not detect a handover of a program with other inputs that starts between the two checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from headrace.streams.config.settings import BACKFILL_ENDING
from headrace.streams.errors import BackfillOpenError
from headrace.streams.kafka.acls import GroupDeniedError
from headrace.streams.kafka.protocols import CommittedOffset, Log, OffsetClient, TopicPartition
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.plan import SubPlan

NoteState = Literal["open", "dropping", "done", "dropped"]
"""State of a handover; `open` and `dropping` prevent the application from running."""

TOPICS_MAX = 2_000
"""Maximum number of topics for which the second check, for which tasks wait, reads all of them."""
_MAGIC = "headrace.backfill"
_STATES: tuple[str, ...] = get_args(NoteState)
_END = "."
"""Terminator of a note, which notes of older versions lack.

See `headrace.streams.kafka.offset_texts`.
"""
_TEXT = re.compile(rf"{_MAGIC} (\w+) (\S+) (\w+) (\d+)/(\d+) ([A-Za-z0-9+/=_-]*)")


def backfill_group(application_id: str) -> str:
    """Return the group that contains the notes of an application's backfills.

    >>> backfill_group("word-count")
    'word-count.backfill'
    """
    return application_id + BACKFILL_ENDING


@dataclass(frozen=True, slots=True)
class BackfillNote:
    """Note of a handover; the notes of a plan each contain a part of its text.

    Args:
        digest: digest of the plan's text and of the handover options.
        index: number of this part.
        count: number of parts.
        part: this part of the text, in base64.

    Examples:
        >>> note = BackfillNote("open", "bf-1", "0f3c", 0, 1, "eJx")
        >>> BackfillNote.decode(note.encode()) == note
        True
        >>> BackfillNote.decode("something else") is None
        True
    """

    state: NoteState
    id: str
    digest: str
    index: int = 0
    count: int = 1
    part: str = ""

    @property
    def is_open(self) -> bool:
        return self.state in ("open", "dropping")

    def encode(self) -> str:
        where = f"{self.index}/{self.count}"
        return f"{_MAGIC} {self.state} {self.id} {self.digest} {where} {self.part}{_END}"

    @classmethod
    def decode(cls, text: str) -> BackfillNote | None:
        match = _TEXT.match(text)
        if match is None or match[1] not in _STATES:
            return None
        state: NoteState = match[1]  # type: ignore[assignment]
        return cls(state, match[2], match[3], int(match[4]), int(match[5]), match[6])


class _Placed(OffsetClient, Protocol):
    """Offsets of groups, implemented by `headrace.streams.kafka.group_offsets.MemberlessGroup`."""

    def committed_at(
        self,
        group: str,
        tps: Iterable[TopicPartition],
        *,
        decided: bool = ...,
        topics_max: int = ...,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return a group's offsets at partitions, and at all topics if the cluster is small."""


def open_note(application_id: str, cluster: OffsetClient) -> BackfillNote | None:
    """Return the first note of the open backfill, or None without access to its group."""
    try:
        offsets = cluster.committed(backfill_group(application_id), decided=False)
    except GroupDeniedError:
        return None  # no backfill: a handover requires access to the group
    return _open_head(_notes(offsets).values())


def _notes(offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, BackfillNote]:
    decoded = {tp: BackfillNote.decode(offset.metadata) for tp, offset in offsets.items()}
    return {tp: note for tp, note in decoded.items() if note is not None}


def _open_head(notes: Iterable[BackfillNote]) -> BackfillNote | None:
    return next((note for note in notes if note.index == 0 and note.is_open), None)


def note_topics(plans: Sequence[SubPlan], deployed: Deployment | None) -> frozenset[str]:
    """Return the topics at which a backfill of this or of the deployed version starts its notes."""
    own_topics = {
        name
        for plan in plans
        for name in (*plan.topics.all_sources, *(topic.name for topic in plan.topics.changelogs))
    }
    return frozenset(
        own_topics | {t for s in (deployed.stores if deployed else ()) for t in s.reads}
    )


class BackfillGate:
    """Gate that keeps an application from running during a handover to it."""

    def __init__(self, application_id: str, cluster: _Placed, log: Log) -> None:
        self._application_id = application_id
        self._group = backfill_group(application_id)
        self._cluster = cluster
        self._log = log
        self._seen: frozenset[TopicPartition] = frozenset()

    def check(self) -> None:
        """Check all topics; raise BackfillOpenError if a backfill is open."""
        offsets = self._request(lambda: self._cluster.committed(self._group, decided=False))
        self._seen = frozenset(offsets)
        self._refuse(offsets)

    def check_at(self, topics: Iterable[str]) -> None:
        """Check again: all topics of a small cluster, else given topics and earlier notes."""
        tps = sorted({*(TopicPartition(name, 0) for name in topics), *self._seen})
        self._refuse(
            self._request(
                lambda: self._cluster.committed_at(
                    self._group, tps, decided=False, topics_max=TOPICS_MAX
                )
            )
        )

    def _request(
        self, request: Callable[[], Mapping[TopicPartition, CommittedOffset]]
    ) -> dict[TopicPartition, BackfillNote]:
        try:
            return _notes(request())
        except GroupDeniedError as error:
            self._log.warning("backfill_check_denied", reason=str(error))
            return {}

    def _refuse(self, notes: Mapping[TopicPartition, BackfillNote]) -> None:
        note = _open_head(notes.values())
        if note is not None:
            is_dropped = note.state == "dropping"
            raise BackfillOpenError(self._application_id, note.id, is_dropped=is_dropped)
