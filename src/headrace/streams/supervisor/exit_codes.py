"""Exit codes of `headrace run` and of its workers.

A code determines who must act. After a crash, the supervisor restarts the worker. After any other
error a restart would fail in the same way, so a manual fix is required. The page docs/operations.md
contains the table, printed by `python -m tests.support.generated_pages exit-codes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from headrace.streams.config.loading import ApplicationError
from headrace.streams.errors import (
    BackfillOpenError,
    ChangelogUnfinishedError,
    ConfigError,
    FatalClientError,
    IdentityError,
    LocalStateError,
    MisconfiguredTopicError,
    MissingTopicError,
    OffsetLostError,
    ProcessorFailedError,
    RecordError,
    ResetUnfinishedError,
    ShutDownError,
    TopologyChangedError,
    VersionConflictError,
)
from headrace.streams.kafka.acls import AccessError
from headrace.streams.plan.identity import ChangelogLostError, TopicReplacedError
from headrace.streams.tasks.lost_offsets import StateWithoutOffsetsError
from headrace.streams.tasks.sink_connections import UnusableSinkError
from headrace.topology.errors import TopologyError


class ExitCode(IntEnum):
    """Exit code of a worker, or of the whole `headrace run`."""

    STOPPED = 0
    CRASHED = 1
    USAGE = 2
    CONFIGURATION = 3
    TOPICS = 4
    RECORD = 5
    IDENTITY = 6
    OFFSETS = 7
    LOCAL_STATE = 8
    CLIENT = 9
    RESTARTS = 10
    STOP_TIMEOUT = 11
    BACKFILL = 12
    ACCESS = 13
    SHUT_DOWN = 14
    VERSIONS = 15
    INTERRUPTED = 130


_CRASHES = frozenset({ExitCode.CRASHED, ExitCode.CLIENT})


@dataclass(frozen=True, slots=True)
class ExitCause:
    """Row of the table of exit codes.

    Args:
        error: the error that the worker raised; None for an ending without an error.
        again: whether the supervisor restarts the worker, or the fix before a restart.
    """

    error: type[BaseException] | None
    when: str
    code: ExitCode
    again: str


TABLE: tuple[ExitCause, ...] = (
    ExitCause(ConfigError, "settings are invalid; all of them are reported", ExitCode.CONFIGURATION,
           "after correcting the settings"),
    ExitCause(TopologyError, "the topology is invalid", ExitCode.CONFIGURATION,
           "after correcting the code"),
    ExitCause(TopologyChangedError, "the topology would lose or misread state that is deployed",
           ExitCode.CONFIGURATION, "after [following the message](#changed-topologies)"),
    ExitCause(ApplicationError, "the application cannot be loaded, or its function raises",
           ExitCode.CONFIGURATION, "after correcting the name or the code"),
    ExitCause(UnusableSinkError, "an external sink cannot be used",
           ExitCode.CONFIGURATION, "after [following the message](sinks.md)"),
    ExitCause(MissingTopicError,
           "a source or output topic does not exist, or was deleted",
           ExitCode.TOPICS, "after creating the topic"),
    ExitCause(MisconfiguredTopicError, "topics do not match the topology or each other",
           ExitCode.TOPICS, "after following the message"),
    ExitCause(RecordError, "a record cannot be processed", ExitCode.RECORD,
           "after [handling the record](#bad-records)"),
    ExitCause(ProcessorFailedError,
           "a processor fails outside of a record: on creation, in `init` or in a punctuator",
           ExitCode.RECORD, "after correcting the code"),
    ExitCause(IdentityError, "another live worker has this identity", ExitCode.IDENTITY,
           "after giving each worker its own identity"),
    ExitCause(OffsetLostError, "the next offset was deleted on the broker", ExitCode.OFFSETS,
           "after choosing an offset"),
    ExitCause(TopicReplacedError, "an input topic was deleted and re-created", ExitCode.OFFSETS,
           "after choosing a start position"),
    ExitCause(ChangelogLostError, "a changelog is lost, and offsets of its input are committed",
           ExitCode.OFFSETS, "after [rewriting it](#lost-changelogs)"),
    ExitCause(ChangelogUnfinishedError, "the restore of changelogs from local rows is not complete",
           ExitCode.OFFSETS, "after repeating `headrace changelog restore-from-local`"),
    ExitCause(StateWithoutOffsetsError, "state exists, but the group has no offsets of its inputs",
           ExitCode.OFFSETS, "after following the message"),
    ExitCause(ResetUnfinishedError, "a reset of the application is not complete",
           ExitCode.OFFSETS, "after repeating `headrace reset`"),
    ExitCause(BackfillOpenError, "the handover of a backfill is not complete",
           ExitCode.BACKFILL, "after finishing or dropping it"),
    ExitCause(VersionConflictError,
           "live workers run another version, which cannot share tasks with this version",
           ExitCode.VERSIONS, "after [stopping all workers](#rolling-upgrades)"),
    ExitCause(AccessError,
           "the cluster rejects this client, denies it an operation, or is not trusted",
           ExitCode.ACCESS, "after correcting the password, the certificate or the [ACLs](#acls)"),
    ExitCause(ShutDownError, "another process has requested the shutdown of the application",
           ExitCode.SHUT_DOWN, "after fixing the error of that process"),
    ExitCause(LocalStateError,
           "the state directory cannot be used, or its files have another format",
           ExitCode.LOCAL_STATE, "after following the message"),
    ExitCause(FatalClientError, "a Kafka client cannot continue, or the brokers do not answer",
           ExitCode.CLIENT, "yes, by the supervisor"),
    ExitCause(None, "another error, a signal or `os._exit` ended a worker", ExitCode.CRASHED,
           "yes, by the supervisor"),
    ExitCause(None, "the `uncaught_error_handler` requested the shutdown of the application",
           ExitCode.SHUT_DOWN, "after fixing the cause"),
    ExitCause(None, "stopped cleanly: SIGTERM, SIGHUP, Ctrl-C or `close`", ExitCode.STOPPED, "no"),
    ExitCause(None, "the command line is wrong", ExitCode.USAGE, "after correcting it"),
    ExitCause(None, "a worker crashed too often within ten minutes", ExitCode.RESTARTS,
           "after fixing the cause"),
    ExitCause(None, "a worker did not stop within `shutdown.timeout.ms` and was killed",
           ExitCode.STOP_TIMEOUT, "no"),
    ExitCause(None, "a second Ctrl-C killed the workers", ExitCode.INTERRUPTED, "no"),
)  # fmt: skip


def exit_code_of(error: BaseException, table: Sequence[ExitCause] = TABLE) -> ExitCode:
    """Return the exit code of a process that was stopped by `error`.

    >>> from headrace.streams.errors import ConfigError
    >>> exit_code_of(ConfigError("poll.ms must be at least 0, not -1")).name
    'CONFIGURATION'
    >>> exit_code_of(ZeroDivisionError()).name
    'CRASHED'
    """
    for kind in type(error).__mro__:
        for ending in table:
            if ending.error is kind:
                return ending.code
    return ExitCode.CRASHED


def is_crash(code: int) -> bool:
    """Return whether the supervisor restarts a worker that ended with this code.

    The code is negative for a signal, as in `subprocess`. An unknown code is a crash: user code or
    a library ended the process.

    >>> is_crash(-9), is_crash(ExitCode.CLIENT), is_crash(42), is_crash(ExitCode.RECORD)
    (True, True, True, False)
    """
    try:
        return ExitCode(code) in _CRASHES
    except ValueError:
        return True
