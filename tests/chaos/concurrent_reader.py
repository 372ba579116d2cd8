"""A reader of committed records that is there while everything goes wrong, and remembers."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping

import confluent_kafka

from tests.chaos.application import OUTPUTS, topic
from tests.chaos.history import Observations, Place, digest


class ConcurrentReader:
    """Reads all outputs from their start, in a thread of its own; 12 bytes a record.

    Args:
        bootstrap: brokers to find the cluster by.
        prefix: in front of the topics' names; the topics must exist.
        from_start: whether to read all that is there, or only what comes.
    """

    def __init__(self, bootstrap: str, prefix: str, *, from_start: bool = True) -> None:
        self._places = {
            (topic(prefix, name), partition): Place(name, partition)
            for name, partitions in OUTPUTS.items()
            for partition in range(partitions)
        }
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._bootstrap = bootstrap
        self._consumer = self._new_consumer()
        self._starts = {(t, p): 0 if from_start else self._end_of(t, p) for t, p in self._places}
        self._seen = {self._places[at]: Observations(start) for at, start in self._starts.items()}
        self._thread = threading.Thread(target=self._run, name="concurrent-reader", daemon=True)

    def _new_consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "reads-without-a-group",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # To begin elsewhere would hide what is to be found.
                "auto.offset.reset": "error",
                "log_level": 2,
            }
        )

    def _end_of(self, topic: str, partition: int) -> int:
        place = confluent_kafka.TopicPartition(topic, partition)
        bounds = self._consumer.get_watermark_offsets(place, timeout=60)
        if bounds is None:
            raise TimeoutError(f"{topic}-{partition}: the brokers did not return its offsets")
        return bounds[1]

    @property
    def count(self) -> int:
        """How many records it was given so far."""
        return sum(len(seen.offsets) for seen in self._seen.values())

    def start(self) -> None:
        """Begin."""
        self._consumer.assign(
            [confluent_kafka.TopicPartition(t, p, start) for (t, p), start in self._starts.items()]
        )
        self._thread.start()

    def stop(self) -> Mapping[Place, Observations]:
        """End, and say what was seen.

        Raises:
            Exception: it could not go on reading.
        """
        self._stopping.set()
        self._thread.join()
        # The threads of librdkafka may wait for each other for ever (its issue 5476).
        closing = threading.Thread(target=self._consumer.close, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if self._failure is not None:
            raise self._failure
        return self._seen

    def _run(self) -> None:
        try:
            last_s = time.monotonic()
            while not self._stopping.is_set():
                messages = self._consumer.consume(5000, 0.2)
                for message in messages:
                    self._see(message)
                if messages:
                    last_s = time.monotonic()
                elif time.monotonic() - last_s > _SILENT_S:
                    self._replace_consumer()
                    last_s = time.monotonic()
        except Exception as error:
            self._failure = error

    def _replace_consumer(self) -> None:
        """Go on with another client; the former is left as it is, because to close it may hang."""
        # To destroy it may hang as well, also at the end of the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._consumer))
        self._consumer = self._new_consumer()
        self._consumer.assign(
            [
                confluent_kafka.TopicPartition(t, p, max([start - 1, *seen.offsets]) + 1)
                for (t, p), start in self._starts.items()
                for seen in [self._seen[self._places[t, p]]]
            ]
        )

    def _see(self, message: confluent_kafka.Message) -> None:
        error = message.error()
        if error is not None:
            # Brokers come and go here; the client goes on by itself.
            if not error.retriable() and error.code() not in _PASSING:
                raise confluent_kafka.KafkaException(error)
            return
        name, partition, offset = message.topic(), message.partition(), message.offset()
        assert name is not None
        assert partition is not None
        assert offset is not None
        known_by = digest(message.key(), message.value(), message.timestamp()[1])
        self._seen[self._places[name, partition]].see(offset, known_by)


_CLOSE_S = 10.0
_SILENT_S = 60.0
"""After so long without a record a client is taken for one whose threads wait for each other."""

_PASSING = {
    confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
    confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError._TIMED_OUT,
    confluent_kafka.KafkaError._RESOLVE,
}
