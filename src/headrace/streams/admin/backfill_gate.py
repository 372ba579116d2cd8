"""Keeps an application from running while a backfill is handed over to it.

A hand-over keeps what it does in the group `<application.id>.backfill`: notes in the metadata of
offsets, the first of them at partition 0 of a topic. While that one says `open`, changelogs may be
half written, and a worker that read them would go on from state that never was.

Whoever hands over waits until its notes are decided before it goes on, so a worker need not: where
a transaction is open, `open` is what was there before.

A worker looks before anything is created, and again once it is in the group, before a task begins
(see `headrace.streams.tasks.gate_watch`): whoever hands over writes the note first and looks for
members then, so one of the two sees the other. Both looks are at all topics, as another program may
be handed over meanwhile, whose topics this one does not know. Tasks wait for the second look, so it
is one request of bounded size: on a cluster of more than 2,000 topics it is at those of this
program and of what is deployed, and where the first one has found notes. There a hand-over of a
program with other inputs that begins between the two looks is not seen by the worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from headrace.streams.config.settings import BACKFILL_ENDING
from headrace.streams.errors import BackfillOpenError
from headrace.streams.kafka.access_errors import GroupDeniedError
from headrace.streams.kafka.protocols import CommittedOffset, Log, TopicPartition
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.plan import SubPlan

NoteState = Literal["open", "dropping", "done", "dropped"]
"""What has become of a hand-over; `dropping` and `open` keep the application from running."""

TOPICS_MAX = 2_000
"""Of how many topics a cluster may be for a look while tasks wait to be at all of them."""
_MAGIC = "headrace.backfill"
_STATES: tuple[str, ...] = get_args(NoteState)
_END = "."
"""Ends a note; those of older versions end with the text.

See `headrace.streams.kafka.offset_texts`.
"""
_TEXT = re.compile(rf"{_MAGIC} (\w+) (\S+) (\w+) (\d+)/(\d+) ([A-Za-z0-9+/=_-]*)")


def backfill_group(application_id: str) -> str:
    """The group that the notes of an application's backfills are kept in.

    >>> backfill_group("word-count")
    'word-count.backfill'
    """
    return application_id + BACKFILL_ENDING


@dataclass(frozen=True, slots=True)
class BackfillNote:
    """One note; those of a plan each carry a part of its text, and the first one counts.

    Args:
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
    """What is asked of a cluster (see `headrace.streams.kafka.group_offsets.MemberlessGroup`)."""

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of a group at partition 0 of every topic."""


class _Placed(_Group, Protocol):
    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool, topics_max: int
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of a group at some places, and at all heads of so many topics."""


def open_note(application_id: str, cluster: _Group) -> BackfillNote | None:
    """The first note of the backfill that is open, if one is.

    Raises:
        GroupDeniedError: this client may not look.
    """
    found = cluster.committed(backfill_group(application_id), decided=False)
    return _open_head(_notes(found).values())


def _notes(found: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, BackfillNote]:
    decoded = {place: BackfillNote.decode(offset.metadata) for place, offset in found.items()}
    return {place: note for place, note in decoded.items() if note is not None}


def _open_head(notes: Iterable[BackfillNote]) -> BackfillNote | None:
    return next((note for note in notes if note.index == 0 and note.is_open), None)


def note_topics(plans: Sequence[SubPlan], deployed: Deployment | None) -> frozenset[str]:
    """Topics that a backfill of a program, or of what is deployed, puts its first note at."""
    own = {
        name
        for plan in plans
        for name in (*plan.topics.all_sources, *(topic.name for topic in plan.topics.changelogs))
    }
    return frozenset(own | {t for s in (deployed.stores if deployed else ()) for t in s.reads})


class BackfillGate:
    """Gate that keeps an application from running during a handover to it."""

    def __init__(self, application_id: str, cluster: _Placed, log: Log) -> None:
        self._application_id = application_id
        self._group = backfill_group(application_id)
        self._cluster = cluster
        self._log = log
        self._seen: frozenset[TopicPartition] = frozenset()

    def check(self) -> None:
        """Look everywhere whether a backfill is open.

        Raises:
            BackfillOpenError: it is.
        """
        found = self._ask(lambda: self._cluster.committed(self._group, decided=False))
        self._seen = frozenset(found)
        self._refuse(found)

    def check_at(self, topics: Iterable[str]) -> None:
        """Look again: everywhere, or at partition 0 of some topics and where notes were.

        Raises:
            BackfillOpenError: a backfill is open.
        """
        places = sorted({*(TopicPartition(name, 0) for name in topics), *self._seen})
        self._refuse(
            self._ask(
                lambda: self._cluster.committed_at(
                    self._group, places, decided=False, topics_max=TOPICS_MAX
                )
            )
        )

    def _ask(
        self, ask: Callable[[], Mapping[TopicPartition, CommittedOffset]]
    ) -> dict[TopicPartition, BackfillNote]:
        try:
            return _notes(ask())
        except GroupDeniedError as error:
            self._log.warning("backfill_not_looked_for", reason=str(error))
            return {}

    def _refuse(self, found: Mapping[TopicPartition, BackfillNote]) -> None:
        note = _open_head(found.values())
        if note is not None:
            is_dropped = note.state == "dropping"
            raise BackfillOpenError(self._application_id, note.id, is_dropped=is_dropped)
