"""How long brokers keep offsets that nobody commits again, and what follows from it.

The offset of an input that the group does not subscribe to expires `offsets.retention.minutes`
after it was committed, also while the application runs; so does the description of what is
deployed. Both are committed again at a quarter of that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.streams.errors import StreamsError
from headrace.streams.seams.clients import Log

_SETTING = "offsets.retention.minutes"
_AT_MOST_S = 12 * 60 * 60.0
_UNKNOWN_S = 10 * 60.0
"""Often enough for all but the shortest retention, and nothing next to other commits."""
_SHORT_MIN = 24 * 60


class BrokerConfigs(Protocol):
    """What is asked of a cluster; the live one is `headrace.streams.kafka.admin.LiveAdmin`."""

    def broker_configs(self, name: str) -> Sequence[str]:
        """What the brokers have for a setting, asked once."""


def keep_offsets_every_s(cluster: BrokerConfigs, log: Log) -> float:
    """How often to commit what does not move, in seconds."""
    try:
        minutes = min(map(int, cluster.broker_configs(_SETTING)))
    except (StreamsError, ValueError) as error:
        log.warning(
            "offsets_retention_unknown", reason=str(error), committed_again_every_s=_UNKNOWN_S
        )
        return _UNKNOWN_S
    every_s = min(_AT_MOST_S, minutes * 60 / 4)
    if minutes < _SHORT_MIN:
        log.warning(
            "offsets_retention_short",
            minutes=minutes,
            committed_again_every_s=every_s,
            reason=f"an application that stands still for longer loses its offsets, and with them "
            f"the use of its state; raise {_SETTING} of the brokers",
        )
    return every_s
