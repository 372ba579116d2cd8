"""Process that reports the state of a worker with many tasks, without Kafka.

``python -m benchmarks.simulated_worker INDEX TASKS FILE_DESCRIPTOR`` sends generated snapshots to a
supervisor every half second, until the supervisor closes the socket. `benchmarks.scrape` starts it.
"""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import replace

from headrace.streams.supervisor.channel import Channel
from headrace.streams.supervisor.worker_reports import Loaded, Status
from tests.support.snapshots import worker_snapshot

INTERVAL_S = 0.5


def main() -> None:
    """Send reports until the socket is closed."""
    index, tasks, file_descriptor = map(int, sys.argv[1:])
    channel = Channel(socket.socket(fileno=file_descriptor))
    base = worker_snapshot(tasks=tasks, first=index * tasks, nodes=2)
    channel.send(Loaded("bench", 1_000))
    for count in range(1 << 30):
        now_s = time.monotonic()
        snapshot = replace(base, at_s=now_s, processed=base.processed + count)
        status = Status("running", tasks, 0, 0, snapshot.processed, 0, None, now_s)
        channel.send(snapshot)
        if not channel.send_and_flush(status, within_s=60):
            return
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main()
