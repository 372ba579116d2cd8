"""Joins of two streams: against real results, a slow model, and one rule at a time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.state.buffer import Coding
from headrace.state.codec import TIMESTAMP
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.state.timed import TimedBuffer
from headrace.streams.errors import MisconfiguredTopicError, RecordError, StreamsError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KStream, Materialized, StreamsBuilder, Topology, TopologyError, serdes
from headrace.topology.context.number import Number
from headrace.topology.operators.joins import stream_join
from headrace.topology.operators.joins.stream_join import KeyEncoder, SideRows
from headrace.topology.serdes import Serde
from headrace.topology.windows import JoinWindows
from tests.support.examples import examples
from tests.topology.operators.joins.stream_join_model import Kind, Side, StreamJoinModel

MS = timedelta(milliseconds=1)
TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
RAW: dict[str, Any] = {"key": serdes.bytes, "value": serdes.bytes}
CODING = Coding(encode=bytes, decode=bytes)
EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2", "null.key.policy": "drop"}
METHODS: dict[Kind, str] = {"inner": "join", "left": "left_join", "outer": "outer_join"}
GOLDEN = Path(__file__).parents[3] / "golden" / "kafka_streams_joins" / "scenarios.txt"
Event = tuple[Side, str | None, str | None, int]


def pair(left: str | None, right: str | None) -> str:
    return f"{left}+{right}"


def within(
    difference: int = 0,
    *,
    before: int | None = None,
    after: int | None = None,
    grace: int = 0,
) -> JoinWindows:
    return JoinWindows(
        time_difference=difference * MS,
        before=None if before is None else before * MS,
        after=None if after is None else after * MS,
        grace=grace * MS,
    )


def joined(kind: Kind, windows: JoinWindows, **options: Any) -> Topology:
    """Two topics, one for each side."""
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    results = getattr(left, METHODS[kind])(right, pair, windows, store="pairs", **options)
    results.to("out", value=serdes.string)
    return builder.build()


def split(kind: Kind, windows: JoinWindows, **options: Any) -> Topology:
    """One topic for both sides, so that the order of all records is that of their offsets."""
    builder = StreamsBuilder()
    both: KStream[str, Any] = builder.stream("in", key=serdes.string, value=serdes.json)
    left = both.filter(lambda _, value: value[0] == "left").map_values(lambda value: value[1])
    right = both.filter(lambda _, value: value[0] == "right").map_values(lambda value: value[1])
    serde = {"value": serdes.string, "other_value": serdes.string, "key": serdes.string}
    join = getattr(left, METHODS[kind])
    join(right, pair, windows, store="pairs", **serde, **options).to("out", value=serdes.string)
    return builder.build()


class Joined:
    """A running join of two topics."""

    def __init__(self, topology: Topology, **options: Any) -> None:
        self.driver = TopologyTestDriver(topology, EXACTLY_ONCE, **options)
        self._output = self.driver.output("out")

    def __call__(self, side: str, key: str | None, value: str | None, time: int) -> list[Any]:
        """Send a record; what came out, of this one and of those before that did not yet."""
        self.driver.input(side).send(key, value, timestamp=time)
        return self.results()

    def results(self) -> list[Any]:
        return [(r.key, r.value, r.timestamp) for r in self._output.read_all()]


# -- against Kafka Streams, and against the model ------------------------------------------------


def scenarios() -> Iterator[tuple[str, str]]:
    lines = GOLDEN.read_text().splitlines()
    yield from zip(lines[::2], lines[1::2], strict=True)


def read_scenario(line: str) -> tuple[Kind, tuple[int, int, int], list[list[Event]]]:
    head, _, records = line.partition(" | ")
    kind, before, after, grace = head.split()
    kinds: dict[str, Kind] = {"self": "inner", "selfleft": "left"}
    sides: dict[str, list[Side]] = {"L": ["left"], "R": ["right"]}
    steps = []
    for record in records.split():
        side, key, value, time = record.split(":")
        read = (None if key == "-" else key, None if value == "-" else value, int(time))
        both: list[Side] = ["left", "right"]
        steps.append([(s, *read) for s in (both if kind in kinds else sides[side])])
    known: Any = kinds.get(kind, kind)
    return known, (int(before), int(after), int(grace)), steps


def test_the_model_with_kafkas_ways_gives_what_kafka_streams_gave() -> None:
    count = 0
    for line, results in scenarios():
        kind, windows, steps = read_scenario(line)
        model = StreamJoinModel(kind, *windows, as_kafka=True)
        made = [
            f"{number}:{key}:{value}:{time}".replace("None", "null")
            for number, step in enumerate(steps)
            for event in step
            for key, value, time in model.take(*event)
        ]
        assert made == results.split()[1:], line
        count += 1
    assert count == 300


@pytest.mark.slow
@pytest.mark.parametrize("late_match", ["emit", "drop"])
def test_a_join_gives_what_the_model_gives(late_match: Literal["emit", "drop"]) -> None:
    for line, _ in scenarios():
        kind, (before, after, grace), steps = read_scenario(line)
        if line.startswith("self") or (kind == "inner" and late_match == "drop"):
            continue
        model = StreamJoinModel(kind, before, after, grace, late_match == "drop")
        windows = within(before=before, after=after, grace=grace)
        options = {} if kind == "inner" else {"late_match": late_match}
        join = Joined(joined(kind, windows, **options))
        for ((side, key, value, time),) in steps:
            assert join(side, key, value, time) == model.take(side, key, value, time), line
        join.driver.close()


@pytest.mark.slow
def test_a_stream_joined_with_itself_gives_what_the_model_gives() -> None:
    for line, _ in scenarios():
        kind, (before, after, grace), steps = read_scenario(line)
        if not line.startswith("self"):
            continue
        builder = StreamsBuilder()
        stream = builder.stream("left", **TEXTS)
        windows = within(before=before, after=after, grace=grace)
        getattr(stream, METHODS[kind])(stream, pair, windows).to("out", value=serdes.string)
        join, model = Joined(builder.build()), StreamJoinModel(kind, before, after, grace)
        for step in steps:
            expected = [result for event in step for result in model.take(*event)]
            assert join(*step[0]) == expected, line
        join.driver.close()


ACTIONS = st.sampled_from(["commit", "abort", "crash", "lose", "restart"])
RECORDS = st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("abc"), st.integers(0, 40))
STEPS = st.lists(st.one_of(RECORDS, RECORDS, RECORDS, ACTIONS), max_size=25)
REACHES = st.tuples(st.integers(-2, 6), st.integers(2, 6), st.integers(0, 4))


def act(driver: TopologyTestDriver, action: str) -> None:
    if action == "commit":
        driver.commit()
    elif action == "abort":
        driver.abort()
    elif action == "restart":
        driver.restart()
    else:
        driver.crash(keep=action == "crash")


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("cache", [0, 1 << 20])
@given(
    kind=st.sampled_from(["inner", "left", "outer"]),
    reaches=REACHES,
    drops=st.booleans(),
    few=st.booleans(),
    in_memory=st.sampled_from([0, 700, 64 << 20]),
    steps=STEPS,
)
# What it could match would have come before time 0, so it waits for nothing.
@example(
    kind="outer", reaches=(-2, 5, 0), drops=True, few=False, in_memory=0, steps=[("right", "b", 0)]
)
# The second one comes too late to be kept, and still waits for a match until the third.
@example(
    kind="left",
    reaches=(-1, 3, 4),
    drops=True,
    few=False,
    in_memory=0,
    steps=[("left", "a", time) for time in (10, 3, 11)],
)
@settings(max_examples=examples(60), deadline=None)
def test_aborts_and_crashes_between_any_two_records_change_nothing(
    partitions: int,
    cache: int,
    kind: Kind,
    reaches: tuple[int, int, int],
    drops: bool,
    few: bool,
    in_memory: int,
    steps: list[Any],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if few:  # so that what waits is read in several parts, and forgotten in between
            patch.setattr(stream_join, "_READ_ROWS", 2)
            patch.setattr(stream_join, "_HEAP_MAX", 3)
        memory = {
            "statestore.cache.max.bytes": cache,
            "statestore.read.cache.max.bytes": in_memory,
        }
        run_steps(partitions, memory, kind, reaches, drops, steps)


def run_steps(
    partitions: int,
    memory: dict[str, int],
    kind: Kind,
    reaches: tuple[int, int, int],
    drops: bool,
    steps: list[Any],
) -> None:
    before, after, grace = reaches
    windows = within(before=before, after=after, grace=grace)
    options = {} if kind == "inner" else {"late_match": "drop" if drops else "emit"}
    topology = split(kind, windows, name="join", **options)
    models = [
        StreamJoinModel(kind, before, after, grace, drops and kind != "inner")
        for _ in range(partitions)
    ]
    expected: list[list[Any]] = [[] for _ in range(partitions)]
    settings = {**EXACTLY_ONCE, **memory}
    driver = TopologyTestDriver(topology, settings, partitions=partitions, commit="manual")
    for number, step in enumerate(steps):
        if isinstance(step, str):
            act(driver, step)
            continue
        side, key, time = step
        partition, value = ord(key) % partitions, f"v{number}"
        driver.input("in").send(key, [side, value], timestamp=time, partition=partition)
        # Both filters see each record; stream time goes on where the side takes it alone.
        expected[partition] += models[partition].take(side, key, value, time)
    driver.commit()
    assert_same(driver, models, expected)
    driver.close()


def assert_same(
    driver: TopologyTestDriver, models: list[StreamJoinModel], expected: list[list[Any]]
) -> None:
    results = driver.output("out").read_all()
    for key in "abc":
        made = [(r.key, r.value, r.timestamp) for r in results if r.key == key]
        assert made == [r for part in expected for r in part if r[0] == key]
    for side, store in (("left", "this"), ("right", "other")):
        is_outer = models[0].outer("right" if side == "left" else "left")
        name = f"pairs-{'outer-' if is_outer else ''}{store}-join-store"
        rows = sorted((k.timestamp_ms, k.key, v) for k, v in driver.store(name).items())
        kept = [
            (record.time, record.key, record.value)
            for model in models
            for record in model.kept[side]  # type: ignore[index]
            if record.time >= model.horizon(side)  # type: ignore[arg-type]
        ]
        assert rows == sorted(kept)
    if models[0].kind != "inner":
        shared = "outer" if models[0].kind == "outer" else "left"
        waiting = driver.store(f"pairs-{shared}-shared-join-store")
        held = [
            (where.timestamp_ms, where.key, is_left, value)
            for where, values in waiting.items()
            for is_left, value in values
        ]
        waits = [(r.time, r.key, side == "left", r.value) for m in models for side, r in m.waiting]
        assert sorted(held) == sorted(waits)


# -- one rule at a time --------------------------------------------------------------------------


@pytest.mark.parametrize(("time", "matches"), [(89, 0), (90, 1), (100, 1), (120, 1), (121, 0)])
def test_both_ends_of_the_window_belong_to_it(time: int, matches: int) -> None:
    join = Joined(joined("inner", within(before=10, after=20)))
    join("left", "k", "l", 100)
    assert len(join("right", "k", "r", time)) == matches


def test_the_other_side_has_the_windows_the_other_way_round() -> None:
    join = Joined(joined("inner", within(before=10, after=20)))
    join("right", "k", "r", 100)
    assert join("left", "k", "l", 79) == []
    assert join("left", "k", "l", 80) == [("k", "l+r", 100)]
    assert join("left", "k", "l", 110) == [("k", "l+r", 110)]
    assert join("left", "k", "l", 111) == []


def test_a_result_has_the_later_time_and_the_headers_of_the_record_that_made_it() -> None:
    """Trap 6: a join's time is the larger one; trap 31: the headers of the trigger."""
    driver = TopologyTestDriver(joined("inner", within(10)))
    driver.input("left").send("k", "l", timestamp=100, headers=[("from", b"left")])
    driver.input("right").send("k", "r", timestamp=95, headers=[("from", b"right")])
    (result,) = driver.output("out").read_all()
    assert (result.timestamp, list(result.headers or ())) == (100, [("from", b"right")])


def test_equal_records_are_kept_and_joined_each_in_the_order_of_time_then_arrival() -> None:
    """Trap 16: stores of joins keep duplicates."""
    join = Joined(joined("inner", within(10)))
    for value, time in (("b", 100), ("a", 100), ("a", 100), ("c", 99)):
        join("right", "k", value, time)
    assert [value for _, value, _ in join("left", "k", "l", 100)] == ["l+c", "l+b", "l+a", "l+a"]


def test_numbers_of_records_go_on_after_a_restart_without_state() -> None:
    """Trap 16: a number that began anew would write over a record of the same key and time."""
    join = Joined(joined("inner", within(10)))
    join("right", "k", "a", 100)
    join.driver.crash(keep=False)
    join("right", "k", "b", 100)
    join.driver.restart()
    join("right", "k", "c", 100)
    assert [value for _, value, _ in join("left", "k", "l", 100)] == ["l+a", "l+b", "l+c"]


def test_numbers_of_records_go_on_after_a_restart_where_no_record_is_left() -> None:
    join = Joined(joined("inner", within(10)))
    join("left", "k", "a", 100)
    join.driver.restart()
    join("left", "k", "b", 1_000)
    (kept,) = join.driver.store("pairs-this-join-store")
    assert (kept.timestamp_ms, kept.number) == (1_000, 1)


def test_rows_that_another_program_wrote_are_not_written_over() -> None:
    """An application that moves here from Java has rows, but no numbers in its offsets."""
    spec = StoreSpec("s", kind="memory", layout="window")
    state = MemoryTaskState([spec])
    row = b"k" + TIMESTAMP.pack(100)
    old = [(row + number.to_bytes(4, "big"), b"old", 100) for number in (0, 6)]
    state.write({"s": spec.rows.rows(old)}, {})
    buffer = TimedBuffer("s", state.store("s"), CODING, layout=spec.rows)
    rows = SideRows(buffer, KeyEncoder(str.encode), 10, Number(), Number())
    assert rows.add("k", b"new", 100)
    assert [value for _, value in rows.between("k", 90, 110)] == [b"old", b"old", b"new"]


def test_numbers_begin_anew_after_the_largest_one() -> None:
    spec = StoreSpec("s", kind="memory", layout="window")
    state = MemoryTaskState([spec])
    buffer = TimedBuffer("s", state.store("s"), CODING, layout=spec.rows)
    rows = SideRows(buffer, KeyEncoder(str.encode), 10, Number(), Number(2**31 - 2))
    for value in (b"a", b"b"):
        assert rows.add("k", value, 100)
    assert sorted(key[-4:].hex() for key, _, _ in buffer.scan()) == ["00000000", "7fffffff"]


def test_keys_that_begin_alike_are_told_apart() -> None:
    serde: dict[str, Any] = {"key": serdes.bytes, "value": serdes.string}
    builder = StreamsBuilder()
    left, right = builder.stream("left", **serde), builder.stream("right", **serde)
    left.join(right, pair, within(2**40)).to("out", value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    # The second key is the first with the bytes of a time and a number behind it.
    for number, key in enumerate((b"k", b"k" + bytes(11) + b"\x05", b"k" + bytes(12))):
        driver.input("right").send(key, f"r{number}", timestamp=5)
    driver.input("left").send(b"k", "l", timestamp=5)
    assert [r.value for r in driver.output("out").read_all()] == ["l+r0"]


def test_a_late_record_is_joined_while_the_other_side_keeps_what_it_matches() -> None:
    """Trap 14: there is no check of the grace period, only the stores' retention."""
    join = Joined(joined("inner", within(10)))
    join("right", "k", "r", 100)
    join("left", "x", "l", 1_000)
    assert join("left", "k", "late", 95) == [("k", "late+r", 100)]
    join("right", "x", "r", 1_000)
    assert join("left", "k", "later", 96) == []


def test_a_longer_retention_lets_records_be_joined_that_come_even_later() -> None:
    kept = Materialized("pairs", retention=200 * MS)
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    left.join(right, pair, within(10), store=kept).to("out", value=serdes.string)
    join = Joined(builder.build())
    join("right", "k", "r", 100)
    join("right", "x", "r", 300)
    assert join("left", "k", "late", 95) == [("k", "late+r", 100)]
    join("right", "x", "r", 301)
    assert join("left", "k", "later", 96) == []


def test_a_record_in_time_finds_all_that_it_matches_up_to_the_last_millisecond() -> None:
    """Kafka Streams has let go of the first one by then; see docs/joins.md."""
    join = Joined(joined("inner", within(5)))
    join("right", "k", "r10", 10)
    join("right", "k", "r20", 20)
    assert [value for _, value, _ in join("left", "k", "l", 15)] == ["l+r10", "l+r20"]


def test_windows_of_one_moment_join_records_of_that_moment() -> None:
    join = Joined(joined("inner", within(0)))
    join("left", "k", "l", 10)
    assert join("right", "k", "r", 10) == [("k", "l+r", 10)]


def test_a_null_result_comes_with_the_first_record_after_the_window_and_its_grace() -> None:
    """Trap 14: as soon as stream time says so, with no delay by the wall clock."""
    join = Joined(joined("left", within(before=50, after=10, grace=5)))
    assert join("left", "k", "l", 100) == []
    assert join("right", "x", "r", 115) == []
    assert join("right", "x", "r", 116) == [("k", "l+None", 100)]
    assert join("right", "x", "r", 200) == []


def test_a_late_record_within_the_grace_period_waits_for_it_to_end() -> None:
    """Kafka Streams gives it its null result at once, and a second result when a match comes."""
    join = Joined(joined("left", within(10, grace=100)))
    join("right", "x", "r", 180)
    assert join("left", "k", "l", 100) == []
    assert join("right", "k", "r", 105) == [("k", "l+r", 105)]
    assert join("left", "x", "end", 400) == []


def test_null_results_come_by_time_then_side_then_key() -> None:
    """Trap 15: and each has its record's own time."""
    join = Joined(joined("outer", within(5)))
    for side, key, time in (
        ("left", "b", 11), ("left", "b", 10), ("left", "a", 10),
        ("right", "z", 10), ("right", "c", 9),
    ):  # fmt: skip
        join(side, key, side[0], time)
    assert join("left", "end", "l", 100) == [
        ("c", "None+r", 9), ("z", "None+r", 10), ("a", "l+None", 10), ("b", "l+None", 10),
        ("b", "l+None", 11),
    ]  # fmt: skip


def test_null_results_that_come_together_are_in_the_order_of_their_times_not_of_their_ends() -> (
    None
):
    """Trap 15: the left record can match for longer, and comes first all the same."""
    join = Joined(joined("outer", within(before=1, after=20)))
    join("left", "a", "l", 10)
    join("right", "b", "r", 12)
    assert join("left", "end", "l", 100) == [("a", "l+None", 10), ("b", "None+r", 12)]


@pytest.mark.parametrize("how", ["commit", "abort", "crash", "lose", "restart"])
def test_no_null_result_is_lost_where_stream_time_jumps(how: str) -> None:
    """Trap 13's kin: the record that ends all windows also ends what the stores keep."""
    topology = joined("outer", within(5), late_match="drop")
    join = Joined(topology, commit="manual")
    for number in range(50):
        join("left" if number % 2 else "right", f"k{number}", "v", number)
    join.driver.commit()
    before = {key for key, _, _ in join.results()}
    act(join.driver, how)
    join("left", "end", "l", 10**9)
    act(join.driver, how)
    join.driver.commit()
    results = join.results()
    assert len(results) == 50 - len(before)
    assert {key for key, _, _ in results} | before == {f"k{n}" for n in range(50)}


def test_a_late_match_follows_the_null_result() -> None:
    """Trap 14: as in Kafka Streams, which has nothing else."""
    join = Joined(joined("left", within(10)))
    join("left", "k", "l", 100)
    assert join("left", "x", "x", 111) == [("k", "l+None", 100)]
    assert join("right", "k", "r", 105) == [("k", "l+r", 105)]


def test_a_null_result_can_be_the_last_one() -> None:
    join = Joined(joined("outer", within(10), late_match="drop"))
    join("left", "k", "l", 100)
    assert join("left", "x", "x", 111) == [("k", "l+None", 100)]
    assert join("right", "k", "r", 105) == []
    assert join("left", "x", "x", 116) == [("k", "None+r", 105)]
    # A record that gets its null result at once is not found by a later one either.
    assert join("right", "k", "r2", 104) == [("k", "None+r2", 104)]
    assert join("left", "k", "l2", 104) == [("k", "l2+None", 104)]


def test_a_match_before_the_null_result_does_not_end_a_record_where_late_ones_are_dropped() -> None:
    join = Joined(joined("left", within(10), late_match="drop"))
    join("left", "k", "l", 100)
    assert join("right", "k", "r", 105) == [("k", "l+r", 105)]
    assert join("left", "x", "x", 115) == []
    join("right", "x", "x", 200)
    assert join("right", "k", "late", 106) == [("k", "l+late", 106)]


def test_records_without_a_value_are_dropped_by_each_kind_of_join() -> None:
    """Trap 5."""
    for kind in METHODS:
        join = Joined(joined(kind, within(10)))
        assert join("left", "k", None, 100) == []
        assert join("right", "k", "r", 100) == []
        join.driver.run()
        assert [why for _, why in join.driver.dropped] == ["null value"]


@pytest.mark.parametrize(
    ("kind", "results"),
    [
        ("inner", []),
        ("left", [(None, "l+None", 100)]),
        ("outer", [(None, "l+None", 100), (None, "None+r", 90)]),
    ],
)
def test_records_without_a_key_get_a_null_result_at_once_on_an_outer_side(
    kind: Kind, results: list[Any]
) -> None:
    """Trap 5: KIP-962."""
    join = Joined(joined(kind, within(10)))
    made = join("left", None, "l", 100) + join("right", None, "r", 90)
    assert made == results


def test_records_without_a_key_are_for_the_policy_where_a_side_is_not_outer() -> None:
    driver = TopologyTestDriver(joined("left", within(10)))
    driver.input("left").send(None, "l")
    with pytest.raises(StreamsError, match="the key is null"):
        driver.input("right").send(None, "r")


def test_records_without_a_key_come_through_the_repartition_topic_of_a_left_join() -> None:
    """Trap 5: KIP-962 leaves the filter of null keys out there."""
    builder = StreamsBuilder()
    left: KStream[Any, Any] = builder.stream("left", **TEXTS).select_key(lambda *_: None)
    right = builder.stream("right", **TEXTS)
    left.left_join(right, pair, within(10), key=serdes.string).to("out", value=serdes.string)
    assert Joined(builder.build())("left", "k", "l", 100) == [(None, "l+None", 100)]


def test_late_records_are_taken_as_streams() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    results = left.join(
        right,
        pair,
        within(10),
        late=lambda stream: stream.to("late-left"),
        other_late=lambda stream: stream.to("late-right"),
    )
    results.to("out", value=serdes.string)
    join = Joined(builder.build())
    join("left", "k", "in time", 100)
    join("right", "k", "in time", 100)
    assert join("left", "k", "late", 79) == []
    assert join("left", "k", "just in time", 80) == []
    assert join("right", "k", "late", 75) == [("k", "just in time+late", 80)]
    late = {
        side: [(r.value, r.timestamp) for r in join.driver.output(f"late-{side}").read_all()]
        for side in ("left", "right")
    }
    assert late == {"left": [("late", 79)], "right": [("late", 75)]}
    assert not join.driver.dropped


def _signed(name: str) -> Serde[str]:
    """A serde whose bytes tell which one wrote them."""
    sign = f"{name} "
    return serdes.serde_from(
        serialize=lambda text: (sign + text).encode(),
        deserialize=lambda data: data.decode().removeprefix(sign),
        name=name,
    )


def test_an_error_of_the_right_sides_value_serde_names_its_argument() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    rekeyed = right.map(lambda key, _: (key, 7))
    left.join(rekeyed, pair, within(10), other_value=serdes.string, key=serdes.string, name="j")
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE)
    with pytest.raises(RecordError, match=r"pass other_value=serdes\.long \("):
        driver.input("right").send("k", "v")


@pytest.mark.parametrize("cache", [0, 1_000_000])
@pytest.mark.parametrize(("wrong", "argument"), [("left", "value"), ("right", "other_value")])
def test_an_error_of_what_a_side_keeps_names_the_argument_of_that_side(
    wrong: str, argument: str, cache: int
) -> None:
    builder = StreamsBuilder()
    sides = {
        side: builder.stream(side, **TEXTS).map_values(
            lambda value, side=side: 7 if side == wrong else value
        )
        for side in ("left", "right")
    }
    texts = {"value": serdes.string, "other_value": serdes.string}
    sides["left"].join(sides["right"], pair, within(10), store="j", **texts).to("out")
    settings = {**EXACTLY_ONCE, "statestore.cache.max.bytes": cache}
    driver = TopologyTestDriver(builder.build(), settings)
    with pytest.raises(RecordError) as caught:
        driver.input(wrong).send("k", "v")
    assert f"pass {argument}=serdes.long (key=serdes.long for keys) (" in str(caught.value)


@pytest.mark.filterwarnings("ignore::headrace.topology.errors.KeySerdeWarning")
@pytest.mark.parametrize("kind", METHODS)
def test_late_records_are_written_with_the_serdes_of_their_own_side(kind: Kind) -> None:
    builder = StreamsBuilder()
    left, right = (
        builder.stream(side, key=_signed(f"{side}'s"), value=_signed(f"{side}'s"))
        for side in ("left", "right")
    )
    late = {
        "late": lambda stream: stream.to("late-left"),
        "other_late": lambda stream: stream.to("late-right"),
    }
    getattr(left, METHODS[kind])(right, pair, within(10), **late)
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE)
    for side in ("left", "right"):
        for timestamp in (100, 79):
            driver.input(side).send("k", "v", timestamp=timestamp)
        (record,) = driver.output(f"late-{side}", **RAW).read_all()
        assert (record.key, record.value) == (f"{side}'s k".encode(), f"{side}'s v".encode())


def test_late_records_that_nobody_takes_are_counted() -> None:
    join = Joined(joined("inner", within(10)))
    join("left", "k", "l", 100)
    join("left", "k", "late", 79)
    assert join.driver.dropped == {("KSTREAM-WINDOWED-0000000002", "late"): 1}


def test_the_joiner_can_take_the_key() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXTS), builder.stream("right", **TEXTS)
    results = left.outer_join(right, "{} {} {}".format, within(10), with_key=True)
    results.to("out", value=serdes.string)
    join = Joined(builder.build())
    join("left", "k", "l", 100)
    assert join("right", "k", "r", 101) == [("k", "k l r", 101)]
    join("right", "j", "r", 102)
    assert join("left", "x", "", 200) == [("j", "j None r", 102)]


def test_values_that_can_be_changed_in_place_stay_as_they_were() -> None:
    """A joiner that breaks the rule spoils its own result alone."""

    def spoil(left: Any, right: Any) -> Any:
        left["spoilt"] = True
        right["spoilt"] = True
        return len(left) + len(right)

    builder = StreamsBuilder()
    left: KStream[str, Any] = builder.stream("left", key=serdes.string, value=serdes.json)
    right: KStream[str, Any] = builder.stream("right", key=serdes.string, value=serdes.json)
    left.join(right, spoil, within(10)).to("out", value=serdes.json)
    driver = TopologyTestDriver(builder.build(), commit="manual")
    driver.input("left").send("k", {"a": 1}, timestamp=1)
    for time in (2, 3):
        driver.input("right").send("k", {"b": 1}, timestamp=time)
    driver.commit()
    assert [r.value for r in driver.output("out").read_all()] == [4, 4]


def test_the_changelogs_have_kafkas_bytes() -> None:
    """Trap 24: key, time and number; and what waits: time, side, key, and a list of values."""
    join = Joined(joined("outer", within(10)))
    join("left", "k", "l", 258)
    join("right", "j", "r", 3)
    read = {
        topic: [
            (r.key and r.key.hex(" "), r.value and r.value.hex(" "), r.timestamp)
            for r in join.driver.output(f"test-pairs-{topic}-store-changelog", **RAW).read_all()
        ]
        for topic in ("outer-this-join", "outer-other-join", "outer-shared-join")
    }
    assert read["outer-this-join"] == [("6b 00 00 00 00 00 00 01 02 00 00 00 00", "6c", 258)]
    assert read["outer-other-join"] == [("6a 00 00 00 00 00 00 00 03 00 00 00 00", "72", 3)]
    assert read["outer-shared-join"] == [
        ("00 00 00 00 00 00 01 02 01 6b", "01 00 00 00 01 00 00 00 02 01 6c", 258)
    ]


def test_what_waits_between_two_commits_alone_leaves_nothing_in_the_changelog() -> None:
    driver = TopologyTestDriver(joined("outer", within(10)), EXACTLY_ONCE, commit="manual")
    send = [driver.input(side).send for side in ("left", "right")]
    send[0]("matched", "l", timestamp=100)
    send[1]("matched", "r", timestamp=101)
    send[0]("ended", "l", timestamp=102)
    send[0]("kept", "l", timestamp=120)
    driver.commit()
    log = driver.output("test-pairs-outer-shared-join-store-changelog", **RAW)
    assert [(r.key[9:], r.value is None) for r in log.read_all() if r.key] == [(b"kept", False)]
    # What is in the store must be deleted there, whatever came to it since.
    send[0]("kept", "another", timestamp=120)
    send[1](None, "later", timestamp=200)
    driver.commit()
    assert [(r.key[9:], r.value is None) for r in log.read_all() if r.key] == [(b"kept", True)]


def test_the_changelogs_of_both_sides_are_deleted_by_time_and_that_of_what_waits_is_compacted() -> (
    None
):
    """Trap 21, and not compacted as other windows are: nothing there is ever written over."""
    driver = TopologyTestDriver(joined("left", within(before=30, after=10, grace=2)))
    configs = {
        name.removeprefix("test-pairs-"): driver.cluster.topics[name].config
        for name in driver.cluster.topics
        if name.endswith("-changelog")
    }
    side = configs["this-join-store-changelog"]
    assert side["cleanup.policy"] == "delete"
    assert int(side["retention.ms"]) == 42 + 86_400_000
    assert configs["left-shared-join-store-changelog"]["cleanup.policy"] == "compact"


def test_topics_of_unequal_partition_counts_are_refused() -> None:
    """Trap 22."""
    with pytest.raises(MisconfiguredTopicError, match=r"left.*3|3.*left"):
        TopologyTestDriver(joined("inner", within(10)), partitions={"left": 3, "right": 2})


def test_a_repartition_topic_takes_the_partition_count_of_the_other_side() -> None:
    """Trap 22."""
    builder = StreamsBuilder()
    left = builder.stream("left", **TEXTS).select_key(lambda _, value: value[0])
    right = builder.stream("right", **TEXTS)
    left.join(right, pair, within(10), name="join", key=serdes.string).to(
        "out", value=serdes.string
    )
    driver = TopologyTestDriver(builder.build(), partitions={"left": 2, "right": 5})
    assert len(driver.cluster.topics["test-join-left-repartition"].logs) == 5
    for number, key in enumerate("abcdefgh"):
        driver.input("left").send(None, f"{key}{number}", timestamp=1)
        driver.input("right").send(key, "r", timestamp=1)
    assert {r.key for r in driver.output("out").read_all()} == set("abcdefgh")


def test_local_state_in_rocksdb_gives_the_same_results(tmp_path: Path) -> None:
    topology = joined("outer", within(10, grace=3))
    memory = Joined(topology, commit="manual")
    rocks = Joined(topology, commit="manual", state_dir=tmp_path)
    results: list[list[Any]] = [[], []]
    for number in range(300):
        record = ("left" if number % 3 else "right", f"k{number % 7}", f"v{number}")
        for join, made in zip((memory, rocks), results, strict=True):
            made += join(*record, number * 5 // 2 - number % 11)
            if number % 20 == 0:
                act(join.driver, ("commit", "abort", "crash", "restart")[number // 20 % 4])
    for join, made in zip((memory, rocks), results, strict=True):
        join.driver.commit()
        made += join.results()
    assert results[0] == results[1]
    assert len(results[0]) > 200
    rocks.driver.close()


def test_what_does_not_go_together_is_refused() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("in", **TEXTS), builder.table("table", **TEXTS)
    elsewhere = StreamsBuilder()
    join: Any = stream.join
    with pytest.raises(TopologyError, match="another builder"):
        join(elsewhere.stream("x", **TEXTS), pair, within(1))
    with pytest.raises(TopologyError, match="another builder"):
        join(elsewhere.table("y", **TEXTS), pair)
    with pytest.raises(TopologyError, match="requires JoinWindows"):
        join(stream, pair)
    with pytest.raises(TopologyError, match="takes no windows"):
        join(table, pair, within(1))
    with pytest.raises(TopologyError, match="does not accept store="):
        join(table, pair, store="rows")
    with pytest.raises(TopologyError, match="no outer join with a table"):
        stream.outer_join(table, pair, within(1))  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="'emit' or 'drop'"):
        stream.left_join(stream, pair, within(1), late_match="both")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not with a str"):
        join("table", pair)
    with pytest.raises(TopologyError, match="retention"):
        join(stream, pair, within(10), store=Materialized(retention=5 * MS))


@pytest.mark.parametrize("late_match", ["emit", "drop"])
@pytest.mark.parametrize(
    ("kind", "side"), [("left", "left"), ("outer", "left"), ("outer", "right")]
)
@pytest.mark.parametrize("taken", [False, True])
def test_what_is_too_late_to_be_kept_is_late_with_its_null_result_too(
    kind: Kind, side: str, taken: bool, late_match: str
) -> None:
    builder = StreamsBuilder()
    left = builder.stream("left", key=serdes.string, value=serdes.string)
    right = builder.stream("right", key=serdes.string, value=serdes.string)
    options: dict[str, Any] = {"late_match": late_match, "name": "j"}
    if taken:
        options["late"] = lambda stream: stream.to("late-left")
    if taken and kind == "outer":
        options["other_late"] = lambda stream: stream.to("late-right")
    windows = JoinWindows(time_difference=timedelta(milliseconds=10))
    getattr(left, f"{kind}_join")(right, pair, windows, **options).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.input(side).send("a", "SOON", timestamp=500)
    driver.input(side).send("a", "LATE", timestamp=100)
    (result,) = driver.output("out", key=serdes.string).read_all()
    assert "LATE" in str(result.value)
    if taken:
        late = driver.output(f"late-{side}", key=serdes.string, value=serdes.string).read()
        assert (late.value, late.timestamp) == ("LATE", 100)
    else:
        assert [reason for _, reason in driver.dropped] == ["late"]
