"""A change of a row, as JSON has it: made once, however many follow it."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.streams.feeds.origin import Origin
from headrace.streams.lines.documents import as_base64, to_document
from headrace.streams.seams.clients import ReceivedMessage
from headrace.topology.serdes import Serde


class Change:
    """A record of a changelog.

    Args:
        origin: how its bytes are read.
        record: what was read.
    """

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
        except Exception as error:  # a serde of the user's may raise anything
            self.key, self.value = record.key(), record.value()
            self._error = f"{type(error).__name__}: {error}"
        else:
            self.key, self.value, self.timestamp = row or (None, None, self.timestamp)

    @property
    def bare_key(self) -> bytes:
        """Whose row it is: the key without its window or session."""
        return self._origin.bare_key(self.key or b"")

    @property
    def data(self) -> bytes:
        """The JSON of it."""
        if self._data is None:
            self._data = msgspec.json.encode(self.document())
        return self._data

    def document(self) -> dict[str, Any]:
        """What is told of it; what a serde refuses is told as it is, with the reason."""
        store, errors = self._origin.store, [self._error] if self._error else []
        found = {
            "key": _shown(self.key, store.key, errors),
            "value": _shown(self.value, store.value, errors),
            "deleted": self.value is None,
            "timestamp": self.timestamp,
            "partition": self.partition,
            "offset": self.offset,
        }
        return {**found, "error": "; ".join(errors)} if errors else found


def _shown(data: bytes | None, serde: Serde[Any], errors: list[str]) -> Any:
    if data is None:
        return None
    try:
        return to_document(serde.deserialize(data))
    except Exception as error:  # as above
        errors.append(f"{serde.name}: {type(error).__name__}: {error}")
        return as_base64(data)
