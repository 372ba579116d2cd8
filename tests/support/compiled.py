"""A compiled sub-topology on its own: records in, what it sends out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.state.buffer import Buffer, Coding
from headrace.state.codec import timestamped_rows
from headrace.state.memory import MemoryTaskState
from headrace.topology import Topology, serdes
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.compile.compiler import Program, compile_sub_topology
from headrace.topology.context.environment import Failed, TaskEnvironment, raise_again
from tests.support.interpreter import Sent

OPTIONS = CompileOptions("app", serdes.json, serdes.json, caching=False, null_key_policy="drop")


@dataclass
class Message:
    """A record as it comes from Kafka, in JSON; None is a null."""

    pair: tuple[Any, Any]
    time: int = 0

    def key(self) -> bytes | None:
        return encoded(self.pair[0])

    def value(self) -> bytes | None:
        return encoded(self.pair[1])

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time

    def headers(self) -> None:
        return None


def encoded(part: Any) -> bytes | None:
    return None if part is None else serdes.json.serialize(part)


def decoded(part: bytes | None) -> Any:
    return None if part is None else serdes.json.deserialize(part)


class Runs:
    """One task of a compiled sub-topology, everything in JSON, without caches."""

    def __init__(
        self,
        topology: Topology,
        sub: int = 0,
        *,
        program: Program | None = None,
        failed: Failed = raise_again,
    ) -> None:
        chosen = topology.sub_topologies[sub]
        self.program: Program = program or compile_sub_topology(chosen, OPTIONS)
        self.sent: list[Sent] = []
        self._state = MemoryTaskState([store.spec for store in chosen.stores])
        self.buffers = {
            store.name: Buffer(
                store.name,
                self._state.store(store.name),
                Coding(
                    encode=serdes.json.serialize,
                    decode=serdes.json.deserialize,
                    stored_form=self.program.stored_forms[store.name],
                ),
            )
            for store in chosen.stores
        }
        environment = TaskEnvironment(self._send, self.buffers, lambda *_: None, failed=failed)
        self.bound = self.program.bind(environment)

    def _send(self, topic: str, value: Any, key: Any, _: int, timestamp: int, *__: Any) -> None:
        self.sent.append((topic, decoded(key), decoded(value), timestamp))

    def process(self, *messages: Message, topic: str = "in") -> list[Sent]:
        """Topic, key, value and timestamp of what is sent for these messages."""
        self.sent = []
        self.bound.process[topic](messages)
        return self.sent

    def commit(self, *, evict: bool) -> None:
        """Make all rows committed; with `evict`, have them read from their bytes again."""
        for name, buffer in self.buffers.items():
            self._state.write({name: timestamped_rows(buffer.delta())}, {})
            buffer.committed()
            if evict:
                buffer.clean.clear()

    def pairs(self, *pairs: tuple[Any, Any], topic: str = "in") -> list[tuple[str, Any, Any]]:
        """Topic, key and value of what is sent for these keys and values."""
        return [sent[:3] for sent in self.process(*map(Message, pairs), topic=topic)]
