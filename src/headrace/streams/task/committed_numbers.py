"""The numbers that a task commits beside its offsets: of its operators, and of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.streams.plan.changelog_identity import changelog_numbers, numbers_that_fit
from headrace.streams.plan.left_out import without_left_out
from headrace.streams.plan.progress import COMMIT_ID, INPUTS, Progress, inputs_number
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.plan.topic_identity import committed_id, id_values, without_ids
from headrace.streams.seams.clients import Log, TopicPartition
from headrace.topology.context.context import Number
from headrace.topology.errors import TopologyError


class CommittedNumbers:
    """See the module.

    Args:
        progress: what was committed, by input partition.
    """

    def __init__(
        self, progress: Mapping[TopicPartition, Progress], topic_ids: Mapping[str, str]
    ) -> None:
        # Numbers that another writer of this group put there stay there.
        self._extra_values: dict[str, int] = {}
        for p in progress.values():
            for name, value in without_left_out(without_ids(p.values)).items():
                if name not in (COMMIT_ID, INPUTS):
                    self._extra_values[name] = max(value, self._extra_values.get(name, value))
        ids = {place.topic: committed_id(place.topic, p.values) for place, p in progress.items()}
        ids |= topic_ids
        self._id_values = {name: id_values(name, i) if i else {} for name, i in ids.items()}
        self._numbers: dict[str, Number] = {}
        self._changelog_numbers: dict[str, int] = {}

    def number(self, name: str) -> Number:
        """A number of the operators, as it was committed."""
        known = self._numbers.get(name)
        if known is None:
            known = self._numbers[name] = Number(self._extra_values.pop(name, -1))
        return known

    def forget(self, *prefixes: str) -> None:
        """Do not commit numbers again that begin so and that no operator has asked for."""
        kept = self._extra_values.items()
        self._extra_values = {n: value for n, value in kept if not n.startswith(prefixes)}

    def require_room(
        self,
        task_id: TaskId,
        changelog_ids: Mapping[str, str],
        log: Log | None,
        *,
        of_inputs: Iterable[str] = (),
    ) -> None:
        """Refuse, before the first record, more numbers than fit beside an offset.

        Of the changelogs' ids those are committed that find room beside all else.

        Args:
            of_inputs: numbers of single inputs.
        """
        own = dict.fromkeys((*self._numbers, *of_inputs, INPUTS, COMMIT_ID), 0)
        values = {**self._extra_values, **own, **id_values("", "")}
        try:
            Progress(0, values).encode()
        except ValueError as error:
            raise TopologyError(
                f"sub-topology {task_id.sub_topology} has {len(self._numbers)} times and other "
                f"numbers of its windows, joins and processors to commit: {error}, or give their "
                "steps and stores shorter names"
            ) from error
        fitting = numbers_that_fit(values, changelog_numbers(changelog_ids))
        left_out = [
            topic
            for topic, topic_id in changelog_ids.items()
            if not changelog_numbers({topic: topic_id}).keys() <= fitting.keys()
        ]
        # Its other tasks have as much room.
        if left_out and log is not None and task_id.partition == 0:
            log.warning(
                "changelog_identity_left_out", task=str(task_id), changelogs=sorted(left_out)
            )
        self._changelog_numbers = fitting

    def values(self, inputs: Iterable[str], commit_id: int) -> dict[str, int]:
        """What to commit at every place."""
        numbers = {name: n.value for name, n in self._numbers.items() if n.value != -1}
        own = {INPUTS: inputs_number(inputs), COMMIT_ID: commit_id, **self._changelog_numbers}
        return {**self._extra_values, **numbers, **own}

    def progress(self, topic: str, partition_time: int, values: Mapping[str, int]) -> Progress:
        """What to commit beside an offset of one input."""
        return Progress(partition_time, {**values, **self._id_values.get(topic, {})})
