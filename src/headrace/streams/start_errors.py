"""What refuses a start, or a reset: see the table in `headrace.streams.errors`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.streams.errors import StreamsError


class ResetUnfinishedError(StreamsError):
    """The group's offsets are marked by a reset that began and did not come to its end.

    Nobody catches it: topics and state of before may still be there, and would be counted upon.
    """


class ChangelogUnfinishedError(StreamsError):
    """Changelogs are being written from local rows, and are not complete.

    Nobody catches it: a task that began now would find a part of its rows.
    """


class BackfillOpenError(StreamsError):
    """A backfill is being handed over to the application, or was left half way.

    Nobody catches it: state that is half written would be counted upon.

    Args:
        is_dropped: whether it is being dropped, and not finished.

    Example:
        >>> print(BackfillOpenError("shop", "bf-1"))
        backfill bf-1 of the application shop is open, and its state may be half written, so \
nothing was started; finish it with `headrace backfill ... --id bf-1`, or drop it with `headrace \
backfill ... --drop --id bf-1`, then start
    """

    def __init__(self, application_id: str, backfill_id: str, *, is_dropped: bool = False) -> None:
        super().__init__(application_id, backfill_id)
        self.application_id = application_id
        self.backfill_id = backfill_id
        self.is_dropped = is_dropped

    def __str__(self) -> str:
        drop = f"`headrace backfill ... --drop --id {self.backfill_id}`"
        what = f"backfill {self.backfill_id} of the application {self.application_id}"
        if self.is_dropped:
            return (
                f"{what} is being dropped, and its state may be there in part, so nothing was "
                f"started; finish that with {drop}, again, then start"
            )
        return (
            f"{what} is open, and its state may be half written, so nothing was started; finish it "
            f"with `headrace backfill ... --id {self.backfill_id}`, or drop it with {drop}, then "
            "start"
        )


class ShutDownError(StreamsError):
    """Another process of the application has asked for all of them to stop.

    Nobody catches it: whoever starts the application again begins anew.

    Args:
        host: where that process runs.
        process: its number there.
        error: what stopped it.
        reason: the error's text.

    Example:
        >>> print(ShutDownError("shop", "db-3", 41, "RecordError", "in-0 offset 7 cannot be read"))
        the application shop is shut down everywhere, which its uncaught_error_handler has \
answered on db-3 (process 41) to RecordError: in-0 offset 7 cannot be read; put that right, then \
start again
    """

    def __init__(
        self, application_id: str, host: str, process: int, error: str, reason: str
    ) -> None:
        super().__init__(application_id, host, process, error, reason)
        self.application_id = application_id
        self.host = host
        self.process = process

    def __str__(self) -> str:
        application, host, process, error, reason = self.args
        return (
            f"the application {application} is shut down everywhere, which its "
            f"uncaught_error_handler has answered on {host} (process {process}) to {error}: "
            f"{reason}; put that right, then start again"
        )


class TopologyChangedError(StreamsError):
    """The topology would lose or misread state that is deployed, and nobody has accepted that.

    Nobody catches it: the program must be corrected, or the change be accepted.

    Args:
        changes: what would happen, each with its way out.
        code: what ``topology.change.accept`` must be for this change to be accepted.

    Example:
        >>> print(TopologyChangedError(["store a is called b now: name it a"], "0f3c"))
        the topology does not fit what is deployed, and nothing was started:
        - store a is called b now: name it a
        To start all the same and lose that, set topology.change.accept=0f3c
    """

    def __init__(self, changes: Iterable[str], code: str) -> None:
        self.changes = tuple(changes)
        self.code = code
        lines = "".join(f"\n- {change}" for change in self.changes)
        super().__init__(
            f"the topology does not fit what is deployed, and nothing was started:{lines}\n"
            f"To start all the same and lose that, set topology.change.accept={code}"
        )


class VersionConflictError(StreamsError):
    """Live workers run another version, with which this one would own partitions twice.

    Nobody catches it: the other workers must be stopped first.

    Args:
        application_id: the application.
        members: the live members of the group that run another version.
        reasons: what both versions would own, or why that is not known.

    Example:
        >>> print(VersionConflictError("shop", ["w1"], ["topic a is assigned with b here and with \
a there"]))
        1 live member of group shop runs another version of the topology, and this one does not \
run beside it: both would own the same partitions and double or lose output (topic a is assigned \
with b here and with a there; members: w1). Stop all workers, then start the new version
    """

    def __init__(self, application_id: str, members: Sequence[str], reasons: Sequence[str]) -> None:
        super().__init__(application_id, members, reasons)
        self.members = tuple(members)
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        application_id, members, reasons = self.args
        who = "1 live member" if len(members) == 1 else f"{len(members)} live members"
        return (
            f"{who} of group {application_id} {'runs' if len(members) == 1 else 'run'} another "
            "version of the topology, and this one does not run beside "
            f"{'it' if len(members) == 1 else 'them'}: both would own the same partitions and "
            f"double or lose output ({'; '.join(reasons)}; members: {', '.join(members)}). Stop "
            "all workers, then start the new version"
        )


class ResetRefusedError(StreamsError):
    """What changes a stopped application cannot be done now: it runs, or is not as it was shown.

    `headrace reset`, `offsets set` and `changelog restore-from-local` say it and end; the message
    says what to do before the next try.
    """
