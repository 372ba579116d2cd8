"""Letting a share of the records go on, by what they are and never by chance.

The first eight bytes of the BLAKE2b digest (of eight bytes, personalised with ``headrace-sample``)
of a record's key or value, in its serde's bytes, are a number below 2**64, big-endian. The record
goes on where that is below the fraction of 2**64. A null counts as no bytes.

So all records of a key go on, or none; the same records do after a restart, in a backfill and
live; and those that go on with a fraction do so with each larger one, too. Which partition a record
lies in says nothing about it, as partitions go by another hash.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

from headrace.topology.context.fused_spec import FusedRecord, FusedSpec
from headrace.topology.context.operator_spec import Bind
from headrace.topology.errors import Arguments, TopologyError
from headrace.topology.serdes import Serde

By = Literal["key", "value"]

_BYTES = 8
_WHOLE: int = 1 << 8 * _BYTES


@dataclass(frozen=True, slots=True)
class Sample(FusedSpec):
    """Lets a share of the records go on.

    Args:
        fraction: which share, from 0 to 1.
        by: what of a record decides.
        serde: whose bytes are looked at; None takes the default.
        topic: any name that is the step's own, for serdes that ask for a topic.

    Raises:
        TopologyError: the fraction is no share, or it goes by something else.

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
        """Whether the key decides."""
        return self.by == "key"

    @property
    def reads_value(self) -> bool:
        """Whether the value decides."""
        return self.by == "value"

    @property
    def serde_arguments(self) -> Arguments:
        """One for either."""
        return {"key": "serde", "value": "serde"}

    def bound(self, bind: Bind, /) -> Sample:
        """The same with a complete serde."""
        return replace(self, serde=bind(self.serde, self.topic, is_key=self.reads_key))

    def condition(self, record: FusedRecord, /) -> str:
        """Whether the bytes are among those that are taken."""
        part = record.key_bytes if self.reads_key else record.value_bytes
        return f"{record.constant('takes', self.takes)}({part(self.serde)})"

    def takes(self, data: bytes | None) -> bool:
        """Whether records with these bytes go on."""
        found = blake2b(data or b"", digest_size=_BYTES, person=b"headrace-sample").digest()
        return int.from_bytes(found, "big") < self.fraction * _WHOLE
