"""Which partition a key belongs to, as far as that can be said on one host.

The rows of a table lie where the producer's partitioner puts their keys: murmur2, over as many
partitions as the sub-topology's inputs have. How many there are is the cluster's to say, and the
queries of one host ask nobody. So the guess decides where is looked first, and never alone that a
key is not there: a processor may keep any key in any of its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.state.codec import partition_for_key


def likely_partition(key: bytes, here: Sequence[int]) -> int:
    """The partition to look into first.

    Args:
        key: what the partitioner sees: of a windowed key the key itself.
        here: the partitions that this host has files of.

    >>> likely_partition(b"foobar", [0, 1, 2, 3, 4, 5])
    0
    """
    return partition_for_key(key, max(here) + 1)
