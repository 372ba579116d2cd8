"""Change of a row as JSON, which is encoded once for all followers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.streams.kafka.protocols import ReceivedMessage
from headrace.streams.queries.errors import WrongQueryError
from headrace.streams.queries.origin import Origin
from headrace.topology.serdes import Serde
from headrace.topology.serdes.documents import as_base64, to_document

# Position of a follower in a store's changes, as text: ``0:1500,1:1498``.
#
# For each partition it contains the next offset of the changelog: earlier changes were sent. It is
# the same offset as in the `PartitionPosition` of a query result, so a client can follow changes
# after a query.


LENGTH_MAX = 20_000
_ENTRY = re.compile(r"(\d{1,6}):(\d{1,18})", re.ASCII)


def text_of(positions: Mapping[int, int]) -> str:
    """Format positions as text.

    >>> text_of({1: 7, 0: 12})
    '0:12,1:7'
    """
    return ",".join(f"{partition}:{positions[partition]}" for partition in sorted(positions))


def positions_of(text: str) -> dict[int, int]:
    """Parse positions, or raise WrongQueryError.

    >>> positions_of("0:12,1:7")
    {0: 12, 1: 7}
    """
    positions: dict[int, int] = {}
    for entry in text[:LENGTH_MAX].split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None:
            raise WrongQueryError(
                "a position must be PARTITION:OFFSET,PARTITION:OFFSET…, as in the id of an event, "
                f"not {text[:80]!r}"
            )
        positions[int(match[1])] = int(match[2])
    return positions


class DecodedChange:
    """Record of a changelog, decoded by its origin."""

    __slots__ = ("_data", "_error", "_origin", "key", "offset", "partition", "timestamp", "value")

    def __init__(self, origin: Origin, record: ReceivedMessage) -> None:
        self._origin = origin
        self._data: bytes | None = None
        self._error: str | None = None
        self.partition = record.partition()
        self.offset = record.offset()
        self.key: bytes | None
        self.value: bytes | None
        self.timestamp = record.timestamp()[1]
        try:
            row = origin.read(record)
        except Exception as error:  # a custom serde may raise anything
            self.key, self.value = record.key(), record.value()
            self._error = f"{type(error).__name__}: {error}"
        else:
            self.key, self.value, self.timestamp = row or (None, None, self.timestamp)

    @property
    def bare_key(self) -> bytes:
        return self._origin.bare_key(self.key or b"")

    @property
    def data(self) -> bytes:
        """JSON, encoded by the first access."""
        if self._data is None:
            self._data = msgspec.json.encode(self.document())
        return self._data

    def document(self) -> dict[str, Any]:
        """Return a JSON document, with base64 and an error for data that a serde cannot decode."""
        store, errors = self._origin.store, [self._error] if self._error else []
        document = {
            "key": _json_value(self.key, store.key, errors),
            "value": _json_value(self.value, store.value, errors),
            "deleted": self.value is None,
            "timestamp": self.timestamp,
            "partition": self.partition,
            "offset": self.offset,
        }
        return {**document, "error": "; ".join(errors)} if errors else document


def _json_value(data: bytes | None, serde: Serde[Any], errors: list[str]) -> Any:
    if data is None:
        return None
    try:
        return to_document(serde.deserialize(data))
    except Exception as error:  # as above
        errors.append(f"{serde.name}: {type(error).__name__}: {error}")
        return as_base64(data)
