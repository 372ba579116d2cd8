"""What a changed program does to what is deployed: real topologies, compared without a cluster."""

from __future__ import annotations

import base64
import json
import random
import secrets
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import TopologyChangedError
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.deployed import DeployedTopology
from headrace.streams.plan.deployment import DeployedStore, Deployment, change_code
from headrace.streams.plan.deployment_changes import changes
from headrace.streams.plan.plan import plan_application
from headrace.streams.testing.memory_worker import EventLog
from headrace.topology import (
    JoinWindows,
    Materialized,
    MemorySink,
    Processor,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
    serdes,
)
from headrace.topology.serdes import avro

CONFIG = StreamsConfig.parse({"application.id": "a", "bootstrap.servers": "localhost:1"})

Write = Callable[[StreamsBuilder], Any]


def _deployment(write: Write) -> Deployment:
    builder = StreamsBuilder()
    write(builder)
    return Deployment.of(plan_application(builder.build(), CONFIG), CONFIG)


def _changes(before: Write, after: Write) -> tuple[list[str], list[str]]:
    """What is refused, and what is only told."""
    found = changes(_deployment(before), _deployment(after))
    refused = [str(change) for change in found if change.refused]
    told = [str(change) for change in found if not change.refused]
    assert [*map(str, found)] == refused + told, "what is refused comes first"
    return refused, told


def _lines(builder: StreamsBuilder, topic: str = "lines") -> Any:
    return builder.stream(topic, key=serdes.string, value=serdes.string)


def _count(**options: Any) -> Write:
    return lambda builder: _lines(builder).group_by_key().count(**options)


def _filtered_count(**options: Any) -> Write:
    return lambda b: _lines(b).filter(lambda k, v: True).group_by_key().count(**options)


def _by_word(name: str | None, store: str | None = "counts", **options: Any) -> Write:
    def write(builder: StreamsBuilder) -> None:
        grouped = _lines(builder).group_by(
            lambda _, word: word, key=serdes.string, name=name, **options
        )
        grouped.count(store=store)

    return write


def test_rows_that_lie_otherwise_are_not_read() -> None:
    def table(store: Materialized) -> Write:
        return lambda builder: builder.table("in", store=store)

    refused, _ = _changes(
        table(Materialized("rows")), table(Materialized("rows", history=timedelta(days=1)))
    )
    (found,) = refused
    assert found == (
        "store rows has rows of a plain store and would read them as a versioned store: "
        "rename the store, or reset the application"
    )


def test_a_description_that_says_no_layout_is_of_plain_stores() -> None:
    store = DeployedStore("s", 0, "count", "json", "long", "rocksdb", True, ("in",))
    plain = asdict(store)
    del plain["layout"], plain["fixed"], plain["unrecorded"]
    text = json.dumps({"format": 1, "stores": [plain], "topics": []}).encode()
    read = Deployment.decode(base64.b85encode(zlib.compress(text)).decode())
    assert read == Deployment((store,))
    assert store.layout == "plain"


def test_the_same_program_with_other_functions_changes_nothing() -> None:
    def write(step: Callable[[str], str]) -> Write:
        return lambda b: _lines(b).map_values(step).group_by_key().count()

    assert _changes(write(str.upper), write(str.lower)) == ([], [])


def test_a_step_in_front_of_a_named_store_changes_nothing() -> None:
    assert _changes(_count(store="counts"), _filtered_count(store="counts")) == ([], [])


def test_a_store_whose_number_shifts_is_refused_with_the_name_to_give_it() -> None:
    (refused,), told = _changes(_count(), _filtered_count())
    old, new = (f"KSTREAM-AGGREGATE-STATE-STORE-000000000{number}" for number in (1, 2))
    assert f"store {old} is called {new} now" in refused
    assert f'store="{old}"' in refused
    assert told == []


def test_the_way_out_of_a_shifted_number_is_one() -> None:
    name = _deployment(_count()).stores[0].name
    assert _changes(_count(), _filtered_count(store=name)) == ([], [])


def test_of_two_stores_whose_numbers_shift_both_are_refused() -> None:
    def write(in_front: bool) -> Write:
        def written(builder: StreamsBuilder) -> None:
            grouped = (
                _lines(builder).filter(lambda k, v: True) if in_front else _lines(builder)
            ).group_by_key()
            grouped.count()
            grouped.reduce(max)

        return written

    refused, told = _changes(write(False), write(True))
    assert len(refused) == 2
    assert "KSTREAM-REDUCE" in refused[1]
    assert told == []


def test_a_store_that_is_given_a_name_of_its_own_begins_empty_too() -> None:
    (refused,), _ = _changes(_count(), _count(store="counts"))
    assert "is called counts now, so its state begins empty" in refused


def test_a_generated_name_that_another_step_takes_over_is_refused() -> None:
    """The numbers are equal, and the rows are not."""
    (refused,), _ = _changes(
        lambda b: _lines(b, "orders").group_by_key().count(),
        lambda b: _lines(b, "clicks").group_by_key().count(),
    )
    assert "downstream of orders and now belongs to an operator downstream of clicks" in refused


def test_a_named_store_may_read_something_else() -> None:
    assert _changes(
        lambda b: _lines(b, "orders").group_by_key().count(store="counts"),
        lambda b: _lines(b, "orders-2").group_by_key().count(store="counts"),
    ) == ([], [])


def test_a_store_that_is_new_or_gone_is_told() -> None:
    def both(builder: StreamsBuilder) -> None:
        grouped = _lines(builder).group_by_key()
        grouped.count(store="counts")
        grouped.reduce(max, store="largest")

    refused, (told,) = _changes(_count(store="counts"), both)
    assert (refused, "largest is new and starts empty" in told) == ([], True)
    refused, (told,) = _changes(both, _count(store="counts"))
    assert refused == []
    assert "largest is gone; its topic <application.id>-largest-changelog stays" in told
    found = changes(
        _deployment(both), _deployment(_count(store="counts")), application_id="word-count"
    )
    assert "its topic word-count-largest-changelog stays" in str(found[0])


def test_the_topics_are_called_by_their_names_where_a_start_says_it() -> None:
    cluster, log = _Offsets(), EventLog()
    for stores in (("a", "b"), ("a",)):
        builder = StreamsBuilder()
        lines = _lines(builder).group_by_key()
        for store in stores:
            lines.count(store=store)
        deployed = DeployedTopology(CONFIG, plan_application(builder.build(), CONFIG), cluster, log)
        deployed.check()
        assert deployed.keep()
    assert "its topic a-b-changelog stays" in str(log.events)


def test_a_store_that_was_there_before_the_last_version_does_not_begin_empty() -> None:
    """Its topic is still there, and has what was counted before the last version."""
    _, (gone, back) = _changes(_reduced("sums"), _count(store="counts"))
    assert "store sums is gone" in gone
    older = "or with the rows that an older version has left in <application.id>-counts-changelog"
    assert f"store counts is new and starts empty, {older}, after input" in back
    (refused,), _ = _changes(_count(store="sums"), _count(store="counts"))
    assert f"now, so its state begins empty, {older}: give" in refused
    unlogged = Materialized("counts", logged=False)
    _, (_, back) = _changes(_reduced("sums"), _count(store=unlogged))
    assert "is new and starts empty, after input" in back


def test_the_way_back_from_another_fold_says_what_is_known_of_the_rows() -> None:
    """A version that started and failed is the last one, and has written none."""
    refused = _changes(_reduced("s"), _count(store="s"))[0][-1]
    assert refused.startswith("store s was filled by reduce in the version that started last, and")
    assert "is filled by count now" in refused
    assert "if that version has written no row, for example because it failed" in refused
    assert "were made by" not in refused


def _reduced(store: str) -> Write:
    return lambda builder: _lines(builder).group_by_key().reduce(max, store=store)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"value": serdes.json}, "values"), ({"key": serdes.json}, "keys")],
    ids=["value", "key"],
)
def test_rows_of_another_serde_are_refused(changed: dict[str, Any], said: str) -> None:
    (refused,), _ = _changes(_count(store="counts"), _count(store="counts", **changed))
    assert f"the {said} of store counts were written by serde" in refused
    assert refused.split(" are read by ")[1].startswith("json, which ")
    old = "string" if said == "keys" else "long"
    assert f": keep serdes.{old} there, or rename the store, or reset the appl" in refused
    assert "make sure that it can read" not in refused


def test_whether_a_serde_of_the_users_own_reads_the_old_bytes_is_theirs_to_know() -> None:
    """Else a program could not be put right that met bytes which its serde cannot read."""
    own: Any = serdes.serde_from(
        serialize=str.encode,
        deserialize=lambda data: data.decode(errors="replace"),
        name="tolerant",
    )
    refused, (told,) = _changes(_count(store="counts"), _count(store="counts", key=own))
    assert refused == []
    assert "written by serde string and are read by tolerant" in told
    refused, told = _changes(
        _by_word("by-word", value=serdes.string), _by_word("by-word", value=own)
    )
    assert refused == []
    assert "written by serde string and are read by tolerant: make sure that it can read" in told[0]


def test_another_default_serde_counts_where_the_program_says_none() -> None:
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().reduce(max, store="largest")
    topology = builder.build()
    other = replace(CONFIG, default_value_serde=serdes.string)
    one, two = (Deployment.of(plan_application(topology, c), c) for c in (CONFIG, other))
    (refused,) = (change for change in changes(one, two) if change.refused)
    assert "written by serde json and are read by string" in refused.what


@pytest.mark.parametrize("logged", [True, False])
def test_a_store_that_gains_or_loses_its_changelog_is_refused(logged: bool) -> None:
    stores = [Materialized("counts", logged=choice) for choice in (logged, not logged)]
    (refused,), _ = _changes(_count(store=stores[0]), _count(store=stores[1]))
    assert "so its state begins empty" in refused


def test_a_logged_store_may_be_kept_elsewhere_and_another_not() -> None:
    disk, memory = Materialized("counts"), Materialized("counts", kind="memory")
    assert _changes(_count(store=disk), _count(store=memory)) == ([], [])
    disk, memory = replace(disk, logged=False), replace(memory, logged=False)
    (refused,), _ = _changes(_count(store=disk), _count(store=memory))
    assert "has no changelog" in refused


@pytest.mark.parametrize("logged", [True, False])
def test_a_sub_topology_whose_number_moves_restores_what_has_a_changelog(logged: bool) -> None:
    store = Materialized("counts", logged=logged)

    def moved(builder: StreamsBuilder) -> None:
        builder.stream("first").to("out")
        _lines(builder).group_by_key().count(store=store)

    refused, told = _changes(_count(store=store), moved)
    (text,) = told if logged else refused
    assert "0_*" in text
    assert "1_*" in text
    assert len(refused) + len(told) == 1


def test_a_repartition_topic_whose_number_shifts_is_refused() -> None:
    def write(in_front: bool) -> Write:
        def written(builder: StreamsBuilder) -> None:
            lines = _lines(builder).filter(lambda k, v: True) if in_front else _lines(builder)
            lines.repartition().to("out")

        return written

    (refused,), _ = _changes(write(False), write(True))
    assert (
        "repartition topic <application.id>-KSTREAM-REPARTITION-0000000001-repartition is called"
        in refused
    )
    assert "records that are still in the old topic are lost" in refused


def test_a_repartition_topic_that_is_gone_is_refused_until_it_is_read() -> None:
    (refused,), _ = _changes(_by_word("by-word"), _count(store="counts"))
    assert "<application.id>-by-word-repartition is not read any more" in refused
    assert "read it to its end" in refused


def test_records_between_two_steps_keep_their_serdes() -> None:
    (refused,), _ = _changes(
        _by_word("by-word", value=serdes.string), _by_word("by-word", value=serdes.json)
    )
    assert refused == (
        "the values of repartition topic <application.id>-by-word-repartition were written by "
        "serde string and are read by json, which cannot read their bytes: keep serdes.string "
        "there, or let the deployed version read it to its end, with its input stopped, and "
        "accept the change then"
    )


def test_a_repartition_topic_that_is_new_is_no_matter() -> None:
    refused, _ = _changes(_count(store="counts"), _by_word("by-word"))
    assert refused == []


def test_a_description_is_read_as_it_was_written() -> None:
    deployment = _deployment(_by_word("by-word"))
    assert deployment.stores
    assert deployment.topics
    assert Deployment.decode(deployment.encode()) == deployment


def test_what_a_description_says_beside_is_left_aside() -> None:
    """Notes of other versions say more: what tasks were shared out by was one of it."""
    deployment = _deployment(_by_word("by-word"))
    plain = json.loads(zlib.decompress(base64.b85decode(deployment.encode().removesuffix("."))))
    plain["shares"] = [[["app-by-word-repartition", 4], ["lines", 4]]]
    for one in (*plain["stores"], *plain["topics"]):
        one["colour"] = "blue"
    text = base64.b85encode(zlib.compress(json.dumps(plain).encode())).decode() + "."
    assert text != deployment.encode()
    assert Deployment.decode(text) == deployment


@pytest.mark.parametrize("text", ["", "AgAAAAAAAAAA", "no text of ours"])
def test_what_is_no_description_reads_as_none(text: str) -> None:
    assert Deployment.decode(text) is None


def _large(stores: int, word: Callable[[int], str]) -> Deployment:
    made = DeployedStore("", 0, "count", "string", "long", "rocksdb", True, ("lines",))
    return Deployment(tuple(replace(made, name=word(n), sub=n) for n in range(stores)))


def test_sixty_stores_fit_beside_an_offset() -> None:
    large = _large(60, lambda n: f"store-{n}-{secrets.token_hex(12)}")
    assert Deployment.decode(large.encode()) == large


def test_what_does_not_fit_is_not_cut() -> None:
    with pytest.raises(ValueError, match="of 4095"):
        _large(500, lambda _: secrets.token_hex(12)).encode()


def test_the_code_of_a_change_is_its_own() -> None:
    deployments = [_deployment(w) for w in (_count(), _filtered_count(), _count(store="counts"))]
    codes = {change_code(a, b) for a in deployments for b in deployments}
    assert len(codes) == 9


# -- kinds of steps, windows and schemas ----------------------------------------------------------

MINUTE = timedelta(minutes=1)


def _windowed(windows: Any, how: str = "count", **options: Any) -> Write:
    def write(builder: StreamsBuilder) -> None:
        grouped = builder.stream("lines", key=serdes.string, value=serdes.long).group_by_key()
        folds: dict[str, Callable[[Any], Any]] = {
            "count": lambda g: g.count(store=Materialized("s", **options), value=serdes.long),
            "reduce": lambda g: g.reduce(max, store=Materialized("s", **options)),
        }
        folds[how](grouped.windowed_by(windows))

    return write


def _refused(before: Write, after: Write) -> str:
    (found,), _ = _changes(before, after)
    return found


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (TimeWindows(size=MINUTE), TimeWindows(size=2 * MINUTE, advance=MINUTE), "size"),
        (TimeWindows(size=2 * MINUTE), TimeWindows(size=2 * MINUTE, advance=MINUTE), "advance"),
        (
            SlidingWindows(time_difference=MINUTE),
            SlidingWindows(time_difference=2 * MINUTE),
            "difference",
        ),
        (
            SessionWindows(inactivity_gap=MINUTE),
            SessionWindows(inactivity_gap=2 * MINUTE),
            "gap",
        ),
        (UnlimitedWindows(start_ms=1), UnlimitedWindows(start_ms=2), "start"),
    ],
)
def test_other_windows_are_refused(before: Any, after: Any, said: str) -> None:
    assert f"the {said} of store s was " in _refused(_windowed(before), _windowed(after))
    assert _changes(_windowed(after), _windowed(after)) == ([], [])


@pytest.mark.parametrize(
    "windows",
    [
        TimeWindows(size=MINUTE),
        SlidingWindows(time_difference=MINUTE),
        SessionWindows(inactivity_gap=MINUTE),
    ],
)
def test_another_fold_over_the_same_windows_is_refused(windows: Any) -> None:
    found = _refused(_windowed(windows), _windowed(windows, "reduce"))
    assert "store s was filled by count in " in found
    assert "is filled by reduce in " in found


def test_sliding_windows_instead_of_tumbling_ones_are_refused() -> None:
    before, after = TimeWindows(size=MINUTE), SlidingWindows(time_difference=MINUTE)
    assert "filled by count in windows" in _refused(_windowed(before), _windowed(after))


def test_another_fold_of_a_whole_stream_is_refused() -> None:
    def reduced(builder: StreamsBuilder) -> None:
        stream = builder.stream("lines", key=serdes.string, value=serdes.json)
        stream.group_by_key().reduce(max, store="s")

    found = _refused(lambda b: _counted(b, value=serdes.json), reduced)
    assert found.startswith("store s was filled by count in the version that started last, and is ")
    assert "is filled by reduce now, which would misread the rows that the other" in found


def _counted(builder: StreamsBuilder, **options: Any) -> None:
    stream = builder.stream("lines", key=serdes.string, value=serdes.json)
    stream.group_by_key().count(store="s", **options)


def _within(ms: int | None, **known: Any) -> Deployment:
    """A deduplication that says its interval, or does not."""
    present = _deployment(lambda b: _lines(b).deduplicate(within=MINUTE, store="s"))
    (store,) = present.stores
    spans = {**dict(store.spans), "within": ms}
    said = tuple((name, ms) for name, ms in spans.items() if ms is not None)
    return Deployment((replace(store, spans=said, **known),))


@pytest.mark.parametrize(
    ("before", "after", "refused", "said"),
    [
        (_within(10), _within(11), True, "was 10 ms and is 11 ms"),
        (_within(10), _within(None), True, "was 10 ms and is not given"),
        (_within(10), _within(None, fixed=frozenset()), False, "was 10 ms and is not given"),
        (_within(None), _within(10), False, "was not given and is 10 ms"),
        (_within(None), _within(10, unrecorded=(("within", 5),)), True, "was 5 ms and is 10 ms"),
    ],
    ids=["other", "gone", "gone and not fixed", "new", "new, with another one before"],
)
def test_a_span_that_one_version_alone_has_is_told(
    before: Deployment, after: Deployment, refused: bool, said: str
) -> None:
    (found,) = changes(before, after)
    assert (found.refused, said in found.what) == (refused, True), found
    assert "windows" not in found.what


def test_a_span_that_is_new_and_changes_nothing_is_not_told() -> None:
    now = _within(10, unrecorded=(("within", 10),))
    assert changes(_within(None), now) == []
    assert changes(now, now) == []
    assert Deployment.decode(now.encode()) == now


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_another_grace_period_and_retention_are_told(before: int, after: int) -> None:
    def windows(minutes: int) -> Write:
        return _windowed(
            TimeWindows(size=MINUTE, grace=minutes * MINUTE), retention=(1 + minutes) * MINUTE
        )

    refused, told = _changes(windows(before), windows(after))
    assert refused == []
    assert [change.split(" was ")[0] for change in told] == [
        "the grace of store s",
        "the retention of store s",
    ]


def test_windows_of_another_size_in_a_processors_store_are_refused() -> None:
    def processed(size: timedelta) -> Write:
        store = Stores.window(
            "s", key=serdes.string, value=serdes.long, size=size, retention=10 * MINUTE
        )
        return lambda b: _lines(b).process(lambda: Processor(), stores=[store])

    assert "the size of store s was " in _refused(processed(MINUTE), processed(2 * MINUTE))


def test_a_description_without_steps_spans_and_schemas_refuses_nothing() -> None:
    for write in (
        _windowed(TimeWindows(size=MINUTE)),
        _windowed(SessionWindows(inactivity_gap=MINUTE)),
        _count(store="s"),
        _table(Order),
        lambda b: b.table("lines", key=serdes.string, value=serdes.long, store="s"),
    ):
        present = _deployment(write)
        older = Deployment(
            tuple(
                replace(store, step="", spans=(), key_schema="", value_schema="")
                for store in present.stores
            ),
            tuple(replace(topic, key_schema="", value_schema="") for topic in present.topics),
        )
        read = Deployment.decode(older.encode())
        assert read == older
        assert changes(older, present) == []


@dataclass
class Part:
    n: int


@dataclass
class Order:
    id: int
    parts: list[Part]
    note: str | None = None


@dataclass
class WithTax(Order):
    tax: float = field(kw_only=True)


@dataclass
class WithDefault(Order):
    tax: float = 0.0


@dataclass
class WithoutNote:
    id: float
    parts: list[Part]


@dataclass
class WithNote:
    id: int
    parts: list[Part]
    note: str


@dataclass
class BigPart:
    n: int
    size: int


@dataclass
class WithBigParts:
    id: int
    parts: list[BigPart]


def _table(cls: Any) -> Write:
    orders = serdes.json_of(cls, name="orders")
    return lambda b: b.table("in", key=serdes.string, value=orders, store="s")


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (WithTax, "field `$.tax` is new and has no default"),
        (WithNote, "`$.note` could be null, and no longer can"),
        (WithBigParts, "field `$.parts[...].size` is new and has no default"),
        (Part, "field `$.n` is new and has no default"),
    ],
)
def test_a_class_that_cannot_read_the_old_rows_is_refused_with_the_field(
    cls: Any, said: str
) -> None:
    assert said in _refused(_table(Order), _table(cls))


def test_a_class_that_reads_the_old_rows_passes() -> None:
    assert _changes(_table(Order), _table(WithDefault)) == ([], [])


@dataclass
class Renamed:
    id: int
    parts: list[Part]
    notes: str | None = None


@dataclass
class Tree:
    size: int
    branches: list[Tree]
    left: Tree | None = None


@dataclass
class Bush:
    branches: list[Bush]
    left: Bush | None = None


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        (Order, Renamed, "`$.note`"),
        (Order, WithoutNote, "`$.note`"),
        (
            WithBigParts,
            make_dataclass("Few", [("id", int), ("parts", list[Part])]),
            "`$.parts[...].size`",
        ),
        (Tree, Bush, "`$.size`"),
    ],
)
def test_a_field_that_is_gone_is_told_with_what_becomes_of_its_values(
    before: Any, after: Any, field: str
) -> None:
    refused, told = _changes(_table(before), _table(after))
    assert refused == []
    (note,) = told
    assert f"the values of store s have no field {field} any more" in note
    assert "dropped at the next write of each row" in note


def test_a_start_logs_a_field_that_is_gone_as_a_warning() -> None:
    log, cluster = EventLog(), _Offsets()
    for cls in (Order, Renamed):
        builder = StreamsBuilder()
        _table(cls)(builder)
        plans = plan_application(builder.build(), CONFIG)
        deployed = DeployedTopology(CONFIG, plans, cluster, log)
        deployed.check()
        assert deployed.keep()
    (event,) = [e for e in log.events if e["event"] == "topology_changed"]
    assert event["level"] == "warning"
    assert "$.note" in event["change"]
    assert "store s" in event["change"]


def _started(cluster: _Offsets, log: EventLog, write: Write, **more: str) -> DeployedTopology:
    builder = StreamsBuilder()
    write(builder)
    config = StreamsConfig.parse(
        {"application.id": "a", "bootstrap.servers": "localhost:1", **more}
    )
    return DeployedTopology(config, plan_application(builder.build(), config), cluster, log)


def test_an_accepted_change_is_logged_as_accepted_and_without_advice() -> None:
    log, cluster = EventLog(), _Offsets()
    assert _started(cluster, log, _count(store="old")).keep()
    with pytest.raises(TopologyChangedError) as raised:
        _started(cluster, log, _count(store="new")).check()
    (refused,) = [e for e in log.events if e["event"] == "topology_changed"]
    assert (refused["refused"], refused["accepted"]) == (True, False)
    assert 'store="old"' in refused["change"]
    accept = {"topology.change.accept": raised.value.code}
    _started(cluster, log, _count(store="new"), **accept).check()
    accepted = [e for e in log.events if e["event"] == "topology_changed"][-1]
    assert (accepted["refused"], accepted["accepted"]) == (False, True)
    assert "its state begins empty" in accepted["change"]
    assert "give it the name" not in accepted["change"]


def test_a_deployed_topology_that_has_stored_nothing_binds_nothing() -> None:
    log, cluster = EventLog(), _Offsets()
    assert _started(cluster, log, _count(store="old")).keep()
    _started(cluster, log, _count(store="new")).check(lambda _: True)
    (event,) = [e for e in log.events if e["event"] == "topology_changed"]
    assert (event["refused"], event["accepted"]) == (False, True)


def test_another_application_with_the_same_id_is_advised_to_take_another() -> None:
    def other(builder: StreamsBuilder) -> None:
        words = builder.stream("words", key=serdes.string, value=serdes.string)
        words.group_by_key().count(store="per-word")

    cluster = _Offsets()
    assert _started(cluster, EventLog(), _count(store="counts")).keep()
    advice = "If this is another application, give it its own application.id"
    with pytest.raises(TopologyChangedError, match=advice):
        _started(cluster, EventLog(), other).check()
    with pytest.raises(TopologyChangedError) as raised:
        _started(cluster, EventLog(), _count(store="renamed")).check()
    assert advice not in str(raised.value)


def test_what_others_commit_to_the_group_of_the_description_is_not_counted_on_from() -> None:
    """Else the offset of one's own text would be moved by them, and the text not be found."""
    builder, cluster = StreamsBuilder(), _Offsets()
    _table(Order)(builder)
    plans = plan_application(builder.build(), CONFIG)
    foreign = TopicPartition("sentences", 3)
    cluster.kept[foreign] = CommittedOffset(33_192, "not ours")
    deployed = DeployedTopology(CONFIG, plans, cluster, EventLog())
    assert deployed.read() is None
    assert deployed.keep()
    assert [o.offset for place, o in cluster.kept.items() if place != foreign] == [1]
    assert deployed.read() == deployed.present


def test_a_class_inside_of_itself_is_compared_once() -> None:
    @dataclass
    class Sized:
        size: float
        branches: list[Part]
        left: Part | None = None

    assert _changes(_table(Tree), _table(Tree)) == ([], [])
    assert "field `$.branches[...].n` is new" in _refused(_table(Tree), _table(Sized))


def test_a_mapping_keeps_the_fields_that_a_class_had() -> None:
    @dataclass
    class Numbers:
        one: int

    assert _changes(_table(Numbers), _table(dict[str, int])) == ([], [])


def test_keys_of_another_class_do_not_find_the_old_rows() -> None:
    def keyed(cls: Any) -> Write:
        key = serdes.json_of(cls, name="keys")
        return lambda b: b.stream("in", key=key).group_by_key().count(store="s")

    refused, told = _changes(keyed(Order), keyed(WithoutNote))
    assert told == []
    assert "the keys of store s have no field `$.note` any more" in refused[0]
    refused, told = _changes(keyed(Order), keyed(WithDefault))
    assert refused == []
    assert "the keys of store s have a new field `$.tax`" in told[0]


ID = {"name": "id", "type": "long"}
TAX = {"name": "tax", "type": "double"}


def _avro(make: Callable[[Any], Any], *fields: Any) -> Write:
    made = make({"type": "record", "name": "Order", "fields": list(fields)})
    return lambda b: b.table("in", key=serdes.string, value=made, store="s")


def test_a_field_of_registered_avro_without_a_default_is_refused_with_its_name() -> None:
    def registered(schema: Any) -> Any:
        return avro.registered(schema, registry=avro.MemoryRegistry())

    before = _avro(registered, ID)
    assert "tax" in _refused(before, _avro(registered, ID, TAX))
    assert _changes(before, _avro(registered, ID, {**TAX, "default": 0.0})) == ([], [])


def test_a_field_of_registered_avro_that_is_gone_is_told() -> None:
    def registered(schema: Any) -> Any:
        return avro.registered(schema, registry=avro.MemoryRegistry())

    nested = {"type": "record", "name": "Part", "fields": [ID, {**TAX, "default": 0.0}]}
    part = {"name": "part", "type": ["null", nested]}
    less = {"name": "part", "type": ["null", {**nested, "fields": [ID]}]}
    for fields, after, gone in (
        ((ID, TAX), (ID,), "`$.tax`"),
        ((ID, part), (ID, less), "`$.part.tax`"),
    ):
        refused, told = _changes(_avro(registered, *fields), _avro(registered, *after))
        assert refused == []
        assert f"the values of store s have no field {gone} any more" in told[0]
    renamed = {**TAX, "name": "vat", "aliases": ["tax"]}
    assert _changes(_avro(registered, ID, TAX), _avro(registered, ID, renamed)) == ([], [])


def _join(kind: str, **options: Any) -> Write:
    def write(builder: StreamsBuilder) -> None:
        windows = JoinWindows(time_difference=MINUTE)
        join = getattr(_lines(builder), kind)
        join(_lines(builder, "others"), "{}{}".format, windows, **options)

    return write


@pytest.mark.parametrize("options", [{"store": "op"}, {}])
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("join", "left_join", "was an inner join and is a left join"),
        ("left_join", "join", "was a left join and is an inner join"),
        ("join", "outer_join", "was an inner join and is an outer join"),
        ("outer_join", "left_join", "was an outer join and is a left join"),
    ],
)
def test_a_join_of_another_kind_is_one_refusal_that_no_name_undoes(
    before: str, after: str, said: str, options: dict[str, Any]
) -> None:
    refused, told = _changes(_join(before, **options), _join(after, **options))
    assert told == []
    (text,) = refused
    assert said in text
    assert "starts with empty windows: no name keeps them" in text
    assert "rename the join" in text
    assert "reset the application" in text


def test_a_join_under_another_name_is_told_the_name_that_the_join_takes() -> None:
    refused, _ = _changes(_join("join", store="op"), _join("join", store="other"))
    assert len(refused) == 2
    assert all('give the join the name that is deployed, store="op"' in text for text in refused)


def test_bare_avro_is_read_with_its_very_schema() -> None:
    before = _avro(avro.serde, ID)
    found = _refused(before, _avro(avro.serde, ID, {**TAX, "default": 0.0}))
    assert "field 'tax' differs" in found
    assert _changes(before, _avro(avro.serde, {**ID, "doc": "its number"})) == ([], [])


def test_serdes_inside_of_others_are_compared_too() -> None:
    def windowed(key: Any) -> Write:
        def write(builder: StreamsBuilder) -> None:
            grouped = builder.stream("in", key=key, value=serdes.json).group_by_key()
            grouped.windowed_by(TimeWindows(size=MINUTE)).count(store="s")

        return write

    found = _refused(windowed(serdes.string), windowed(serdes.long))
    assert "not all keys of store s can be read any more: serde string wrote them" in found


def test_of_schemas_that_do_not_fit_a_digest_tells_that_they_have_changed() -> None:
    def large(*more: tuple[str, Any]) -> Write:
        names = [f"field_{secrets.token_hex(20)}" for _ in range(200)]
        return _table(make_dataclass("Large", [*((name, int) for name in names), *more]))

    present = _deployment(large())
    with pytest.raises(ValueError, match="bytes of offset metadata"):
        present.encode()
    kept = Deployment.decode(present.fitting().encode())
    assert kept is not None
    assert kept.stores[0].value_schema.startswith("#")
    assert changes(kept, present) == []
    (told,) = changes(kept, _deployment(large(("tax", int))))
    assert not told.refused
    assert "was too large to be stored" in told.what


class _Offsets:
    """The offsets of all groups, in memory."""

    def __init__(self) -> None:
        self.kept: dict[TopicPartition, CommittedOffset] = {}

    def committed(self, _: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        del decided
        return dict(self.kept)

    def committed_at(
        self, _: str, places: Iterable[TopicPartition], *, decided: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        del decided
        return {place: self.kept[place] for place in places if place in self.kept}

    def set_offsets(self, _: str, offsets: Any) -> None:
        self.kept.update(offsets)


def test_what_does_not_fit_is_said_and_the_rest_is_kept() -> None:
    def deployed(size: timedelta) -> DeployedTopology:
        names = random.Random(1)
        fields = [(f"field_{names.getrandbits(160):x}", int) for _ in range(200)]

        def write(builder: StreamsBuilder) -> None:
            _table(make_dataclass("Large", fields))(builder)
            counted = _lines(builder).group_by_key().windowed_by(TimeWindows(size=size))
            counted.count(store="counts")

        builder = StreamsBuilder()
        write(builder)
        plans = plan_application(builder.build(), CONFIG)
        return DeployedTopology(CONFIG, plans, offsets, log)

    offsets, log = _Offsets(), EventLog()
    assert deployed(MINUTE).keep()
    assert [event["event"] for event in log.events] == ["topology_shortened"]
    assert deployed(MINUTE).keep()
    assert [committed.offset for committed in offsets.kept.values()] == [1], "it is the same"
    deployed(MINUTE).check()
    with pytest.raises(TopologyChangedError, match="the size of store counts was 60000 ms"):
        deployed(2 * MINUTE).check()


# -- tables outside of Kafka -------------------------------------------------------------------


def _kept(name: str = "keep", *, direct: bool, topic: str = "lines") -> Write:
    return lambda b: _lines(b, topic).to_sink(MemorySink(), name=name, direct=direct)


def test_a_sink_that_reads_directly_from_now_on_leaves_its_topic_unread() -> None:
    refused, _ = _changes(_kept(direct=False), _kept(direct=True))
    (change,) = refused
    assert change.startswith("repartition topic <application.id>-keep-repartition is not read any")


def test_a_sink_that_has_a_topic_in_front_from_now_on_begins_where_the_group_is() -> None:
    (change,), _ = _changes(_kept(direct=True), _kept(direct=False))
    assert change == (
        "to_sink('keep') read lines itself, and reads an internal topic now, so it starts at the "
        "committed offset of the group, and may repeat rows that were written since the last "
        "commit: keep it as it is, or stop the deployed version in order, so that its last "
        "commit has all rows, and accept the change"
    )


def test_a_sink_that_reads_directly_keeps_its_name() -> None:
    (change,), _ = _changes(_kept(direct=True), _kept("kept", direct=True))
    assert change.startswith("to_sink('keep'), which reads lines itself, is called 'kept' now, so")


def test_sinks_that_read_directly_may_stay_go_and_come() -> None:
    other = _kept("kept", direct=True, topic="words")
    for before, after in [
        (_kept(direct=True), _kept(direct=True)),
        (_kept(direct=True), other),
        (_count(store="counts"), _both(_count(store="counts"), other)),
    ]:
        assert _changes(before, after)[0] == []


def _both(one: Write, other: Write) -> Write:
    def write(builder: StreamsBuilder) -> None:
        one(builder)
        other(builder)

    return write


def test_sinks_are_kept_with_the_description_and_are_part_of_the_code_of_a_change() -> None:
    front, direct = _deployment(_kept(direct=False)), _deployment(_kept(direct=True))
    renamed = _deployment(_kept("kept", direct=True))
    for one in (front, direct, renamed, direct.fitting()):
        assert Deployment.decode(one.encode()) == one
    codes = {change_code(direct, front), change_code(direct, renamed), change_code(front, direct)}
    assert len(codes) == 3


def _two_counts(optimization: str) -> Deployment:
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serdes.string, value=serdes.string)
    keyed = lines.select_key(lambda _, line: line)
    for name in ("a", "b"):
        keyed.group_by_key(name=f"by-{name}").count(store=name)
    config = StreamsConfig.parse(
        {
            "application.id": "a",
            "bootstrap.servers": "localhost:1",
            "topology.optimization": optimization,
        }
    )
    return Deployment.of(plan_application(builder.build(), config), config)


def test_a_store_that_another_repartition_topic_fills_now_loses_what_waits_in_the_old_one() -> None:
    """Both topics are read in both versions, or the one that stays is, but not for the store."""
    merged, apart = _two_counts("merge.repartition.topics"), _two_counts("none")
    assert [topic.name for topic in merged.topics] == ["by-a-repartition"]
    (refused,) = [str(change) for change in changes(merged, apart) if change.refused]
    assert refused == (
        "store b was filled from repartition topic <application.id>-by-a-repartition and is filled "
        "from by-b-repartition now, and records that are still in the old topic are lost for it: "
        "let the deployed version read it to its end, with its input stopped, and accept the "
        "change then"
    )
    (gone,) = [str(change) for change in changes(apart, merged) if change.refused]
    assert "by-b-repartition is not read any more, and records that are still in it" in gone
    assert not [change for change in changes(apart, apart) if change.refused]


def test_a_table_that_is_joined_no_more_loses_nothing_of_the_others_topic() -> None:
    def write(builder: StreamsBuilder, *, joined: bool) -> None:
        rates = builder.table("rates", key=serdes.string, value=serdes.string, store="rates")
        lines = builder.stream("lines", key=serdes.string, value=serdes.string)
        keyed = lines.select_key(lambda _, line: line)
        grouped = keyed.group_by_key(name="by-line", key=serdes.string)
        counts = grouped.count(store="counts")
        if joined:
            counts.join(rates, lambda count, rate: (count, rate), store="joined")

    refused, told = _changes(
        lambda builder: write(builder, joined=True), lambda builder: write(builder, joined=False)
    )
    assert refused == []
    assert any("store joined is gone" in one for one in told), told


def _suppressed(name: str | None, *, first: bool = False) -> Write:
    def write(builder: StreamsBuilder) -> None:
        stream = _lines(builder)
        stream = stream.filter(lambda k, v: True) if first else stream
        windows = TimeWindows(size=timedelta(hours=1))
        counts = stream.group_by_key().windowed_by(windows).count(store="counts")
        counts.suppress(Suppressed.until_window_closes(), name=name)

    return write


def test_a_suppression_under_another_name_is_given_its_own_argument() -> None:
    (refused,), _ = _changes(_suppressed("final"), _suppressed("other"))
    assert refused.endswith('give it the name that is deployed, name="final"')


def test_no_name_restores_a_suppression_without_a_name() -> None:
    (refused,), _ = _changes(_suppressed(None), _suppressed(None, first=True))
    assert "no name gives this operator this store back: keep the number of operators" in refused
