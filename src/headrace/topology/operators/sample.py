"""Sample of the records, chosen by a hash of the key or value rather than by chance.

The first eight bytes of the BLAKE2b digest (of eight bytes, personalised with ``headrace-sample``)
of a record's key or value, in its serde's bytes, are a big-endian number below 2**64. The record is
forwarded if the number is below the fraction of 2**64. A null is hashed as an empty byte string.

So either all records of a key are forwarded, or none. The same records are forwarded after a
restart, in a backfill and live, and a larger fraction includes the records of a smaller one. The
sample is independent of partitions, because they use another hash.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

from headrace.topology.context.operator_spec import Bind, FusedRecord, FusedSpec
from headrace.topology.errors import Arguments, TopologyError
from headrace.topology.serdes import Serde

By = Literal["key", "value"]

_BYTES = 8
_WHOLE: int = 1 << 8 * _BYTES


@dataclass(frozen=True, slots=True)
class Sample(FusedSpec):
    """Spec of a sample.

    Args:
        fraction: the fraction of records to forward, from 0 to 1.
        by: whether the key or the value is hashed.
        serde: the serde of the hashed part; None takes the default.
        topic: a unique name, for serdes that depend on a topic.

    Raises:
        TopologyError: `fraction` or `by` is invalid.

    >>> half = Sample(0.5, "key", None, "half")
    >>> [key for key in "abcdef" if half.takes(key.encode())]
    ['a', 'b', 'd', 'e']
    """

    fraction: float
    by: By
    serde: Serde[Any] | None
    topic: str

    def __post_init__(self) -> None:
        given = self.fraction
        is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if not (is_number and 0 <= given <= 1):  # NaN is not, either
            raise TopologyError(
                f"sample() takes a fraction from 0 to 1, and was given {self.fraction!r}; write "
                "0.01 for one record in a hundred"
            )
        if self.by not in ("key", "value"):
            raise TopologyError(f"sample() goes by='key' or by='value', not by={self.by!r}")

    @property
    def reads_key(self) -> bool:
        return self.by == "key"

    @property
    def reads_value(self) -> bool:
        return self.by == "value"

    @property
    def serde_arguments(self) -> Arguments:
        return {"key": "serde", "value": "serde"}

    def bound(self, bind: Bind, /) -> Sample:
        return replace(self, serde=bind(self.serde, self.topic, is_key=self.reads_key))

    def condition(self, record: FusedRecord, /) -> str:
        part = record.key_bytes if self.reads_key else record.value_bytes
        return f"{record.constant('takes', self.takes)}({part(self.serde)})"

    def takes(self, data: bytes | None) -> bool:
        found = blake2b(data or b"", digest_size=_BYTES, person=b"headrace-sample").digest()
        return int.from_bytes(found, "big") < self.fraction * _WHOLE
