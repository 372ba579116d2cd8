"""What is said of keys whose bytes may not be those that they should meet: by whom, and how."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import optimized
from headrace.streams.seams.clients import Log
from headrace.topology.checks.key_meetings import KeyMeeting, key_meetings
from headrace.topology.checks.unnamed_keys import UnnamedKey, unnamed_keys
from headrace.topology.errors import KeySerdeWarning
from headrace.topology.topology import Topology


def meetings_of(topology: Topology, config: StreamsConfig) -> Iterator[KeyMeeting]:
    """Where keys meet that may have other bytes; what is known to lose records does not start."""
    return key_meetings(optimized(topology, config), config.default_key_serde)


def unnamed_keys_of(topology: Topology, config: StreamsConfig) -> Iterator[UnnamedKey]:
    """Where new keys are written with a serde that nobody named."""
    return unnamed_keys(optimized(topology, config), config.default_key_serde)


def log_unequal_keys(topology: Topology, config: StreamsConfig, log: Log) -> None:
    """Say at a start where keys meet that may have other bytes."""
    for meeting in meetings_of(topology, config):
        log.warning("keys_may_not_meet", store=meeting.store, reason=str(meeting))


def warn_of_keys(topology: Topology, config: StreamsConfig, *, above: int) -> None:
    """Warn a test of both.

    Args:
        above: how many calls further up the test is.
    """
    for found in (*meetings_of(topology, config), *unnamed_keys_of(topology, config)):
        warnings.warn(str(found), KeySerdeWarning, stacklevel=above + 2)
