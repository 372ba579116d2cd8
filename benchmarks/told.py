"""A process that tells what a worker of many tasks tells, each half second, until it is ended.

python -m benchmarks.told INDEX TASKS FILE
"""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import replace

from headrace.streams.supervisor.channel import Channel
from headrace.streams.supervisor.worker_reports import Loaded, Status
from tests.support.snapshots import worker_snapshot

EVERY_S = 0.5


def main() -> None:
    """Tell it as long as somebody listens."""
    index, tasks, file = map(int, sys.argv[1:])
    channel = Channel(socket.socket(fileno=file))
    facts = worker_snapshot(tasks=tasks, first=index * tasks, nodes=2)
    channel.send(Loaded("bench", 1_000))
    for count in range(1 << 30):
        now_s = time.monotonic()
        told = replace(facts, at_s=now_s, processed=facts.processed + count)
        status = Status("running", tasks, 0, 0, told.processed, 0, None, now_s)
        channel.send(told)
        if not channel.send_and_flush(status, within_s=60):
            return
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
