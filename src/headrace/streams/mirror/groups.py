"""Where groups of the source stand, looked at beside the mirror: one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.state.events.log import get_logger
from headrace.streams.errors import StreamsError
from headrace.streams.kafka.group_offsets import OpenGroup
from headrace.streams.seams.clients import TopicPartition

EVERY_S = 2.0


class GroupWatch:
    """See the module.

    Args:
        config: librdkafka's settings, without a group.
        groups: their names.
    """

    def __init__(self, config: Mapping[str, Any], groups: Iterable[str]) -> None:
        self._config = config
        self._groups = tuple(groups)
        self._places: tuple[TopicPartition, ...] = ()
        self._found: dict[tuple[str, TopicPartition], int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-groups", daemon=True)

    def watch(self, places: Iterable[TopicPartition]) -> None:
        """Look at the groups' offsets at these places from now on."""
        self._places = tuple(places)
        if self._groups and not self._thread.is_alive():
            self._thread.start()

    def found(self) -> dict[tuple[str, TopicPartition], int]:
        """What was seen last."""
        with self._lock:
            return dict(self._found)

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(2 * EVERY_S)

    def _run(self) -> None:
        readers = {name: OpenGroup(self._config, name) for name in self._groups}
        said: dict[str, str] = {}
        while not self._ended.is_set():
            for name, reader in readers.items():
                try:
                    offsets = reader.committed(self._places)
                except StreamsError as error:
                    if said.get(name) != str(error):
                        said[name] = str(error)
                        get_logger().warning("group_not_read", group=name, reason=said[name])
                    continue
                said.pop(name, None)
                with self._lock:
                    self._found |= {(name, p): found.offset for p, found in offsets.items()}
            self._ended.wait(EVERY_S)
        for reader in readers.values():
            reader.close()
