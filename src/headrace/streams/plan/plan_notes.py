"""What is said of a plan beforehand: of keys that may not meet, and of mergers of no use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import optimized
from headrace.streams.seams.clients import Log
from headrace.topology.checks.key_meetings import KeyMeeting, key_meetings
from headrace.topology.checks.unnamed_keys import UnnamedKey, unnamed_keys
from headrace.topology.errors import KeySerdeWarning
from headrace.topology.graph.combinable import FoldSeen, folds_of
from headrace.topology.topology import Topology


def meetings_of(topology: Topology, config: StreamsConfig) -> Iterator[KeyMeeting]:
    """Where keys meet that may have other bytes; what is known to lose records does not start."""
    return key_meetings(optimized(topology, config), config.default_key_serde)


def unnamed_keys_of(topology: Topology, config: StreamsConfig) -> Iterator[UnnamedKey]:
    """Where new keys are written with a serde that nobody named."""
    return unnamed_keys(optimized(topology, config), config.default_key_serde)


def folds_as_run(topology: Topology, config: StreamsConfig) -> Iterator[FoldSeen]:
    """The folds of grouped streams, and why partial results of some are not written."""
    for seen in folds_of(optimized(topology, config)):
        reason = config.why_not_combined(asks_user=seen.fold.asks_user)
        if seen.combining is None or reason is None:
            yield seen
        else:
            yield replace(seen, combining=None, reason=reason)


def log_plan_notes(topology: Topology, config: StreamsConfig, log: Log) -> None:
    """Say at a start where keys meet that may have other bytes, and where a merger is no use."""
    for meeting in meetings_of(topology, config):
        log.warning("keys_may_not_meet", store=meeting.store, reason=str(meeting))
    for seen in folds_as_run(topology, config):
        if seen.is_declared and seen.combining is None:
            call = seen.fold.word
            log.info("combining_left_out", store=seen.store, call=call, reason=seen.reason)


def warn_of_keys(topology: Topology, config: StreamsConfig, *, above: int) -> None:
    """Warn a test of keys that may not meet, and of those whose serde nobody named.

    Args:
        above: how many calls further up the test is.
    """
    for found in (*meetings_of(topology, config), *unnamed_keys_of(topology, config)):
        warnings.warn(str(found), KeySerdeWarning, stacklevel=above + 2)
