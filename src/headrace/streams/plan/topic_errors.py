"""Errors about topics that were deleted and re-created, or that have lost records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.streams.errors import StreamsError
from headrace.streams.plan.topic_identity import same_topic, shown


class TopicReplacedError(StreamsError):
    """Raised if an input topic was deleted and re-created: its committed offsets are meaningless.

    Nobody catches it: a person has to decide where to start in the new topic, because an offset of
    the old topic could skip records.

    Args:
        before: the id of the topic that the application has read.
        now: the id of the existing topic.

    Example:
        >>> print(TopicReplacedError("orders", before="mIZ3c7IdTReMqgcwdmKasA",
        ...     now="TaV9E4cwSRaMmdzz6DDvkg"))
        topic orders was deleted and re-created: the application has read the topic with id \
mIZ3c7IdTReMqgcwdmKasA, and now its id is TaV9E4cwSRaMmdzz6DDvkg; no offset of the new topic is \
committed. Stop all workers. To start from scratch, run headrace reset; to keep the state and \
continue with the new topic, run headrace offsets set MODULE:APP --topic orders --to beginning
    """

    def __init__(self, topic: str, *, before: str, now: str) -> None:
        super().__init__(topic, before, now)
        self.topic = topic
        self.before = shown(before)
        self.now = shown(now)

    def __str__(self) -> str:
        return (
            f"topic {self.topic} was deleted and re-created: the application has read the topic "
            f"with id {self.before}, and now its id is {self.now}; no offset of the new topic is "
            "committed. Stop all workers. To start from scratch, run headrace reset; to keep the "
            "state and continue with the new topic, run headrace offsets set MODULE:APP --topic "
            f"{self.topic} --to beginning"
        )


class ChangelogLostError(StreamsError):
    """Raised if a changelog is gone, although the input of its rows is committed.

    Nobody catches it: the state would start empty, and local rows, which may be the last copy,
    would be dropped.

    Args:
        code: the value of ``topology.change.accept`` that lets the stores start empty; None if that
            is not possible.
        stores: the stores of the changelogs, if new changelogs with the same names exist.
        is_shortened: whether the topics still exist and have lost records at their ends.

    Example:
        >>> error = ChangelogLostError(["a-counts-changelog"], stores=["counts"], task="0_1")
        >>> str(error).partition(".")[0]
        'changelogs that are gone: a-counts-changelog (store counts), in whose place are new \
topics of the same names, detected by task 0_1'
    """

    def __init__(
        self,
        changelogs: Iterable[str],
        *,
        code: str | None = None,
        stores: Iterable[str] = (),
        task: str | None = None,
        is_shortened: bool = False,
    ) -> None:
        self.is_shortened = is_shortened
        self.changelogs = tuple(changelogs)
        self.code = code
        self.stores = tuple(stores)
        self.task = task
        super().__init__(self.changelogs, code, self.stores, task, is_shortened)

    def __str__(self) -> str:
        accept = (
            ""
            if self.code is None
            else ", or, if these stores are new and may start empty, set "
            f"topology.change.accept={self.code}"
        )
        anew = ", in whose place are new topics of the same names" if self.stores else ""
        by = "" if self.task is None else f", detected by task {self.task}"
        what, delete = "are gone", ""
        if self.is_shortened:
            what, anew = "lack records that were committed to them", ""
            delete = ", delete these topics,"
        return (
            f"changelogs that {what}: {', '.join(self._named())}{anew}{by}. The group has offsets "
            "after the input of their rows, so the state would start empty, and rows on this host, "
            "which may be the last copy, would be dropped; nothing was created or dropped. To lose "
            f"nothing, stop all workers{delete} and run headrace changelog restore-from-local on "
            "each host that has rows: it writes the changelogs again from these rows. Otherwise "
            f"run headrace reset, which starts from scratch{accept}"
        )

    def _named(self) -> list[str]:
        if not self.stores:
            return list(self.changelogs)
        both = zip(self.changelogs, self.stores, strict=True)
        return [f"{changelog} (store {store})" for changelog, store in both]


def require_same(known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise TopicReplacedError if a known topic has another id."""
    for topic, now in found.items():
        before = known.get(topic)
        if before is not None and not same_topic(before, now):
            raise TopicReplacedError(topic, before=before, now=now)
