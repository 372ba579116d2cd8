"""Takes an application back to a beginning: its offsets, its internal topics, its local state.

A kill may come between any two steps, and what it leaves must not start wrongly: old offsets above
empty stores lose records, new offsets above old stores count records twice. So the steps are:

    1  lock the local state of this host; a running worker's lock refuses the reset
    2  see that the group has no members, that no backfill is open, and that all is as it was when
       the plan was shown
    3  commit the new offsets with a mark beside each, and read them back as decided ones
    4  delete the repartition topics and the changelogs; wait until they and their offsets are gone
    5  remove the local state
    6  forget what topology was deployed (see `headrace.streams.deployed.deployed`)
    7  commit the new offsets again, without the mark

Before 3 nothing has changed, and after 7 all is done. In between every task that starts meets the
mark (`Progress.decode`) and refuses with `ResetUnfinishedError`; a second run does all steps again
and finishes. The mark keeps the offset of before, so the second run knows it too.

Step 3 is where the races end. The broker refuses the commit while the group has a member, and a
member that comes later reads the mark. A transaction that a killed worker left open may hold
offsets which would come back over the mark: reading the marks back with `require_stable` waits for
its end, and shows it.

Other hosts' state needs no visit. Rows follow a changelog by its topic's id (see
`headrace.streams.tasks.restore_plan.plan_restore`), and rows without a changelog by the commit id
beside the offsets; after a reset neither fits, and they are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from headrace.state.directory import StateDirectory, TaskDirectory
from headrace.state.errors import StateError, StateLockedError, StoreCorruptedError
from headrace.streams.contact.access_errors import GroupDeniedError
from headrace.streams.deployed.deployed import Groups, forget
from headrace.streams.errors import FatalClientError, LocalStateError
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import RESET_MARK
from headrace.streams.plan.topics import describe_as
from headrace.streams.seams.clients import Probe, TopicPartition, no_probe
from headrace.streams.seams.group_facts import Member, Target
from headrace.streams.seams.offset_texts import without_mark
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.start_errors import ResetRefusedError
from headrace.streams.upgrade.backfill_gate import BackfillNote, open_note
from headrace.streams.upgrade.input_uses import input_uses, refuse_missing_rows
from headrace.streams.upgrade.outside_tables import OutsideTable
from headrace.streams.upgrade.reset_plan import (
    ApplicationTopics,
    ResetPlan,
    backfill_in_the_way,
    moves,
)

_LOOK_AGAIN_S = 0.1
_BROKEN = (
    "a copy of these files, or another host, may have the rows: with it in their place, run this "
    "again; headrace reset begins anew, without them"
)
"""What to do where the rows of broken files are asked for as there is no changelog of them."""


class ResetCluster(Groups, Protocol):
    """What a reset asks of a cluster."""

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """The facts of those topics that exist."""

    def names(self) -> frozenset[str]:
        """All topics that this client may see."""

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics, and wait until they are gone."""

    def offsets_for(
        self, target: Target, places: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Where a target is in each partition."""


class Reset:
    """One application that is to begin anew.

    Args:
        application_id: the name of its group, and what its topics begin with.
        timeout_s: how long the cluster may take to forget deleted topics, in seconds.
        global_topics: what its global tables read: never touched.
    """

    def __init__(
        self,
        application_id: str,
        plans: Sequence[SubPlan],
        cluster: ResetCluster,
        *,
        state_dir: Path,
        timeout_s: float,
        probe: Probe = no_probe,
        global_topics: Sequence[str] = (),
    ) -> None:
        self._group = application_id
        self._topics = ApplicationTopics.of(plans, global_topics)
        self._uses = input_uses(plans)
        self._tables = OutsideTable.all_of(application_id, plans)
        self._cluster = cluster
        self._state_dir = state_dir
        self._timeout_s = timeout_s
        self._probe = probe

    def plan(
        self, target: Target, *, inputs: Sequence[str] = (), all_internal: bool = False
    ) -> ResetPlan:
        """Find out what is to be done; nothing is changed.

        Args:
            inputs: those that are set; none stands for all. Others stay at their offsets, but for
                tables, which are always read from the beginning.
            all_internal: delete topics too that only look like the application's.

        Raises:
            ConfigError: one of `inputs` is none.
            ResetRefusedError: an input that stays would be missing in stores, or a transaction of
                a worker that is gone stayed open.
        """
        chosen = self._topics.chosen(inputs)
        tables = {topic for topic, use in self._uses.items() if use.is_table}
        refuse_missing_rows(self._uses, chosen, target)
        members = self._cluster.members(self._group)
        # While workers run there is always something undecided, and nothing will be done.
        committed = self._cluster.committed(self._group, decided=not members)
        facts = describe_as(self._cluster, [*self._topics.inputs, *self._topics.internal])
        places = [place for name in self._topics.inputs for place in _places(facts, name)]
        set_places = [place for place in places if place.topic in chosen - tables]
        table_places = [place for place in places if place.topic in tables]
        targets = {
            **self._cluster.offsets_for(target, set_places),
            **self._cluster.offsets_for(Target(), table_places),
        }
        return ResetPlan(
            group=self._group,
            members=members,
            moves=moves(committed, targets, places),
            repartitions=tuple(
                place for name in self._topics.repartitions for place in _places(facts, name)
            ),
            internal=tuple(name for name in self._topics.internal if name in facts),
            leftovers=self._topics.leftovers(self._group, self._cluster.names()),
            deletes_leftovers=all_internal,
            missing=tuple(name for name in self._topics.inputs if name not in facts),
            directories=tuple(self._directories()),
            unfinished=any(c.metadata.startswith(RESET_MARK) for c in committed.values()),
            backfill=self._open_backfill(),
            tables=self._tables,
            read_as_tables=frozenset(tables),
            also_written=self._topics.also_written,
        )

    def _open_backfill(self) -> BackfillNote | None:
        with suppress(GroupDeniedError):  # then there is none: who hands over writes there
            return open_note(self._group, self._cluster)
        return None

    def carry_out(self, plan: ResetPlan, look_again: Callable[[], ResetPlan]) -> None:
        """Do what the plan says, in the order that the module describes.

        Args:
            look_again: makes the plan anew, to see that nothing has changed.

        Raises:
            ResetRefusedError: the application runs, or something else changed; nothing was done
                unless the message says so.
            LocalStateError: the local state cannot be removed.
        """
        with locked_state(self._state_dir, self._group) as held:
            refuse_members(self._group, self._cluster.members(self._group))
            refuse_backfill(self._group, self._open_backfill())
            if not plan.is_still(look_again()):
                raise ResetRefusedError(
                    f"offsets, members or topics of {self._group} have changed since the plan was "
                    "made; nothing was done: look at the new plan and try again"
                )
            self._commit_marks(plan)
            self._probe("reset_marked")
            self._cluster.delete_topics(plan.doomed)
            self._probe("reset_topics_deleted")
            self._await_forgotten(plan.doomed)
            for directory in held:
                directory.remove()
            self._probe("reset_state_removed")
            with suppress(GroupDeniedError):  # then nothing was kept there either
                forget(self._group, self._cluster)
            self._probe("reset_topology_forgotten")
            self._cluster.set_offsets(self._group, plan.finals)
            self._probe("reset_done")

    def _commit_marks(self, plan: ResetPlan) -> None:
        self._cluster.set_offsets(self._group, plan.marks)
        found = self._cluster.committed(self._group, decided=True)
        over = without_mark(plan.marks, found)
        if over:
            raise ResetRefusedError(
                f"a worker committed offsets of {', '.join(over)} while the reset began; "
                "stop all workers and run it again, which finishes it"
            )

    def _await_forgotten(self, topics: Iterable[str]) -> None:
        """Wait until the group has no offsets of deleted topics: new ones would begin from them."""
        deleted = frozenset(topics)
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            offsets = self._cluster.committed(self._group, decided=True)
            left = sorted({place.topic for place in offsets} & deleted)
            if not left:
                return
            if time.monotonic() >= give_up_at:
                raise FatalClientError(
                    f"the group {self._group} still has offsets of deleted topics: "
                    f"{', '.join(left)}; run the reset again, and look into the brokers' logs if "
                    "they stay"
                )
            time.sleep(_LOOK_AGAIN_S)

    def _directories(self) -> list[Path]:
        if not (self._state_dir / self._group).is_dir():
            return []
        with local_errors():
            directory = self._directory()
            paths = (*directory.task_paths(), *directory.global_paths())
            return [path for path in paths if path.exists()]

    def _directory(self) -> StateDirectory:
        return StateDirectory(self._state_dir, self._group)


def refuse_members(group: str, members: Sequence[Member]) -> None:
    """See that the application does not run.

    Raises:
        ResetRefusedError: it does; the message says which workers, and how to stop them.
    """
    if members:
        raise ResetRefusedError(
            f"the application {group} runs: its group has the members "
            f"{', '.join(map(str, members))}; stop all its workers (SIGTERM to headrace run), on "
            "all hosts. One that was killed, or that stops with on.stop=stay, is a member until "
            "consumer.session.timeout.ms is over"
        )


def refuse_backfill(group: str, note: BackfillNote | None) -> None:
    """See that no backfill is being handed over: its parts are rows that a reset would delete.

    Raises:
        ResetRefusedError: one is; the message says how to finish or drop it.
    """
    if note is not None:
        raise ResetRefusedError(f"{backfill_in_the_way(group, note)}; nothing was done")


def _places(facts: Mapping[str, TopicFacts], name: str) -> list[TopicPartition]:
    count = facts[name].partitions if name in facts else 0
    return [TopicPartition(name, partition) for partition in range(count)]


@contextmanager
def locked_state(state_dir: Path, group: str) -> Iterator[list[TaskDirectory]]:
    """Hold the locks of all local state of an application on this host, if there is any.

    Raises:
        ResetRefusedError: a process has some of it; the message says which.
    """
    held: list[TaskDirectory] = []
    try:
        with local_errors():
            if (state_dir / group).is_dir():
                held = StateDirectory(state_dir, group).claim_all()
            yield held
    finally:
        for directory in held:
            directory.release()


@contextmanager
def local_errors() -> Iterator[None]:
    """Tell what goes wrong with local state in the words of the commands."""
    try:
        yield
    except StateLockedError as error:
        raise ResetRefusedError(str(error)) from error
    except StoreCorruptedError as error:
        raise LocalStateError(f"{error}; {_BROKEN}") from error
    except StateError as error:
        raise LocalStateError(str(error)) from error
