"""Keeps an application from running while a backfill is handed over to it.

A hand-over keeps what it does in the group `<application.id>.backfill`: notes in the metadata of
offsets, the first of them at partition 0 of a topic. While that one says `open`, changelogs may be
half written, and a worker that read them would go on from state that never was.

Whoever hands over waits until its notes are decided before it goes on, so a worker need not: where
a transaction is open, `open` is what was there before.

A worker looks before anything is created, and again once it is in the group: whoever hands over
writes the note first and looks for members then, so one of the two sees the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from streams.access_errors import GroupDeniedError
from streams.clients import CommittedOffset, Log, TopicPartition
from streams.errors import BackfillOpenError
from streams.task import TaskId

__all__ = ["BackfillGate", "BackfillNote", "NoteState", "backfill_group", "open_note"]

NoteState = Literal["open", "dropping", "done", "dropped"]
"""What has become of a hand-over; `dropping` and `open` keep the application from running."""

_MAGIC = "headrace.backfill"
_STATES: tuple[str, ...] = get_args(NoteState)
_END = "."
"""Ends a note; those of older versions end with the text (see `streams.offset_texts`)."""
_TEXT = re.compile(rf"{_MAGIC} (\w+) (\S+) (\w+) (\d+)/(\d+) ([A-Za-z0-9+/=_-]*)")


def backfill_group(application_id: str) -> str:
    """The group that the notes of an application's backfills are kept in.

    >>> backfill_group("word-count")
    'word-count.backfill'
    """
    return f"{application_id}.backfill"


@dataclass(frozen=True, slots=True)
class BackfillNote:
    """One note; those of a plan each carry a part of its text, and the first one counts.

    Args:
        state: what has become of the hand-over.
        id: of the backfill.
        digest: of the plan's text, and on what terms it is handed over.
        index: the number of this part.
        count: how many parts there are.
        part: of the text, in base64.

    Example:
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
        """Whether the application may not run."""
        return self.state in ("open", "dropping")

    def encode(self) -> str:
        """Return the text to commit."""
        where = f"{self.index}/{self.count}"
        return f"{_MAGIC} {self.state} {self.id} {self.digest} {where} {self.part}{_END}"

    @classmethod
    def decode(cls, text: str) -> BackfillNote | None:
        """Read what `encode` made; text of another origin is no note."""
        found = _TEXT.match(text)
        if found is None or found[1] not in _STATES:
            return None
        state: NoteState = found[1]  # type: ignore[assignment]
        return cls(state, found[2], found[3], int(found[4]), int(found[5]), found[6])


class _Group(Protocol):
    """What is asked of a cluster (see `streams.group_offsets.MemberlessGroup`)."""

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of a group at partition 0 of every topic."""


def open_note(application_id: str, cluster: _Group) -> BackfillNote | None:
    """The first note of the backfill that is open, if one is.

    Raises:
        GroupDeniedError: this client may not look.
    """
    found = cluster.committed(backfill_group(application_id), decided=False)
    notes = [BackfillNote.decode(committed.metadata) for committed in found.values()]
    return next((note for note in notes if note and note.index == 0 and note.is_open), None)


class BackfillGate:
    """See the module.

    Args:
        application_id: of the application.
        cluster: where it runs.
        log: bound to the application.
    """

    def __init__(self, application_id: str, cluster: _Group, log: Log) -> None:
        self._application_id = application_id
        self._cluster = cluster
        self._log = log
        self._has_tasks = False

    def check(self) -> None:
        """Look whether a backfill is open.

        Raises:
            BackfillOpenError: it is.
        """
        try:
            note = open_note(self._application_id, self._cluster)
        except GroupDeniedError as error:
            self._log.warning("backfill_not_looked_for", reason=str(error))
            return
        if note is not None:
            is_dropped = note.state == "dropping"
            raise BackfillOpenError(self._application_id, note.id, is_dropped=is_dropped)

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Look again when a worker without tasks gets some: others may have been at work meanwhile.

        Raises:
            BackfillOpenError: a hand-over has begun.
        """
        had, self._has_tasks = self._has_tasks, bool(tasks)
        if self._has_tasks and not had:
            self.check()
