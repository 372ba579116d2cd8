"""Notes of handovers: the state of each plan, in the group `<application.id>.backfill`.

The text of a plan is split over the metadata of several offsets. The first part is at partition 0
of an input, where `headrace.streams.admin.backfill_gate` reads it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.admin.backfill_gate import BackfillNote, NoteState, backfill_group
from headrace.streams.kafka.protocols import CommittedOffset, Offsets, TopicPartition
from headrace.streams.plan.progress import MAX_BYTES

How = Literal["driver", "partitioned"]
"""In one transaction, or in a transaction per unit."""

DEADLINE = (
    "within the brokers' offsets.retention.minutes (seven days by default), because later the "
    "application can start with incomplete state"
)
"""Time limit to finish or drop an interrupted backfill: its notes are offsets, which expire."""

_PART_BYTES = MAX_BYTES - 160
"""Maximum length of a part; the rest is for the other fields of a note (see `check_id`)."""
_ORDER: tuple[NoteState, ...] = ("open", "dropping", "done", "dropped")
_ID = re.compile(r"[a-zA-Z0-9._-]{1,64}")


def check_id(backfill_id: str) -> None:
    """Raise CannotBackfillError if an id cannot be part of a group's name.

    >>> check_id("bf 1")
    Traceback (most recent call last):
        ...
    headrace.spark_bridge.errors.CannotBackfillError: id= must be at most 64 letters, digits, \
dots, dashes and underscores, not 'bf 1'
    """
    if not _ID.fullmatch(backfill_id):
        raise CannotBackfillError(
            "id= must be at most 64 letters, digits, dots, dashes and underscores, not "
            f"{backfill_id!r}"
        )


@dataclass(frozen=True, slots=True)
class HandoverOptions:
    """Options of a handover, which a second attempt must repeat.

    Args:
        how: in one transaction, or in a transaction per unit.
        outputs: "write" or "skip" the records for topics outside of the application.
        reset: replace the state and offsets of the application.

    >>> HandoverOptions("driver").code
    'dwn'
    """

    how: How
    outputs: str = "write"
    reset: bool = False

    @property
    def code(self) -> str:
        """Prefix of the digest."""
        return self.how[0] + self.outputs[0] + ("r" if self.reset else "n")

    def digest(self, plan: BackfillPlan) -> str:
        return self.code + _hash(plan)


def _hash(plan: BackfillPlan) -> str:
    return hashlib.sha256(plan.to_text().encode()).hexdigest()[:16]


def is_in_parts(note: BackfillNote) -> bool:
    """Return whether the handover is partitioned, so that an interruption leaves written units."""
    return note.digest.startswith("p")


def transactional_id(plan: BackfillPlan, unit: str) -> str:
    return f"{backfill_group(plan.application_id)}-{plan.id}-{unit}"


def marker_group(plan: BackfillPlan) -> str:
    """Return the group of the units' markers, committed in the transaction of the unit's rows."""
    return f"{backfill_group(plan.application_id)}-{plan.id}-{_hash(plan)}"


def note_partitions(
    sources: Iterable[str], internal: Iterable[str], partitions: Mapping[str, int]
) -> tuple[TopicPartition, ...]:
    """Return the partitions for notes, external topics first: their offsets survive a drop."""

    def sort(topics: Iterable[str]) -> list[TopicPartition]:
        found = [TopicPartition(t, p) for t in set(topics) for p in range(partitions.get(t, 0))]
        return sorted(found, key=lambda tp: (tp.partition, tp.topic))

    return tuple(dict.fromkeys([*sort(sources), *sort(internal)]))


@dataclass(frozen=True, slots=True)
class HandoverNotes:
    """Snapshot of the notes of an application.

    Args:
        tps: the partitions that may have notes.
    """

    tps: Sequence[TopicPartition]
    notes: Mapping[TopicPartition, BackfillNote]

    @classmethod
    def of(cls, offsets: Offsets, tps: Sequence[TopicPartition]) -> HandoverNotes:
        """Decode the notes from the committed offsets of the group."""
        notes = {tp: BackfillNote.decode(c.metadata) for tp, c in offsets.items()}
        return cls(tps, {tp: note for tp, note in notes.items() if note is not None})

    @property
    def heads(self) -> dict[TopicPartition, BackfillNote]:
        """First note of each backfill, by partition."""
        return {tp: note for tp, note in self.notes.items() if note.index == 0}

    @property
    def open_head(self) -> tuple[TopicPartition, BackfillNote] | None:
        return next(((p, note) for p, note in self.heads.items() if note.is_open), None)

    def head_of(self, backfill_id: str) -> BackfillNote | None:
        """Return the first note of a backfill; a note of an open backfill has priority."""
        heads = [note for note in self.heads.values() if note.id == backfill_id]
        return min(heads, key=lambda note: _ORDER.index(note.state), default=None)

    def plan_of(self, head: BackfillNote) -> BackfillPlan | None:
        """Return the plan of a first note, or None if parts of it are missing."""
        parts = {
            note.index: note.part
            for note in self.notes.values()
            if (note.id, note.digest, note.count) == (head.id, head.digest, head.count)
        }
        if len(parts) < head.count:
            return None
        plan = BackfillPlan.from_text("".join(parts[i] for i in range(head.count)))
        if not head.digest.endswith(_hash(plan)):
            raise BackfillError(
                f"the plan of backfill {plan.id} has another digest than its notes. Drop it with "
                "the version that started it"
            )
        return plan

    def opened(self, plan: BackfillPlan, options: HandoverOptions) -> Offsets:
        """Return the notes that open a plan; raise if it needs more partitions than there are."""
        text = plan.to_text()
        parts = [text[i : i + _PART_BYTES] for i in range(0, len(text), _PART_BYTES)]
        if len(parts) > len(self.tps):
            raise CannotBackfillError(
                f"the plan does not fit into offset metadata ({len(text)} bytes, {len(self.tps)} "
                "partitions). Hand over with handover='driver'"
            )
        digest, count = options.digest(plan), len(parts)
        notes = (
            BackfillNote("open", plan.id, digest, i, count, part) for i, part in enumerate(parts)
        )
        return {
            tp: CommittedOffset(0, note.encode()) for tp, note in zip(self.tps, notes, strict=False)
        }

    def again(self, backfill_id: str) -> Offsets:
        """Return the notes of a plan unchanged, to commit them again before they expire."""
        return {
            tp: CommittedOffset(0, note.encode())
            for tp, note in self.notes.items()
            if note.id == backfill_id
        }

    def become(self, plan_id: str, state: NoteState) -> Offsets:
        opened = self.open_head
        assert opened is not None, f"no backfill is open, {plan_id} neither"
        tp, head = opened
        assert head.id == plan_id, f"{head.id} is open, not {plan_id}"
        return {tp: CommittedOffset(0, replace(head, state=state).encode())}
