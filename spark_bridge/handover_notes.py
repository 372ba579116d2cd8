"""The notes of hand-overs: which plan is open, in the group `<application.id>.backfill`.

The text of a plan is divided over the metadata of as many offsets as it needs; the first part is at
partition 0 of an input, where `streams.backfill_gate` looks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from spark_bridge.errors import BackfillError, CannotBackfillError
from spark_bridge.plan import BackfillPlan
from streams.backfill_gate import BackfillNote, NoteState, backfill_group
from streams.clients import CommittedOffset, Offsets, TopicPartition
from streams.progress import MAX_BYTES

__all__ = [
    "How",
    "Notes",
    "check_id",
    "digest_of",
    "is_in_parts",
    "marker_group",
    "note_places",
    "transactional_id",
]

How = Literal["driver", "partitioned"]
"""In one transaction, or in parts."""

_PART_BYTES = MAX_BYTES - 160
"""Room for the other words of a note: see `check_id`."""
_ID = re.compile(r"[a-zA-Z0-9._-]{1,64}")


class PlacedGroup(Protocol):
    """What is asked of a cluster (see `streams.group_offsets.MemberlessGroup`)."""

    def committed_at(
        self, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """The decided offsets of a group at some places."""


def check_id(backfill_id: str) -> None:
    """Refuse an id that cannot be part of a group's name.

    Raises:
        CannotBackfillError: it cannot.

    >>> check_id("bf 1")
    Traceback (most recent call last):
        ...
    spark_bridge.errors.CannotBackfillError: id='bf 1': take at most 64 letters, digits, dots, \
dashes and underscores
    """
    if not _ID.fullmatch(backfill_id):
        raise CannotBackfillError(
            f"id={backfill_id!r}: take at most 64 letters, digits, dots, dashes and underscores"
        )


def digest_of(plan: BackfillPlan, how: How) -> str:
    """What tells this plan from others with the same id, and how it is handed over."""
    return how[0] + hashlib.sha256(plan.to_text().encode()).hexdigest()[:15]


def is_in_parts(note: BackfillNote) -> bool:
    """Whether the hand-over of a note leaves parts of it behind when it is interrupted."""
    return note.digest.startswith("p")


def transactional_id(plan: BackfillPlan, unit: str) -> str:
    """The identity of whoever writes a unit; a later one fences those before it."""
    return f"{backfill_group(plan.application_id)}-{plan.id}-{unit}"


def marker_group(plan: BackfillPlan) -> str:
    """The group in which a unit that is written leaves the progress of its inputs.

    Its offsets are part of the transaction that writes the unit: they are there if, and only if,
    everything else is.
    """
    digest = digest_of(plan, "partitioned")
    return f"{backfill_group(plan.application_id)}-{plan.id}-{digest}"


def note_places(
    sources: Iterable[str], internal: Iterable[str], partitions: Mapping[str, int]
) -> tuple[TopicPartition, ...]:
    """Where notes are put, first ones first.

    Topics that are not the application's own come first: their offsets outlive a drop.
    """

    def places(topics: Iterable[str]) -> list[TopicPartition]:
        found = [TopicPartition(t, p) for t in set(topics) for p in range(partitions.get(t, 0))]
        return sorted(found, key=lambda place: (place.partition, place.topic))

    return tuple(dict.fromkeys([*places(sources), *places(internal)]))


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of one application, as they were read.

    Args:
        places: where they may be.
        found: those that are there.
    """

    places: Sequence[TopicPartition]
    found: Mapping[TopicPartition, BackfillNote]

    @classmethod
    def read(
        cls, application_id: str, cluster: PlacedGroup, places: Sequence[TopicPartition]
    ) -> Notes:
        """Read them from the cluster, once they are decided."""
        offsets = cluster.committed_at(backfill_group(application_id), places)
        notes = {place: BackfillNote.decode(c.metadata) for place, c in offsets.items()}
        return cls(places, {place: note for place, note in notes.items() if note is not None})

    @property
    def heads(self) -> dict[TopicPartition, BackfillNote]:
        """The first note of each backfill."""
        return {place: note for place, note in self.found.items() if note.index == 0}

    @property
    def open_head(self) -> tuple[TopicPartition, BackfillNote] | None:
        """The first note of the backfill that is open, if one is."""
        return next(((p, note) for p, note in self.heads.items() if note.is_open), None)

    def state_of(self, backfill_id: str) -> NoteState | None:
        """What has become of a backfill, as far as it is known; an open one counts first."""
        states = {note.state for note in self.heads.values() if note.id == backfill_id}
        order: tuple[NoteState, ...] = ("open", "dropping", "done", "dropped")
        return next((state for state in order if state in states), None)

    def plan(self) -> BackfillPlan | None:
        """The plan that is open; None where there is none, or where not all of it is there.

        Raises:
            BackfillError: another version of the bridge wrote it.
        """
        opened = self.open_head
        if opened is None:
            return None
        head = opened[1]
        parts = {
            note.index: note.part
            for note in self.found.values()
            if (note.id, note.digest, note.count) == (head.id, head.digest, head.count)
            and note.is_open
        }
        if len(parts) < head.count:
            return None
        plan = BackfillPlan.from_text("".join(parts[i] for i in range(head.count)))
        if digest_of(plan, "driver")[1:] != head.digest[1:]:
            raise BackfillError(
                f"the plan of backfill {plan.id} cannot be read back as it was written; drop it "
                "with the version that began it"
            )
        return plan

    def opened(self, plan: BackfillPlan, how: How) -> Offsets:
        """The notes that open a plan.

        Raises:
            CannotBackfillError: there is not enough room for it.
        """
        text = plan.to_text()
        parts = [text[i : i + _PART_BYTES] for i in range(0, len(text), _PART_BYTES)]
        if len(parts) > len(self.places):
            raise CannotBackfillError(
                f"the plan takes {len(text)} bytes of offset metadata, and there are "
                f"{len(self.places)} partitions for it; hand over with handover='driver'"
            )
        digest, count = digest_of(plan, how), len(parts)
        notes = (
            BackfillNote("open", plan.id, digest, i, count, part) for i, part in enumerate(parts)
        )
        return {
            place: CommittedOffset(0, note.encode())
            for place, note in zip(self.places, notes, strict=False)
        }

    def become(self, plan_id: str, state: NoteState) -> Offsets:
        """The notes that say what has become of the backfill that is open.

        A plan that is being dropped is still needed, and stays.
        """
        opened = self.open_head
        assert opened is not None, f"no backfill is open, {plan_id} neither"
        place, head = opened
        assert head.id == plan_id, f"{head.id} is open, not {plan_id}"
        note = replace(head, state=state) if state == "dropping" else head.becomes(state)
        return {place: CommittedOffset(0, note.encode())}
