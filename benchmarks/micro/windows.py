"""Windowed aggregations, compared with aggregations without windows, on records in memory.

``python -m benchmarks.micro.windows`` prints nanoseconds per input record, without Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from benchmarks.micro.compiled import OPTIONS, RECORDS, SOURCE, messages
from benchmarks.micro.stores import EmptyStore
from benchmarks.micro.timing import TimedPair, print_times
from headrace import KGroupedStream, SlidingWindows, StreamsBuilder, TimeWindows, serdes
from headrace.state.buffer import Buffer, Coding
from headrace.state.timed import TimedBuffer
from headrace.topology.compile.compiler import compile_sub_topology
from headrace.topology.context.environment import TaskEnvironment

ACCOUNTS = 200
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
"""Grace period of records that repeat with the same timestamps; none is late."""
TUMBLING = TimeWindows(size=SECOND, grace=DAY)
HOPPING = TimeWindows(size=SECOND, advance=SECOND / 5, grace=DAY)
SLIDING = SlidingWindows(time_difference=timedelta(milliseconds=20), grace=DAY)
CACHED = replace(OPTIONS, caching=True)

Aggregate = Callable[[KGroupedStream[str, Any]], Any]


def bound(aggregate: Aggregate) -> Callable[[], object]:
    """Return a function that aggregates one batch of bookings, and discards the results."""
    builder = StreamsBuilder()
    group = builder.stream(SOURCE, key=serdes.string).group_by_key()
    aggregate(group).to_stream().to("out")
    (sub,) = builder.build().sub_topologies
    program = compile_sub_topology(sub, CACHED)
    buffers = {}
    for store in sub.stores:
        make: Any = Buffer
        if store.spec.rows.time_of is not None:
            make = partial(TimedBuffer, layout=store.spec.rows)
        serde: Any = store.value or OPTIONS.default_value
        coding = Coding(
            encode=serde.serialize,
            decode=serde.deserialize,
            stored_form=program.stored_forms[store.name],
        )
        buffers[store.name] = make(store.name, EmptyStore(), coding)
    send: Any = "".format
    environment = TaskEnvironment(send, buffers, lambda *_: None, partitions_of=lambda _: 1)
    task = program.bind(environment)
    (process,) = task.process.values()
    batch = messages([(b"account-%d" % (i % ACCOUNTS), b'{"amount":3}') for i in range(RECORDS)])

    def run() -> None:
        process(batch)
        task.flush()
        for buffer in buffers.values():
            buffer.discard()

    return run


def add(_key: str, booking: Any, total: Any) -> Any:
    return total + booking["amount"]


AGGREGATES: dict[str, Aggregate] = {
    "count": lambda group: group.count(),
    "count, tumbling": lambda group: group.windowed_by(TUMBLING).count(),
    "count, tumbling, on close": lambda group: group.windowed_by(
        TUMBLING, emit="on_window_close"
    ).count(),
    "count, hopping, 5 windows each": lambda group: group.windowed_by(HOPPING).count(),
    "sum": lambda group: group.aggregate(int, add, value=serdes.long),
    "sum, tumbling": lambda group: group.windowed_by(TUMBLING).aggregate(
        int, add, value=serdes.long
    ),
    "count, sliding": lambda group: group.windowed_by(SLIDING).count(),
}


def main() -> None:
    """Time aggregations."""
    print_times(
        "windows, ns per input record",
        [TimedPair(name, RECORDS, bound(aggregate)) for name, aggregate in AGGREGATES.items()],
    )


if __name__ == "__main__":
    main()
