"""A counting application in a process of its own, which can kill itself at a step of the commit.

python -m tests.support.count_app '{"settings": {...}, "input": "in", "output": "out", ...}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.streams import KafkaStreams, logs
from headrace.topology import StreamsBuilder, Topology, serdes


@dataclass(frozen=True)
class Plan:
    """What to run, and where to die.

    Args:
        settings: of the application.
        input: topic of keyed strings, or of sentences with `repartition`.
        output: topic of counts.
        echo: write what is read, and count nothing.
        repartition: count words behind a repartition topic instead of counting keys.
        die_at: the probe to die at, or None.
        die_on: at which call of it.
        after: count calls only once this probe was seen.
        stop_at: the probe to stand still at (SIGSTOP), or None.
        stop_on: at which call of it.
        hang_at: the probe to sleep at for ever; the clients' own threads go on.
        hang_until: a file that ends the sleep, at the first call of the probe, once it is there.
    """

    settings: dict[str, Any]
    input: str
    output: str
    echo: bool = False
    repartition: bool = False
    die_at: str | None = None
    die_on: int = 1
    after: str | None = None
    stop_at: str | None = None
    stop_on: int = 1
    hang_at: str | None = None
    hang_until: str | None = None
    seen: dict[str, int] = field(default_factory=dict)

    def topology(self) -> Topology:
        builder = StreamsBuilder()
        if self.echo:
            builder.stream(self.input, key=serdes.bytes, value=serdes.bytes).to(self.output)
            return builder.build()
        stream = builder.stream(self.input, key=serdes.string, value=serdes.string)
        if self.repartition:
            words = stream.flat_map_values(str.split)
            grouped = words.group_by(
                lambda _, word: word, key=serdes.string, value=serdes.string, name="by-word"
            )
        else:
            grouped = stream.group_by_key()
        grouped.count(store="counts").to_stream().to(self.output)
        return builder.build()

    def probe(self, step: str) -> None:
        if self.after is not None and step != self.after and self.after not in self.seen:
            return
        self.seen[step] = self.seen.get(step, 0) + 1
        if step == self.die_at and self.seen[step] == self.die_on:
            # What is still in the client's queue reaches the broker first: the worst case.
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.hang_at and (self.hang_until is None or self.seen[step] == 1):
            print("hangs", flush=True)
            while self.hang_until is None or not Path(self.hang_until).exists():
                time.sleep(0.02)
        if step == self.stop_at and self.seen[step] == self.stop_on:
            os.kill(os.getpid(), signal.SIGSTOP)


class Reporter:
    """Writes one line for each restored store, so that a test can count the records."""

    def on_restore_start(self, place: Any, store: str, begin: int, end: int) -> None:
        print(json.dumps({"restoring": str(place), "begin": begin, "end": end}), flush=True)

    def on_batch_restored(self, place: Any, store: str, offset: int, count: int) -> None:
        pass

    def on_restore_end(self, place: Any, store: str, total: int) -> None:
        print(json.dumps({"restored": str(place), "records": total}), flush=True)


def main() -> None:
    logs.configure(colors=False)
    plan = Plan(**json.loads(sys.argv[1]))
    KafkaStreams(
        plan.topology(), plan.settings, probe=plan.probe, restore_listener=Reporter()
    ).run()


if __name__ == "__main__":
    main()
