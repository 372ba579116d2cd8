"""Whatever the topology: calls that are made together come to what they come to one by one.

The same random program is written twice, once with `map_values` and once with `map_async` or
`map_batches` in its place, and gets the same records in the same batches. All topics must have the
same records in the same order.
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KeySerdeWarning, StreamsBuilder, TopologyError, serdes
from tests.reference.checking import Way, settings_of
from tests.reference.functions import kept, mapped
from tests.reference.programs import GLOBAL, OPS, Program, Step, Written, random_program
from tests.reference.recorder import Recorder, committed
from tests.support.examples import examples

PROGRAMS = 200
PARTS = 4
DRAWN = (*OPS, *("map_values",) * 12, *("meet",) * 6, *("to_shared",) * 4)
HOUR = timedelta(hours=1)


class Mapped(Written):
    """Maps values, also where what comes of it meets what went another way."""

    def map_values(self, stream: Any, step: Step, place: int) -> None:
        self._add(self._called(stream, step, f"n{place}"))

    def meet(self, stream: Any, step: Step, place: int) -> None:
        """A merge of a stream's values that were called for, and of the same stream beside it.

        Both ways have steps between, or none; the other one may be called for, too.
        """
        one = self._called(self._way(stream, step.n, f"a{place}"), step, f"n{place}")
        one = self._way(one, step.other, f"b{place}")
        other = self._way(stream, step.n // 3, f"c{place}")
        if step.other % 3 == 0:
            other = self._called(other, step, f"o{place}")
        first, second = (one, other) if step.index % 2 else (other, one)
        self._add(first.merge(second, name=f"m{place}"))

    def to_shared(self, stream: Any, step: Step, place: int) -> None:
        """A topic that a stream is written to, and what is called for its values."""
        ways = [self._called(stream, step, f"n{place}"), stream]
        for number, one in enumerate(ways if step.index % 2 else reversed(ways)):
            one.to(
                f"shared-{place}", key=serdes.string, value=serdes.long, name=f"w{place}-{number}"
            )

    def _way(self, stream: Any, number: int, name: str) -> Any:
        if number % 3 == 0:
            return stream
        if number % 3 == 1:
            return stream.filter(lambda k, v: kept(k, v, number), name=name)
        return stream.flat_map_values(lambda v: [v, mapped(v, number)], name=name)

    def _called(self, stream: Any, step: Step, name: str) -> Any:
        return stream.map_values(lambda v: mapped(v, step.n), name=name)


class Called(Mapped):
    """Calls where a program maps values, in one of several ways."""

    def _called(self, stream: Any, step: Step, name: str) -> Any:
        async def awaited(value: int | None) -> int | None:
            await asyncio.sleep((value or 0) % 3)
            return mapped(value, step.n)

        def plainly(value: int | None) -> int | None:
            return mapped(value, step.n)

        def many(values: list[int | None]) -> list[int | None]:
            return [mapped(value, step.n) for value in values]

        size = 1 + step.other % 5
        options = {"concurrency": size, "timeout": HOUR, "name": name}
        if step.index % 3 == 0:
            return stream.map_async(awaited, **options)
        if step.index % 3 == 1:
            return stream.map_async(plainly, **options)
        return stream.map_batches(many, max_records=size, name=name)


@dataclass
class Run:
    """What a program has done.

    Args:
        read: what each task has read, in its order.
        written: what each topic has.
    """

    read: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    written: dict[str, list[Any]] = field(default_factory=dict)


@pytest.mark.parametrize("part", range(PARTS))
def test_calls_equal_maps(part: int) -> None:
    seeds = range(part, examples(PROGRAMS), PARTS)
    outcomes = _outcomes(seeds)
    assert outcomes["compared"] > len(seeds) * 0.6, outcomes


@pytest.mark.long
@pytest.mark.parametrize("first", range(PROGRAMS, 1_000, 100))
def test_more_calls_equal_maps(first: int) -> None:
    outcomes = _outcomes(range(first, first + 100))
    assert outcomes["compared"] > 60, outcomes


def _outcomes(seeds: range) -> Counter[str]:
    """What came of how many; those that are compared and differ fail where they do."""
    return Counter(map(_outcome, seeds))


def _outcome(seed: int) -> str:
    program = random_program(seed, interrupted=False, cached=seed % 2 == 1, ops=DRAWN)
    plain, called = (_ran(program, kind, seed) for kind in (Mapped, Called))
    if plain is None or called is None:
        assert plain is called, f"seed {seed}: one of both was refused, and the other was not"
        return "refused"
    if plain.read != called.read:
        return "read otherwise"  # in which order a task takes what others have made is open
    for topic in plain.written:
        assert plain.written[topic] == called.written[topic], f"seed {seed} differs in {topic}"
    return "compared"


def _ran(program: Program, kind: type[Mapped], seed: int) -> Run | None:
    """Run a program; None where it is refused."""
    builder = StreamsBuilder()
    way = Way(caching=program.cached)
    recorder = Recorder()
    try:
        written = kind(builder, program.values, program.keys, cached=program.cached)
        for place, step in enumerate(program.steps):
            written.step(step, place)
        written.end()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KeySerdeWarning)
            settings = settings_of(program, way)
            topology = builder.build()
            driver = TopologyTestDriver(topology, settings, partitions=1, commit="manual")
    except TopologyError:
        return None
    with driver, recorder.following():
        _send(driver, program, random.Random(seed))
        run = Run()
        for task, message in recorder.read:
            at = (message.topic(), message.partition(), message.offset())
            run.read.setdefault(task, []).append(at)
        for topic in driver.cluster.topics:
            (place,) = driver.cluster.partitions(topic)
            run.written[topic] = [
                (m.key(), m.value(), m.timestamp(), m.headers())
                for m in committed(driver.cluster, place)
            ]
        return run


def _send(driver: TopologyTestDriver, program: Program, rng: random.Random) -> None:
    """Write the records in batches, and commit now and then."""
    for event in program.events:
        if event.topic == GLOBAL and GLOBAL not in driver.cluster.topics:
            continue
        topic = driver.input(event.topic)
        topic.append(*topic._encoded(event.key, event.value), timestamp=event.timestamp)
        if event.topic == GLOBAL or rng.random() < 0.1:
            driver.run()
        if rng.random() < 0.1:
            driver.commit()
    driver.run()
    driver.commit()
