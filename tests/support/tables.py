"""What tests of tables have in common: records of two tables, and runs that are disturbed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, get_args

from hypothesis import strategies as st

from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.topology import KTable, Materialized, StreamsBuilder, Topology, serdes

EXACTLY_ONCE: dict[str, object] = {"processing.guarantee": "exactly_once_v2"}
SETTINGS: list[dict[str, object]] = [
    EXACTLY_ONCE,
    {**EXACTLY_ONCE, "statestore.cache.max.bytes": 0},
]
"""With caches, and without."""

TOPICS = ("left", "right")
Table = KTable[Any, Any]
Action = tuple[Any, ...]
Rows = dict[str, Any]

ROWS = st.tuples(
    st.sampled_from(TOPICS), st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 3))
)
SENDS = st.tuples(st.just("send"), ROWS)
DISTURBANCES = st.one_of(
    st.just(("commit",)),
    st.just(("commit",)),
    st.just(("abort",)),
    st.just(("restart",)),
    st.tuples(st.just("crash"), st.none(), st.booleans()),
    st.tuples(st.just("crash"), st.sampled_from(get_args(CrashPoint)), st.booleans()),
)
ACTIONS = st.lists(st.one_of(SENDS, SENDS, SENDS, DISTURBANCES), max_size=24)


def two_tables(
    build: Callable[[Table, Table], Table | None], *, cached: bool | tuple[bool, bool] = True
) -> Topology:
    """A topology of what is made of two tables; a table that comes of it is written to ``out``.

    Args:
        cached: both of them, or each one.
    """
    builder = StreamsBuilder()
    each = cached if isinstance(cached, tuple) else (cached, cached)
    stores = [
        None if own else Materialized(f"{topic}-rows", cached=False)
        for topic, own in zip(TOPICS, each, strict=True)
    ]
    left, right = (
        builder.table(topic, key=serdes.string, store=store)
        for topic, store in zip(TOPICS, stores, strict=True)
    )
    made = build(left, right)
    if made is not None:
        made.to_stream().to("out")
    return builder.build()


def driver_of(topology: Topology, settings: dict[str, object], **options: Any) -> Any:
    """A driver whose keys are strings and whose values are JSON."""
    return TopologyTestDriver(topology, {"default.key.serde": "string", **settings}, **options)


def run(driver: TopologyTestDriver, actions: list[Action]) -> None:
    """Do all of them, and commit what is left."""
    for action in actions:
        match action:
            case ("send", (topic, key, value)):
                driver.input(topic).send(key, value)
            case ("commit",):
                driver.commit()
            case ("abort",):
                driver.abort()
            case ("restart",):
                driver.restart()
            case ("crash", at, keep):
                driver.crash(at, keep=keep)
    driver.commit()
    driver.commit()  # an armed crash may have ended the one before


def last_rows(actions: list[Action]) -> tuple[Rows, Rows]:
    """The rows of both tables in the end."""
    found: dict[str, Rows] = {topic: {} for topic in TOPICS}
    for name, *rest in actions:
        if name == "send":
            topic, key, value = rest[0]
            found[topic].pop(key, None)
            if value is not None:
                found[topic][key] = value
    return found["left"], found["right"]


def outputs(driver: TopologyTestDriver, topic: str = "out") -> dict[str, list[Any]]:
    """The values of each key, in their order."""
    found: dict[str, list[Any]] = defaultdict(list)
    for record in driver.output(topic).read_all():
        found[record.key].append(record.value)
    return dict(found)


def is_thinned(some: list[Any], every: list[Any]) -> bool:
    """Whether some are among all, in their order, with the same last one."""
    rest = iter(every)
    return all(any(one == other for other in rest) for one in some) and some[-1:] == every[-1:]
