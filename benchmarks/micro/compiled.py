"""The generated code of the three jobs on records in memory, without Kafka.

Beside each stands the loop that a hand-written program would run for the same records; both write
to a list instead of a producer. ``python -m benchmarks.micro.compiled --code`` prints what is
generated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import click
import orjson
from confluent_kafka import Message

from benchmarks.jobs.job import Made
from benchmarks.jobs.orders import invoices, orders
from benchmarks.jobs.shape import Shape
from benchmarks.jobs.sums import bookings, running_sum
from benchmarks.jobs.words import sentences, word_count
from benchmarks.micro.stores import EmptyStore
from benchmarks.micro.timing import Comparison, compare
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
    """Records as the client hands them over."""
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


def of(made: Made) -> Batch:
    """The one input of a job."""
    (rows,) = made.inputs.values()
    return messages([(key, value) for key, value, _ in rows])


def programs(topology: Topology) -> list[Program]:
    """Compile the sub-topologies."""
    return [compile_sub_topology(sub, OPTIONS) for sub in topology.sub_topologies]


def generated(program: Program, batch: Batch, send: Send) -> Callable[[], object]:
    """Bind a program to buffers over empty stores; returns what processes the batch once."""
    buffers = {}
    for store in program.sub_topology.stores:
        serde: Any = store.value or OPTIONS.default_value
        coding = Coding(
            encode=serde.serialize,
            decode=serde.deserialize,
            stored_form=program.stored_forms[store.name],
        )
        buffers[store.name] = Buffer(store.name, EmptyStore(), coding)
    take: Any = send
    environment = TaskEnvironment(take, buffers, lambda *_: None)
    (process,) = program.bind(environment).process.values()
    return lambda: process(batch)


def split_by_hand(batch: Batch, produce: Send) -> Callable[[], object]:
    def run() -> None:
        for m in batch:
            for word in m.value().split():
                produce(REPARTITION, word, word)

    return run


def count_by_hand(batch: Batch, produce: Send) -> Callable[[], object]:
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


def sum_by_hand(batch: Batch, produce: Send) -> Callable[[], object]:
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


def invoices_by_hand(batch: Batch, produce: Send) -> Callable[[], object]:
    loads, dumps = orjson.loads, orjson.dumps

    def run() -> None:
        for m in batch:
            order = loads(m.value())
            if order["paid"]:
                invoice = {"total": order["price"] * order["quantity"], "user": order["user"]}
                produce(OUTPUT, dumps(invoice), m.key())

    return run


def comparisons() -> list[Comparison]:
    """The three jobs; the word count in its two halves."""
    # Takes whatever a producer takes, and keeps nothing, at the price of one call into C.
    nothing: Send = "".format
    split, count = programs(word_count(SOURCE, OUTPUT))
    (total,) = programs(running_sum(SOURCE, OUTPUT))
    (invoice,) = programs(invoices(SOURCE, OUTPUT))
    lines = of(sentences(Shape("words", RECORDS // 8, WORDS)))
    words = messages([(w, w) for line in lines for w in line.value().split()], REPARTITION)
    booked, bought = (
        of(bookings(Shape("sum", RECORDS, ACCOUNTS))),
        of(orders(Shape("orders", RECORDS, USERS))),
    )
    parts = (
        ("word count: sentences to words", split, lines, split_by_hand),
        ("word count: words to counts", count, words, count_by_hand),
        ("running sum per key", total, booked, sum_by_hand),
        ("parse, filter, map", invoice, bought, invoices_by_hand),
    )
    return [
        Comparison(what, len(batch), generated(program, batch, nothing), plain(batch, nothing))
        for what, program, batch, plain in parts
    ]


@click.command()
@click.option("--code", is_flag=True, help="Print the generated code as well.")
def main(code: bool) -> None:
    """Time the generated code of the three jobs."""
    if code:
        for make in (word_count, running_sum, invoices):
            for program in programs(make(SOURCE, OUTPUT)):
                click.echo(program.source_code)
    compare("generated code, ns per input record", comparisons())


if __name__ == "__main__":
    main()
