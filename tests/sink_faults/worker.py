"""A worker: each record is a row, and the last value of each key is one.

python -m tests.sink_faults.worker '{"settings": {...}, "input": "in", "target": "sqlite", ...}'

It kills itself at a step of its next commit where a file beside its state names one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import KafkaStreams, StreamsBuilder, Topology, serdes
from headrace.streams import logs
from tests.sink_faults.targets import targets


@dataclass(frozen=True)
class Plan:
    """What to run.

    Args:
        settings: of the application.
        input: the topic.
        target: the kind of the sinks.
        address: what they are made of.
        die: the file that names a step.
    """

    settings: dict[str, Any]
    input: str
    target: str
    address: str
    die: str

    def topology(self) -> Topology:
        """The application."""
        worker = self.settings["worker.id"]
        target = targets()[self.target]
        appended, upserted = target.sinks(self.address, worker)
        builder = StreamsBuilder()
        stream = builder.stream(self.input, key=serdes.string, value=serdes.string)
        if upserted is None:
            twice = stream.flat_map_values(lambda value: [(0, value), (1, value)])
            twice.to_sink(appended, name="append", direct=True)
            return builder.build()
        stream.filter(lambda _, value: value is not None).to_sink(appended, name="append")
        stream.to_sink(upserted, name="upsert")
        return builder.build()

    def probe(self, step: str) -> None:
        """Die where that is asked for."""
        path = Path(self.die)
        if path.exists() and path.read_text() == step:
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    logs.configure(colors=False)
    plan = Plan(**json.loads(sys.argv[1]))
    KafkaStreams(plan.topology(), plan.settings, probe=plan.probe).run()


if __name__ == "__main__":
    main()
