"""An application in a process of its own, which says after each commit what memory it takes.

python -m tests.support.memory_app '{"kind": "documents", "settings": {...}, "source": "s",
    "output": "o"}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.streams import KafkaStreams, logs
from headrace.streams.plan.plan import TaskId
from headrace.topology import StreamsBuilder, Topology, serdes


def documents(source: str, output: str) -> Topology:
    """Keep the last document of each key, in the default serde, and show it to a user's function.

    Others may change what they are shown, so the store holds bytes.
    """
    builder = StreamsBuilder()
    kept = builder.stream(source).group_by_key().reduce(lambda _, value: value, store="last")
    kept.to_stream().filter(lambda _, value: value["number"] < 0).to(output)
    return builder.build()


def large(source: str, output: str) -> Topology:
    """Keep the greater one of two large values, as the benchmark's reduce does."""
    builder = StreamsBuilder()
    stream = builder.stream(source, value=serdes.bytes)
    stream.group_by_key().reduce(max, store="newest").to_stream().to(output)
    return builder.build()


TOPOLOGIES = {"documents": documents, "large": large}


class Teller:
    """Says what memory is resident, and what the most was so far."""

    def __init__(self) -> None:
        self._records = 0

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """No memory yet."""

    def on_running(self) -> None:
        print(json.dumps({"running": _status("VmRSS")}), flush=True)

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        self._records += records
        said = {"committed": self._records, "resident": _status("VmRSS"), "most": _status("VmHWM")}
        print(json.dumps(said), flush=True)


def _status(name: str) -> int:
    """A line of what Linux says of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def main() -> None:
    logs.configure(colors=False)
    plan = json.loads(sys.argv[1])
    topology = TOPOLOGIES[plan["kind"]](plan["source"], plan["output"])
    KafkaStreams(topology, plan["settings"], worker_listener=Teller()).run()


if __name__ == "__main__":
    main()
