"""What is to be written of changelogs that are gone, as plain data (see `local_changelogs`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.state.store import Position
from headrace.streams.plan.changelog_identity import with_changelogs
from headrace.streams.plan.progress import CHANGELOG_MARK, Progress
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.seams.clients import CommittedOffset, Offsets, TopicPartition
from headrace.streams.seams.group_facts import Member
from headrace.streams.seams.topic_facts import NewTopic


@dataclass(frozen=True, slots=True)
class TaskRows:
    """A task whose changelogs lack rows.

    Args:
        changelogs: all that it has.
        stores: those whose changelogs are to be written.
        commit_id: of the commit that its offsets are of.
        refusal: why its rows cannot be taken from this host; None where they can.
    """

    id: TaskId
    inputs: tuple[TopicPartition, ...]
    changelogs: tuple[str, ...]
    stores: tuple[str, ...]
    commit_id: int
    refusal: str | None


@dataclass(frozen=True, slots=True)
class ChangelogPlan:
    """What is to be done, as it was found at one moment.

    Args:
        members: of the group; while there is one, nothing is done.
        create: changelogs that are gone.
        tasks: those whose changelogs lack rows.
        committed: the group's offsets, marked ones as they are.
    """

    group: str
    members: tuple[Member, ...]
    create: tuple[NewTopic, ...]
    tasks: tuple[TaskRows, ...]
    committed: Mapping[TopicPartition, CommittedOffset]

    @property
    def here(self) -> tuple[TaskRows, ...]:
        """The tasks whose rows are on this host."""
        return tuple(task for task in self.tasks if task.refusal is None)

    @property
    def elsewhere(self) -> tuple[TaskRows, ...]:
        """The others."""
        return tuple(task for task in self.tasks if task.refusal is not None)

    @property
    def marks(self) -> Offsets:
        """What is committed first: no task begins from one of them."""
        return {p: _marked(self.committed[p]) for task in self.tasks for p in self._of(task)}

    def finals(self, ids: Mapping[str, str]) -> Offsets:
        """What is committed last: the offsets of the tasks that were written, as they were.

        Args:
            ids: of the changelogs that are there now, by their names.
        """
        return {
            p: _of_changelogs(
                unmarked(self.committed[p]), {name: ids[name] for name in t.changelogs}
            )
            for t in self.here
            for p in self._of(t)
        }

    def _of(self, task: TaskRows) -> list[TopicPartition]:
        return [place for place in task.inputs if place in self.committed]


def missing_rows(
    found: Mapping[str, Position] | None,
    lost: Sequence[str],
    volatile: Sequence[str],
    commit_id: int | None,
) -> str | None:
    """Why the rows of a task are not to be had from this host, if so.

    Args:
        found: the positions of its stores here; None where nothing of it is.
        lost: stores whose rows are wanted.
        volatile: stores in memory, whose rows are nowhere.
        commit_id: of the commit that the offsets are of, where they say it.

    Example:
        >>> found = {"counts": Position("id", 5, 7, 0), "sums": Position("id", 5, 6, 0)}
        >>> missing_rows(found, ["counts"], [], 7) is None
        True
        >>> missing_rows(found, ["counts", "sums"], [], 7)
        'the rows here are of another commit than the offsets'
    """
    if volatile:
        return f"the rows of {', '.join(volatile)} were in memory alone"
    if commit_id is None:
        return "the offsets do not say which commit they are of"
    if not found:
        return "no rows here"
    if any(store not in found or found[store].commit_id != commit_id for store in lost):
        return "the rows here are of another commit than the offsets"
    return None


def unmarked(committed: CommittedOffset) -> CommittedOffset:
    """An offset as it was before the mark."""
    text = committed.metadata.removeprefix(CHANGELOG_MARK)
    # The client may hand on more than was written; what was read as progress is all of it.
    progress = Progress.parse(text)
    return CommittedOffset(committed.offset, text if progress is None else progress.encode())


def _of_changelogs(committed: CommittedOffset, ids: Mapping[str, str]) -> CommittedOffset:
    """An offset with the numbers of its task's changelogs; one of nothing read stays without."""
    text = committed.metadata
    return CommittedOffset(committed.offset, with_changelogs(text, ids) if text else text)


def _marked(committed: CommittedOffset) -> CommittedOffset:
    return CommittedOffset(committed.offset, f"{CHANGELOG_MARK}{unmarked(committed).metadata}")


def lines(plan: ChangelogPlan) -> Iterator[str]:
    """Say what would be done."""
    if not plan.tasks:
        yield f"No changelog of {plan.group} lacks rows."
        return
    yield "Changelogs to create:"
    yield from [f"  {topic.name}" for topic in plan.create] or ["  none"]
    yield "Tasks to write from the rows on this host:"
    yield from [f"  {t.id}: {', '.join(t.stores) or 'nothing'}" for t in plan.here] or ["  none"]
    if plan.elsewhere:
        yield "Tasks whose rows are not on this host:"
        yield from (f"  {task.id}: {task.refusal}" for task in plan.elsewhere)
        yield (
            "Run this on the hosts that have them; until all are written the application does not "
            "start. Rows that no host has are lost: headrace reset begins anew."
        )
