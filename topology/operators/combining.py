"""What is folded of the records of each key before they would go to a repartition topic.

Hot path: the generated code folds each record into it, as into a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.topology.serdes.partials import marked, write_count

Send = Callable[..., None]


class Partials(dict[bytes, tuple[int, int, Any]]):
    """By encoded key: the partial result, its latest timestamp, and the last headers.

    Args:
        send: takes topic, value, key, partition, timestamp and headers.
        topic: the repartition topic, by its full name.
        call: what the partial results are of.
        partition_of: tells the partition of a key; None leaves it to the producer.
    """

    __slots__ = ("_call", "_partition_of", "_send", "_topic")

    def __init__(
        self,
        send: Send,
        topic: str,
        call: str,
        partition_of: Callable[[bytes], int] | None = None,
    ) -> None:
        super().__init__()
        self._send = send
        self._topic = topic
        self._call = call
        self._partition_of = partition_of

    def send(self) -> None:
        """Write them all, and hold none any more."""
        held = list(self.items())
        self.clear()
        send, topic, partition = self._send, self._topic, -1
        for key, (count, timestamp, headers) in held:
            if self._partition_of is not None:
                partition = self._partition_of(key)
            call = marked(headers, self._call)
            send(topic, write_count(count), key, partition, timestamp, call)


def send_partials(pending: Iterable[object]) -> None:
    """Send the partial results among what a task holds back."""
    for held in pending:
        if isinstance(held, Partials) and held:
            held.send()
