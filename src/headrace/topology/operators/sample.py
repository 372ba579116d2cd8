"""Sample of the records, chosen by a hash of the key or value rather than by chance.

The first eight bytes of the BLAKE2b digest (of eight bytes, personalised with ``headrace-sample``)
of a record's key or value, in its serde's bytes, are a big-endian number below 2**64. The record is
forwarded if the number is below the fraction of 2**64. A null is hashed as an empty byte string.

So either all records of a key are forwarded, or none. The same records are forwarded after a
restart, in a backfill and live, and a larger fraction includes the records of a smaller one. The
sample is independent of partitions, because they use another hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from headrace.topology.errors import TopologyError

_BYTES = 8
_RANGE: int = 1 << 8 * _BYTES


@dataclass(frozen=True, slots=True)
class HashSample:
    """Condition that a record belongs to a sample.

    Args:
        fraction: the fraction of records to forward, from 0 to 1.

    Raises:
        TopologyError: the fraction is invalid.

    >>> half = HashSample(0.5)
    >>> [key for key in "abcdef" if half(key.encode())]
    ['a', 'b', 'd', 'e']
    """

    fraction: float

    def __post_init__(self) -> None:
        fraction = self.fraction
        is_number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
        if not (is_number and 0 <= fraction <= 1):  # NaN is not, either
            raise TopologyError(
                f"sample() requires a fraction from 0 to 1, and was given {self.fraction!r}; write "
                "0.01 for 1 % of the records"
            )

    def __call__(self, data: bytes | None) -> bool:
        digest = blake2b(data or b"", digest_size=_BYTES, person=b"headrace-sample").digest()
        return int.from_bytes(digest, "big") < self.fraction * _RANGE
