"""Generated code of three jobs on records in memory, without Kafka.

``python -m benchmarks.micro.compiled`` prints nanoseconds per input record, compared with the loop
of a hand-written program; both discard their output. ``--code`` also prints the generated code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import click
import orjson
from confluent_kafka import Message

from benchmarks.jobs.job import Dataset
from benchmarks.jobs.orders import invoices, orders
from benchmarks.jobs.shape import Shape
from benchmarks.jobs.sums import bookings, running_sum
from benchmarks.jobs.words import sentences, word_count
from benchmarks.micro.stores import EmptyStore
from benchmarks.micro.timing import TimedPair, print_times
from headrace import serdes
from headrace.state.buffer import Buffer, Coding
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.compile.compiler import Program, compile_sub_topology
from headrace.topology.context.environment import TaskEnvironment
from headrace.topology.topology import Topology

RECORDS = 5000
ACCOUNTS, USERS, WORDS = 100_000, 50_000, 10_000
SOURCE, OUTPUT, REPARTITION = "source", "output", "by-word-repartition"
OPTIONS = CompileOptions("bench", serdes.json, serdes.json, caching=False)

Send = Callable[..., object]
Batch = list[Any]


def messages(records: Sequence[tuple[bytes | None, bytes]], topic: str = SOURCE) -> Batch:
    """Return records as the client returns them."""
    return [
        Message(
            topic=topic,
            partition=0,
            offset=offset,
            key=key,
            value=value,
            timestamp=(1, 1000 + offset),
        )
        for offset, (key, value) in enumerate(records)
    ]


def input_messages(dataset: Dataset) -> Batch:
    """Return the records of a job with one input topic."""
    (rows,) = dataset.inputs.values()
    return messages([(key, value) for key, value, _ in rows])


def programs(topology: Topology) -> list[Program]:
    """Compile the sub-topologies."""
    return [compile_sub_topology(sub, OPTIONS) for sub in topology.sub_topologies]


def generated(program: Program, batch: Batch, send: Send) -> Callable[[], object]:
    """Bind a program to buffers over empty stores; return a function that processes the batch."""
    buffers = {}
    for store in program.sub_topology.stores:
        serde: Any = store.value or OPTIONS.default_value
        coding = Coding(
            encode=serde.serialize,
            decode=serde.deserialize,
            stored_form=program.stored_forms[store.name],
        )
        buffers[store.name] = Buffer(store.name, EmptyStore(), coding)
    untyped_send: Any = send
    environment = TaskEnvironment(untyped_send, buffers, lambda *_: None)
    (process,) = program.bind(environment).process.values()
    return lambda: process(batch)


def plain_split(batch: Batch, produce: Send) -> Callable[[], object]:
    def run() -> None:
        for m in batch:
            for word in m.value().split():
                produce(REPARTITION, word, word)

    return run


def plain_count(batch: Batch, produce: Send) -> Callable[[], object]:
    counts: dict[bytes, int] = {}
    dirty: set[bytes] = set()
    get, touch, pack = counts.get, dirty.add, struct.Struct(">q").pack

    def run() -> None:
        for m in batch:
            word = m.key()
            count = get(word, 0) + 1
            counts[word] = count
            touch(word)
            produce(OUTPUT, pack(count), word)

    return run


def plain_sum(batch: Batch, produce: Send) -> Callable[[], object]:
    sums: dict[bytes, int] = {}
    dirty: dict[bytes, bytes] = {}
    get, loads, dumps = sums.get, orjson.loads, orjson.dumps

    def run() -> None:
        for m in batch:
            key = m.key()
            total = get(key, 0) + loads(m.value())["amount"]
            sums[key] = total
            dirty[key] = data = dumps(total)
            produce(OUTPUT, data, key)

    return run


def plain_invoices(batch: Batch, produce: Send) -> Callable[[], object]:
    loads, dumps = orjson.loads, orjson.dumps

    def run() -> None:
        for m in batch:
            order = loads(m.value())
            if order["paid"]:
                invoice = {"total": order["price"] * order["quantity"], "user": order["user"]}
                produce(OUTPUT, dumps(invoice), m.key())

    return run


def comparisons() -> list[TimedPair]:
    """Return the three jobs; the word count as its two sub-topologies."""
    # Accepts the arguments of a producer, and discards them, for one call into C.
    discard: Send = "".format
    split, count = programs(word_count(SOURCE, OUTPUT))
    (total,) = programs(running_sum(SOURCE, OUTPUT))
    (invoice,) = programs(invoices(SOURCE, OUTPUT))
    lines = input_messages(sentences(Shape("words", RECORDS // 8, WORDS)))
    words = messages([(w, w) for line in lines for w in line.value().split()], REPARTITION)
    booked, bought = (
        input_messages(bookings(Shape("sum", RECORDS, ACCOUNTS))),
        input_messages(orders(Shape("orders", RECORDS, USERS))),
    )
    parts = (
        ("word count: sentences to words", split, lines, plain_split),
        ("word count: words to counts", count, words, plain_count),
        ("running sum per key", total, booked, plain_sum),
        ("parse, filter, map", invoice, bought, plain_invoices),
    )
    return [
        TimedPair(name, len(batch), generated(program, batch, discard), plain(batch, discard))
        for name, program, batch, plain in parts
    ]


@click.command()
@click.option("--code", is_flag=True, help="Also print the generated code.")
def main(code: bool) -> None:
    """Time the generated code of the three jobs."""
    if code:
        for topology in (word_count, running_sum, invoices):
            for program in programs(topology(SOURCE, OUTPUT)):
                click.echo(program.source_code)
    print_times("generated code, ns per input record", comparisons())


if __name__ == "__main__":
    main()
