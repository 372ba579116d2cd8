"""The notes of hand-overs: which plan is open, in the group `<application.id>.backfill`.

The text of a plan is divided over the metadata of as many offsets as it needs; the first part is at
partition 0 of an input, where `headrace.streams.admin.backfill_gate` looks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.admin.backfill_gate import BackfillNote, NoteState, backfill_group
from headrace.streams.kafka.protocols import CommittedOffset, Offsets, TopicPartition
from headrace.streams.plan.progress import MAX_BYTES

How = Literal["driver", "partitioned"]
"""In one transaction, or in parts."""

DEADLINE = (
    "before the brokers' offsets.retention.minutes are over (seven days by default), as then "
    "nothing keeps the application from starting with what is half written"
)
"""Until when an interrupted backfill is to be finished or dropped: its notes are offsets."""

_PART_BYTES = MAX_BYTES - 160
"""Room for the other words of a note: see `check_id`."""
_ORDER: tuple[NoteState, ...] = ("open", "dropping", "done", "dropped")
_ID = re.compile(r"[a-zA-Z0-9._-]{1,64}")


class PlacedGroup(Protocol):
    """What is asked of a cluster (see `headrace.streams.kafka.group_offsets.MemberlessGroup`)."""

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
    headrace.spark_bridge.errors.CannotBackfillError: id='bf 1': take at most 64 letters, digits, \
dots, dashes and underscores
    """
    if not _ID.fullmatch(backfill_id):
        raise CannotBackfillError(
            f"id={backfill_id!r}: take at most 64 letters, digits, dots, dashes and underscores"
        )


@dataclass(frozen=True, slots=True)
class HandoverOptions:
    """Options of a handover, which a second attempt must repeat.

    Args:
        how: in one transaction, or in parts.
        outputs: whether records for topics outside of the application are written.
        reset: whether what the application has is replaced.

    >>> HandoverOptions("driver").code
    'dwn'
    """

    how: How
    outputs: str = "write"
    reset: bool = False

    @property
    def code(self) -> str:
        """What a digest begins with."""
        return self.how[0] + self.outputs[0] + ("r" if self.reset else "n")

    def digest(self, plan: BackfillPlan) -> str:
        """What tells this plan on these terms from others with the same id."""
        return self.code + _hash(plan)


def _hash(plan: BackfillPlan) -> str:
    return hashlib.sha256(plan.to_text().encode()).hexdigest()[:16]


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
    return f"{backfill_group(plan.application_id)}-{plan.id}-{_hash(plan)}"


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

    def head_of(self, backfill_id: str) -> BackfillNote | None:
        """The first note of a backfill; an open one counts first."""
        heads = [note for note in self.heads.values() if note.id == backfill_id]
        return min(heads, key=lambda note: _ORDER.index(note.state), default=None)

    def plan_of(self, head: BackfillNote) -> BackfillPlan | None:
        """The plan that a first note belongs to; None where not all of it is there.

        Raises:
            BackfillError: another version of the bridge wrote it.
        """
        parts = {
            note.index: note.part
            for note in self.found.values()
            if (note.id, note.digest, note.count) == (head.id, head.digest, head.count)
        }
        if len(parts) < head.count:
            return None
        plan = BackfillPlan.from_text("".join(parts[i] for i in range(head.count)))
        if not head.digest.endswith(_hash(plan)):
            raise BackfillError(
                f"the plan of backfill {plan.id} cannot be read back as it was written; drop it "
                "with the version that began it"
            )
        return plan

    def opened(self, plan: BackfillPlan, terms: HandoverOptions) -> Offsets:
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
        digest, count = terms.digest(plan), len(parts)
        notes = (
            BackfillNote("open", plan.id, digest, i, count, part) for i, part in enumerate(parts)
        )
        return {
            place: CommittedOffset(0, note.encode())
            for place, note in zip(self.places, notes, strict=False)
        }

    def again(self, backfill_id: str) -> Offsets:
        """The notes of a plan as they are, to be committed again before they expire."""
        return {
            place: CommittedOffset(0, note.encode())
            for place, note in self.found.items()
            if note.id == backfill_id
        }

    def become(self, plan_id: str, state: NoteState) -> Offsets:
        """The note that says what has become of the backfill that is open; its plan stays."""
        opened = self.open_head
        assert opened is not None, f"no backfill is open, {plan_id} neither"
        place, head = opened
        assert head.id == plan_id, f"{head.id} is open, not {plan_id}"
        return {place: CommittedOffset(0, replace(head, state=state).encode())}
