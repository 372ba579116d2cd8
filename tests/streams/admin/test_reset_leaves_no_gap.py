"""A reset empties all stores: what is run again then lacks no row, or the reset is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.admin.reset import InputUse, Reset, ResetPlan, input_uses, lines
from headrace.streams.errors import ResetRefusedError
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    Member,
    Offsets,
    OffsetTarget,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.plan.progress import OffsetMetadata, left_out_values
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KStream, Stores, StreamsBuilder, Topology, serdes
from headrace.topology.graph.materialized import Materialized

SETTINGS = {
    "application.id": "a",
    "bootstrap.servers": "localhost:1",
    "default.key.serde": serdes.string,
    "default.value.serde": serdes.string,
}
INPUTS = ("in-0", "in-1", "in-2", "in-3")
Sent = Sequence[tuple[str, str, str]]


@dataclass
class _Cluster:
    """Topics of one partition, all read to their ends."""

    ends: Mapping[str, int]
    metadata: str = ""
    offsets: dict[TopicPartition, CommittedOffset] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = {
            TopicPartition(topic, 0): CommittedOffset(end, self.metadata)
            for topic, end in self.ends.items()
        }

    def members(self, group: str) -> tuple[Member, ...]:
        del group
        return ()

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        del decided
        return dict(self.offsets) if group == "a" else {}

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        if group == "a":
            self.offsets |= offsets

    def describe(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        return {
            name: TopicDescription(name, 1, f"id-{name}") for name in names if name in self.ends
        }

    def names(self) -> frozenset[str]:
        return frozenset(self.ends)

    def delete_topics(self, names: Iterable[str]) -> None:
        assert not {*names} & {*self.ends}

    def offsets_for(
        self, target: OffsetTarget, tps: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        of_kind = {"earliest": lambda _: 0, "latest": lambda end: end}
        choose = of_kind.get(target.kind, lambda end: min(target.number, end))
        return {tp: choose(self.ends[tp.topic]) for tp in tps}


def _reset(topology: Topology, cluster: Any, state_dir: Path) -> Reset:
    plans = KafkaStreams(topology, SETTINGS).plans
    return Reset("a", plans, cluster, state_dir=state_dir, timeout_s=1)


# -- random topologies -------------------------------------------------------------------------


@dataclass
class _Drawn:
    """A random topology.

    Args:
        outputs: each topic that it writes, with the inputs whose records get there.
    """

    topology: Topology
    outputs: Mapping[str, frozenset[str]]


def _drawn(rng: random.Random) -> _Drawn:
    builder = StreamsBuilder()
    outputs: dict[str, frozenset[str]] = {}
    tables = []
    for number, topic in enumerate(INPUTS[2:]):
        if rng.random() < 0.8:
            kept: Any = f"t{number}"
            if rng.random() < 0.2:
                kept = Materialized(f"t{number}", history=timedelta(seconds=10))
            table = builder.table(topic, store=kept)
        else:
            source = builder.stream(topic)
            if rng.random() < 0.5:
                source = source.select_key(lambda k, _: k + "!")
            table = source.to_table(store=f"t{number}", name=f"as-table-{number}")
            if rng.random() < 0.3:
                source.to(f"audit-{number}")
                outputs[f"audit-{number}"] = frozenset({topic})
        if rng.random() < 0.4:
            table = table.filter(lambda _, v: v != "v3")
        if rng.random() < 0.3:
            by_value = table.group_by(lambda k, v: (v, k), name=f"by-{number}")
            by_value.count(store=f"groups-{number}")
        tables.append(table)
    streams: list[tuple[KStream[str, str], frozenset[str]]] = [
        (builder.stream(topic), frozenset({topic})) for topic in INPUTS[:2]
    ]
    for number in range(rng.randint(1, 5)):
        stream, read = rng.choice(streams)
        _draw_step(rng, number, builder, (stream, read), streams, tables, outputs)
    return _Drawn(builder.build(), outputs)


def _draw_step(
    rng: random.Random,
    number: int,
    builder: StreamsBuilder,
    chosen: tuple[KStream[str, str], frozenset[str]],
    streams: list[tuple[KStream[str, str], frozenset[str]]],
    tables: Sequence[Any],
    outputs: dict[str, frozenset[str]],
) -> None:
    stream, read = chosen
    step = rng.randrange(8)
    if step == 0:
        stream.to(f"out-{number}")
        outputs[f"out-{number}"] = read
    elif step in (1, 2):
        joined = stream.left_join(rng.choice(tables), lambda v, row: f"{v[-3:]}/{row}")
        joined.to(f"out-{number}")
        outputs[f"out-{number}"] = read
        streams.append((joined, read))
    elif step == 3:
        stream.group_by_key().count(store=f"s{number}").to_stream().to(f"out-{number}")
        outputs[f"out-{number}"] = read
    elif step == 4:
        grouped = stream.group_by(lambda _, v: v[:2], name=f"by-value-{number}")
        grouped.count(store=f"s{number}")
    elif step == 5:
        other, others_read = rng.choice(streams)
        streams.append((stream.merge(other), read | others_read))
    elif step == 6:
        moved = stream.select_key(lambda k, v: k + v[:1]).repartition(name=f"moved-{number}")
        streams.append((moved, read))
    else:
        seen = Stores.key_value(f"s{number}", key=serdes.string, value=serdes.string)
        builder.add_state_store(seen)

        def remember(record: Any, context: Any) -> None:
            context.store(seen).put(record.key, record.value)

        stream.process(remember, stores=[seen], name=f"remember-{number}")


def _run(topology: Topology, sent: Sent, first: Mapping[str, int]) -> tuple[Any, Any]:
    """The stores and outputs after reading each input from an offset on."""
    offsets: Counter[str] = Counter()
    with TopologyTestDriver(topology, SETTINGS) as driver:
        for time, (topic, key, value) in enumerate(sent):
            if offsets[topic] >= first[topic]:
                driver.input(topic).send(key, value, timestamp=1_000 + time)
            offsets[topic] += 1
        stores = {
            store.name: dict(driver.store(store.name).items())
            for sub in topology.sub_topologies
            for store in sub.stores
            if store.spec.layout != "versioned"
        }
        outputs = {
            sink.topic: [(r.key, r.value) for r in driver.output(sink.topic).read_all()]
            for sub in topology.sub_topologies
            for sink in sub.sinks
            if isinstance(sink.topic, str) and not sink.internal
        }
    return stores, outputs


def _reads(topology: Topology) -> list[str]:
    """The inputs that a topology has any use for."""
    plans = KafkaStreams(topology, SETTINGS).plans
    return sorted({t for plan in plans for t in plan.topics.sources})


def _outcome(seed: int, state_dir: Path) -> str:
    rng = random.Random(seed)
    drawn = _drawn(rng)
    reads = _reads(drawn.topology)
    sent = [
        (rng.choice(reads), rng.choice("abc"), f"v{rng.randrange(5)}")
        for _ in range(rng.randint(5, 40))
    ]
    ends = Counter(topic for topic, _, _ in sent)
    cluster = _Cluster({topic: ends[topic] for topic in reads})
    chosen = rng.sample(reads, rng.randint(1, len(reads))) if rng.random() < 0.8 else []
    target = rng.choice(
        [
            OffsetTarget(),
            OffsetTarget(),
            OffsetTarget("latest"),
            OffsetTarget("offset", rng.randrange(9)),
        ]
    )
    try:
        plan = _reset(drawn.topology, cluster, state_dir).plan(target, inputs=chosen)
    except ResetRefusedError:
        return "refused"
    rerun = {move.tp.topic: move.target or 0 for move in plan.moves}
    uses = input_uses(KafkaStreams(drawn.topology, SETTINGS).plans)
    streams = {t for t in chosen or reads if not _is_table_alone(t, uses)}
    wanted_at = cluster.offsets_for(target, [TopicPartition(t, 0) for t in streams])
    wanted = dict.fromkeys(reads, 0) | {tp.topic: at for tp, at in wanted_at.items()}
    stores, outputs = _run(drawn.topology, sent, rerun)
    expected_stores, expected_outputs = _run(drawn.topology, sent, wanted)
    assert stores == expected_stores, (seed, chosen, target, plan.moves)
    for topic, read in drawn.outputs.items():
        if read <= streams:
            assert outputs[topic] == expected_outputs[topic], (seed, topic, plan.moves)
    return "equal"


def _is_table_alone(topic: str, uses: Mapping[str, InputUse]) -> bool:
    """By the drawn topology: the first two are streams, the others tables, some audited too."""
    return topic in INPUTS[2:] and not uses[topic].is_streamed


def test_a_rerun_lacks_no_row_or_the_reset_is_refused(tmp_path: Path) -> None:
    outcomes = Counter(_outcome(seed, tmp_path) for seed in range(120))
    assert outcomes["equal"] > 30, outcomes
    assert outcomes["refused"] > 20, outcomes


# -- cases -------------------------------------------------------------------------------------


def _payments(*, extra: str = "") -> Topology:
    builder = StreamsBuilder()
    payments = builder.stream("payments", key=serdes.string, value=serdes.string)
    cards = builder.table("cards", key=serdes.string, value=serdes.string, store="cards")
    payments.left_join(cards, lambda payment, card: f"{payment}/{card}").to("checked")
    if extra == "counted":
        clicks = builder.stream("clicks", key=serdes.string, value=serdes.string)
        clicks.group_by_key().count(store="clicks")
    elif extra == "written":
        clicks = builder.stream("clicks", key=serdes.string, value=serdes.string)
        clicks.to("loud")
    elif extra == "repartitioned":
        clicks = builder.stream("clicks", key=serdes.string, value=serdes.string)
        clicks.select_key(lambda _, v: v).repartition(name="by-value").to("loud")
    elif extra == "both":
        builder.stream("clicks", key=serdes.string, value=serdes.string).to("loud")
        builder.stream("clicks", key=serdes.string, value=serdes.string).to_table(store="clicks")
    return builder.build()


def _plan(
    topology: Topology, tmp_path: Path, target: OffsetTarget, *topics: str, metadata: str = ""
) -> ResetPlan:
    cluster = _Cluster(dict.fromkeys(_reads(topology), 30), metadata)
    return _reset(topology, cluster, tmp_path).plan(target, inputs=topics)


def _offsets(plan: ResetPlan) -> dict[str, int | None]:
    return {move.tp.topic: move.target for move in plan.moves}


@pytest.mark.parametrize(
    ("target", "topics", "offset"),
    [
        (OffsetTarget(), ["payments"], 0),
        (OffsetTarget("offset", 12), ["payments"], 12),
        (OffsetTarget("time", 12), [], 12),
        (OffsetTarget("latest"), [], 30),
        (OffsetTarget("latest"), ["payments"], 30),
    ],
    ids=str,
)
def test_a_table_goes_to_the_beginning_with_the_streams(
    tmp_path: Path, target: OffsetTarget, topics: list[str], offset: int
) -> None:
    plan = _plan(_payments(), tmp_path, target, *topics)
    assert _offsets(plan) == {"payments": offset, "cards": 0}
    assert "cards-0     30 -> 0, as a table is read from the beginning" in "\n".join(lines(plan))


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("counted", "empties clicks, which clicks fills"),
        ("repartitioned", "empties by-value-repartition, which clicks fills"),
        (
            "both",
            "empties clicks, which is filled from clicks, and clicks is also read as a stream",
        ),
    ],
)
def test_an_input_that_would_be_missing_refuses(tmp_path: Path, extra: str, said: str) -> None:
    topology = _payments(extra=extra)
    with pytest.raises(ResetRefusedError, match=said) as refused:
        _plan(topology, tmp_path, OffsetTarget(), "payments")
    assert "Add --topic clicks" in str(refused.value)
    assert _offsets(_plan(topology, tmp_path, OffsetTarget(), "payments", "clicks")) == {
        "payments": 0,
        "cards": 0,
        "clicks": 0,
    }


def test_a_table_that_is_a_stream_too_is_not_set_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ResetRefusedError, match="clicks is read as a table"):
        _plan(_payments(extra="both"), tmp_path, OffsetTarget("latest"))


def test_an_input_that_fills_nothing_stays(tmp_path: Path) -> None:
    plan = _plan(_payments(extra="written"), tmp_path, OffsetTarget(), "payments")
    assert _offsets(plan) == {"payments": 0, "cards": 0, "clicks": 30}


def test_a_table_that_keeps_no_rows_stays(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    builder.table("changes").to_stream().to("loud")
    plan = _plan(builder.build(), tmp_path, OffsetTarget(), "in")
    assert _offsets(plan) == {"in": 0, "changes": 30}


def test_both_sides_of_a_foreign_key_join_go_to_the_beginning(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    orders = builder.table("orders", key=serdes.string, value=serdes.string)
    cards = builder.table("cards", key=serdes.string, value=serdes.string)
    named = orders.join(cards, lambda order, card: order + card, foreign_key=lambda order: order)
    named.to_stream().to("named")
    builder.stream("in").to("out")
    plan = _plan(builder.build(), tmp_path, OffsetTarget("latest"), "in")
    assert _offsets(plan) == {"orders": 0, "cards": 0, "in": 30}


def test_records_that_were_skipped_come_again_and_that_is_said(tmp_path: Path) -> None:
    skips = OffsetMetadata(5, left_out_values([31])).encode()
    plan = _plan(_payments(extra="written"), tmp_path, OffsetTarget(), "payments", metadata=skips)
    text = "\n".join(lines(plan))
    assert "clicks-0 was to skip offset 31: run headrace skip again" in text
    assert "If headrace skip has skipped records after the new offsets" in text


def test_results_that_are_read_again_are_named(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.string).to("between")
    between = builder.stream("between", key=serdes.string, value=serdes.string)
    between.group_by_key().count(store="counts")
    text = "\n".join(lines(_plan(builder.build(), tmp_path, OffsetTarget())))
    assert "between is written by the application too" in text
