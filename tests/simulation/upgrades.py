"""Random versions of a topology, and what has to come out while workers of two of them run.

Each record of an input has a number of its own. A version lets the records of its inputs through,
merged or one by one, perhaps joined with tables or through repartition topics, and counts some of
them by key. So a number that comes twice was processed by two owners, and counts that are not 1, 2,
3 … come of two owners of a store.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.simulation import CALM, FaultPlan, Simulation, SimulationResult
from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.deployment_changes import changes
from headrace.streams.plan.plan import plan_application
from headrace.streams.simulation.api import DEFAULTS
from headrace.topology import KStream, StreamsBuilder, Topology, serdes
from tests.simulation.blocks import run_each

INPUTS = ("amounts", "bills", "costs", "debts")
TABLES = ("accounts", "zones")
KEYS = 4
CONFIG = StreamsConfig.parse(DEFAULTS)


@dataclass(frozen=True)
class Version:
    """A version of the topology.

    Args:
        inputs: the topics whose records go through.
        merged: whether they are one stream; else each is a sub-topology of its own.
        tables: which are joined with.
        repartitioned: the steps at which the stream goes through a repartition topic: "through"
            behind the inputs, "counted" in front of the count.
        counts: whether records are counted by key.
    """

    inputs: tuple[str, ...]
    merged: bool = True
    tables: tuple[str, ...] = ()
    repartitioned: frozenset[str] = frozenset()
    counts: bool = True

    def topology(self) -> Topology:
        """Build it."""
        builder = StreamsBuilder()
        tables = {
            name: builder.table(name, key=serdes.string, value=serdes.string)
            for name in self.tables
        }
        streams = [
            builder.stream(name, key=serdes.string, value=serdes.string) for name in self.inputs
        ]
        if self.merged:
            for stream in streams[1:]:
                streams[0] = streams[0].merge(stream)
            streams = streams[:1]
        for number, stream in enumerate(streams):
            self._build_stream(stream, number, tables if number == 0 else {})
        return builder.build()

    def _build_stream(self, stream: KStream[str, str], number: int, tables: dict[str, Any]) -> None:
        if "through" in self.repartitioned:
            stream = stream.repartition(name=f"through-{number}")
        for table in tables.values():
            stream = stream.left_join(table, lambda value, _: value)
        stream.to("out", key=serdes.string, value=serdes.string)
        if self.counts and number == 0:
            if "counted" in self.repartitioned:
                stream = stream.repartition(name="counted")
            counts = stream.group_by_key().count(store="counts").to_stream()
            counts.to("counts", key=serdes.string, value=serdes.long)

    @property
    def counted(self) -> tuple[str, ...]:
        """The inputs whose records it counts."""
        if not self.counts:
            return ()
        return self.inputs if self.merged else self.inputs[:1]


def version_pair(seed: int) -> tuple[Version, Version]:
    """A version, and one after some edits that no start refuses for itself."""
    dice = random.Random(f"versions/{seed}")
    while True:
        before, after = _drawn(dice)
        if before != after and not any(
            change.refused for change in changes(_described(before), _described(after))
        ):
            return before, after


def _described(version: Version) -> Deployment:
    return Deployment.of(plan_application(version.topology(), CONFIG), CONFIG)


def _drawn(dice: random.Random) -> tuple[Version, Version]:
    before = Version(
        tuple(dice.sample(INPUTS, dice.randint(1, 3))),
        merged=dice.random() < 0.7,
        tables=tuple(dice.sample(TABLES, dice.choice((0, 0, 1)))),
        repartitioned=frozenset(step for step in ("through", "counted") if dice.random() < 0.2),
    )
    after = before
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        after = edited(after, dice)
    return before, after


def edited(version: Version, dice: random.Random) -> Version:
    """The same with one thing changed."""
    edit = dice.choice((0, 1, 2, 3, 3, 4))
    if edit == 0 and len(version.inputs) < len(INPUTS):  # add an input, at any place
        more = dice.choice([name for name in INPUTS if name not in version.inputs])
        inputs = list(version.inputs)
        inputs.insert(dice.randint(0, len(inputs)), more)
        return replace(version, inputs=tuple(inputs))
    if edit == 1 and len(version.inputs) > 1:  # drop one
        gone = dice.choice(version.inputs)
        return replace(version, inputs=tuple(n for n in version.inputs if n != gone))
    if edit == 2:  # join a table, or join it no more
        table = dice.choice(TABLES)
        left = tuple(name for name in version.tables if name != table)
        return replace(version, tables=left if table in version.tables else (*left, table))
    if edit == 3:  # insert a repartition topic, which moves the store behind it
        step = dice.choice(("through", "counted"))
        return replace(version, repartitioned=version.repartitioned | {step})
    return replace(version, merged=not version.merged)  # split or merge sub-topologies


def inputs_of(versions: Sequence[Version], seed: int) -> dict[str, list[tuple[str, str]]]:
    """Records for all inputs and tables of some versions."""
    dice = random.Random(f"upgrades/{seed}")
    names = sorted({name for version in versions for name in (*version.inputs, *version.tables)})
    return {
        name: [(f"k{dice.randrange(KEYS)}", f"{name}-{number}") for number in range(60)]
        for name in names
    }


def problems_of(
    before: Version,
    after: Version,
    inputs: dict[str, list[tuple[str, str]]],
    result: SimulationResult,
) -> list[str]:
    """What was lost or doubled."""
    found = [*result.problems, *([] if result.refusals else result._check_states())]
    told = Counter(value for _, value in result.outputs("out"))
    for topic in sorted({*before.inputs, *after.inputs}):
        for _, value in inputs[topic]:
            if told[value] > 1:
                found.append(f"{value} is there {told[value]} times")
            # What the last version does not read is read only while the first one runs.
            elif told[value] == 0 and topic in after.inputs and not result.refusals:
                found.append(f"{value} is lost")
    return found[:10] + _problems_of_counts(before, after, inputs, result)


def _problems_of_counts(
    before: Version,
    after: Version,
    inputs: dict[str, list[tuple[str, str]]],
    result: SimulationResult,
) -> list[str]:
    if not after.counts:
        return []
    found = []
    told: dict[str, list[int]] = {}
    for key, count in result.outputs("counts"):
        told.setdefault(key, []).append(count)
    new = {*after.inputs} - {*before.inputs}
    # What the version before has read without counting it, it may have read or not.
    certain = {*after.counted} & ({*before.counted} | new)
    possible = {*after.counted, *before.counted}
    least, most = (
        Counter(key for topic in topics for key, _ in inputs[topic])
        for topics in (certain, possible)
    )
    for key in sorted(most):
        mine = told.get(key, [])
        last = mine[-1] if mine else 0
        if mine != list(range(1, last + 1)):
            found.append(f"counts of {key} are {mine}")
        elif last > most[key] or (last < least[key] and not result.refusals):
            found.append(f"{key} is counted {last} times, of {least[key]} to {most[key]}")
    return found


def run_seed(
    seed: int, state_dir: Path | None = None
) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Run one seed and say what was wrong, and how many starts were refused."""
    before, after = version_pair(seed)
    inputs = inputs_of((before, after), seed)
    simulation = Simulation(
        before.topology(),
        next_version=after.topology(),
        inputs=inputs,
        workers=2 + seed % 2,
        settings={"on.stop": "stay"} if seed % 3 == 0 else {},
        faults=CALM if seed % 4 == 0 else FaultPlan(),
    )
    result = simulation.run(seed, state_dir=state_dir)
    counts = Counter(("refused", text.split(":")[0]) for text in result.refusals)
    counts["refused", "version"] = result.conflicts
    counts["runs", "refused" if result.conflicts else "exact"] = 1
    return problems_of(before, after, inputs, result), result.faults + counts


def run_block(first: int, last: int) -> tuple[dict[int, list[str]], Counter[tuple[str, str]]]:
    """Run some seeds; returns what was wrong by seed, and all faults."""
    return run_each(run_seed, first, last)
