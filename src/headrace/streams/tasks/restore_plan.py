"""What must be read of a changelog for local rows to be those of a commit. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.state.store import Position


@dataclass(frozen=True, slots=True)
class ChangelogFacts:
    """What the cluster says of one changelog partition.

    Args:
        start: the first offset that is there.
        end: the high watermark.
        delete_retention_ms: how long tombstones outlive compaction.
    """

    topic_id: str
    start: int
    end: int
    delete_retention_ms: int

    def up_to(self, offset: int) -> ChangelogFacts:
        """The same of an input that is committed up to an offset: what follows is not in rows."""
        return replace(self, end=max(self.start, min(self.end, offset)))


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """From where to where a store is restored, and why its local rows are dropped, if so."""

    begin: int
    end: int
    drop: str | None = None


def plan_restore(position: Position | None, facts: ChangelogFacts, now_ms: int) -> RestorePlan:
    """Decide what to restore of one store.

    Local rows are dropped only with proof: of another topic, beyond the end of this one, or so old
    that tombstones they have not seen may be gone. A position from the future shows that a clock
    was set back, and says nothing about how old it is.

    Args:
        position: what the local rows follow, or None without usable ones.

    Example:
        >>> facts = ChangelogFacts("id", start=0, end=10, delete_retention_ms=1000)
        >>> plan_restore(Position("id", 8, 1, 500), facts, 600)
        RestorePlan(begin=8, end=10, drop=None)
        >>> plan_restore(Position("other", 8, 1, 500), facts, 600).begin
        0
    """
    assert 0 <= facts.start <= facts.end, facts
    if position is None:
        return RestorePlan(facts.start, facts.end)
    reason = None
    if position.topic_id != facts.topic_id:
        reason = "the changelog was created anew"
    elif position.offset > facts.end:
        reason = f"it is at offset {position.offset} of a changelog that ends at {facts.end}"
    elif _is_behind(position, facts) and now_ms - position.wall_ms > facts.delete_retention_ms:
        reason = "deletions that it has not seen may have been compacted away"
    elif _is_behind(position, facts) and position.wall_ms > now_ms:
        reason = (
            "its time is ahead of this host's clock, so that nobody knows how old it is, and "
            "deletions that it has not seen may have been compacted away"
        )
    if reason is not None:
        return RestorePlan(facts.start, facts.end, reason)
    return RestorePlan(max(position.offset, facts.start), facts.end)


def _is_behind(position: Position, facts: ChangelogFacts) -> bool:
    # The commit's own marker is one offset, and never a deletion.
    return facts.end - position.offset > 1
