"""Which partition a key belongs to, as far as that can be said on one host.

The rows of a table lie where the producer's partitioner puts their keys: murmur2, over as many
partitions as the sub-topology's inputs have. How many there are is the cluster's to say, and a
question that was sent on from another host has it with it; else it is guessed. So it decides where
is looked first, and never alone that a key is not there: a processor may keep any key in any of its
tasks.
"""

from __future__ import annotations

from collections.abc import Iterable


def likely_count(here: Iterable[int], known: int | None = None) -> int:
    """Over how many partitions keys are likely to be spread.

    Args:
        here: the partitions that this host has files of.
        known: how many there are, from whoever has asked the cluster.

    >>> likely_count([0, 2]), likely_count([0, 2], 8)
    (3, 8)
    """
    return known or max(1, max(here) + 1)
