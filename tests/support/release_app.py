"""Application whose state, topics and offsets each release stores in `tests/golden`.

It has every kind of store. Released versions read what this topology wrote, so the topology and the
inputs never change: another kind of store goes into another application.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from headrace.topology import (
    JoinWindows,
    Materialized,
    Processor,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    Window,
    Windowed,
    serdes,
)

APPLICATION_ID = "released"
PARTITIONS = 2
START_MS = 1_750_000_000_000
STEP_MS = 400
KEYS = 7
CITIES = ("Bern", "Oslo", "Rome")
RECORDS = {"before": 90, "after": 110}
"""Number of rounds of input before the state was stored, and after it."""

Part = Literal["before", "after"]


class Send(NamedTuple):
    """Input record."""

    topic: str
    key: str
    value: Any
    timestamp_ms: int


class Commit(NamedTuple):
    """Commit of everything; with `rounds`, of as many consecutive sub-topologies."""

    rounds: int | None = None


class Abort(NamedTuple):
    """Rollback of everything since the last commit, after which it is processed again."""


class Restart(NamedTuple):
    """Clean stop and start of the worker."""


class Wait(NamedTuple):
    """Passing of time, in which the records that were read leave the repartition topics."""

    seconds: int = 60


Step = Send | Commit | Abort | Restart | Wait


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class Visits(Processor[str, Any, str, Any]):
    """Processor with a key-value store, a window store and a session store."""

    stores = [
        Stores.timestamped_key_value("last-visit", key=serdes.string, value=serdes.json),
        Stores.window(
            "visit-amounts",
            size=_seconds(1),
            retention=_seconds(20),
            key=serdes.string,
            value=serdes.double,
            retain_duplicates=True,
        ),
        Stores.session(
            "visit-sessions", retention=_seconds(20), key=serdes.string, value=serdes.integer
        ),
        Stores.versioned("visit-versions", history=_seconds(20), key=serdes.string),
    ]

    def init(self, context: Any) -> None:
        self.context = context
        self.last = context.store("last-visit")
        self.amounts = context.store("visit-amounts")
        self.sessions = context.store("visit-sessions")
        self.versions = context.store("visit-versions")

    def process(self, record: Any) -> None:
        key, time, amount = record.key, record.timestamp, record.value["amount"]
        before = self.last.get(key)
        self.last.put(key, (record.value, time))
        self.amounts.put(key, float(amount), time)
        self.versions.put(key, record.value["id"], time)
        count = 1
        start = end = time
        for session, number in list(self.sessions.find_sessions(key, time - 3_000, time)):
            count += number
            start, end = min(start, session.window.start_ms), max(end, session.window.end_ms)
            self.sessions.remove(session)
        self.sessions.put(Windowed(key, Window(start, end)), count)
        then = self.versions.get(key, as_of=time - 5_000)
        answer = {
            "before": None if before is None else [before[0]["id"], before[1]],
            "sum": sum(value for _, value in self.amounts.fetch(key, time - 9_000, time)),
            "session": count,
            "then": None if then is None else then.value,
        }
        self.context.forward(record.with_value(answer))


def _total(_key: str, order: Any, total: Any) -> Any:
    return {"sum": total["sum"] + order["amount"], "last": order["id"]}


def release_topology() -> Topology:
    """Build the topology."""
    builder = StreamsBuilder()
    text, json = serdes.string, serdes.json
    accounts = builder.table("accounts", key=text, value=json, store="accounts")
    rates = builder.table(
        "rates", key=text, value=serdes.double, store=Materialized("rates", history=_seconds(30))
    )
    names = builder.global_table("names", key=text, value=text, store="names")
    orders = builder.stream("orders", key=text, value=json)
    payments = builder.stream("payments", key=text, value=json)

    grouped = orders.group_by_key()
    grouped.aggregate(lambda: {"sum": 0, "last": ""}, _total, store="totals").to_stream().to(
        "out-totals"
    )
    grouped.count(store=Materialized("in-memory", kind="memory")).to_stream().to(
        "out-in-memory", value=serdes.long
    )
    windows = TimeWindows(size=_seconds(10), grace=_seconds(3))
    tumbling = grouped.windowed_by(windows).count(store="tumbling")
    final = tumbling.suppress(Suppressed.until_window_closes(), name="final")
    _to(final, "out-final")
    _to(
        grouped.windowed_by(
            TimeWindows(size=_seconds(8), advance=_seconds(4)), emit="on_window_close"
        ).count(store="hopping"),
        "out-hopping",
    )
    sliding = SlidingWindows(time_difference=_seconds(5), grace=_seconds(3))
    _to(grouped.windowed_by(sliding).count(store="sliding"), "out-sliding")
    sessions = SessionWindows(inactivity_gap=_seconds(4), grace=_seconds(3))
    _to(grouped.windowed_by(sessions).count(store="sessions"), "out-sessions")

    by_city = orders.group_by(lambda _, order: order["city"], key=text, name="by-city")
    cities = by_city.aggregate(lambda: {"sum": 0, "last": ""}, _total, store="cities")
    cities.to_stream().to("out-cities")
    calm = Suppressed.until_time_limit(_seconds(6))
    cities.suppress(calm, name="calm").to_stream().to("out-calm")

    near = JoinWindows(time_difference=_seconds(3), grace=_seconds(2))
    pair = lambda one, other: [one and one["id"], other and other["id"]]  # noqa: E731
    orders.join(payments, pair, near, store="inner", name="inner").to("out-inner", value=json)
    orders.left_join(payments, pair, near, store="left", name="left").to("out-left", value=json)
    orders.outer_join(payments, pair, near, store="outer", name="outer").to("out-outer", value=json)

    orders.join(accounts, lambda order, account: [order["id"], account["owner"]]).to(
        "out-owners", value=json
    )
    orders.join(rates, lambda order, rate: [order["id"], rate], name="rated", grace=_seconds(2)).to(
        "out-rated", value=json
    )
    orders.join(
        names, lambda order, name: [order["id"], name], key_mapper=lambda _, order: order["city"]
    ).to("out-named", value=json)

    items = builder.table("items", key=text, value=json, store="items")
    items.join(
        accounts,
        lambda item, account: [item["id"], account["owner"]],
        foreign_key=lambda item: item["account"],
        store="item-owners",
        name="item-owners",
        value=json,
    ).to_stream().to("out-item-owners")
    items.outer_join(accounts, lambda item, account: [item, account], store="both", value=json)
    owners = accounts.group_by(
        lambda key, account: (account["owner"], account["limit"]),
        key=text,
        value=serdes.long,
        name="by-owner",
    )
    owners.aggregate(
        lambda: 0,
        lambda _, limit, total: total + limit,
        lambda _, limit, total: total - limit,
        store="owner-limits",
        value=serdes.long,
    ).to_stream().to("out-owner-limits")

    orders.deduplicate(
        within=_seconds(5), key=lambda order: order["amount"], store="orders-once"
    ).to("out-once", value=json)
    orders.process(Visits, name="visits").to("out-visits", key=text, value=json)
    return builder.build()


def _to(table: Any, topic: str) -> None:
    """Write a windowed table with the window in the value."""
    stream = table.to_stream().map(
        lambda key, n: (key.key, [key.window.start_ms, key.window.end_ms, n]), name=f"{topic}-rows"
    )
    stream.to(topic, key=serdes.string, value=serdes.json)


def input_steps(part: Part) -> Iterator[Step]:
    """Yield the inputs of a part with the commits between them.

    The last commit before the state is stored leaves records in the repartition topics unread.
    """
    first = 0 if part == "before" else RECORDS["before"]
    last = first + RECORDS[part] - 1
    for number in range(first, last + 1):
        yield from _round(number)
        if number % 10 == 9 and number != last:
            yield Commit()
        if part == "before" and number == 34:
            yield Abort()
        if part == "before" and number == 54:
            yield Wait()
        if part == "before" and number == 59:
            yield Restart()
    yield Commit(rounds=1) if part == "before" else Commit()


def _round(number: int) -> Iterator[Send]:
    # Some records are late, and every 30 rounds there is a gap in which sessions end.
    late_ms = 2_500 if number % 9 == 4 else 0
    time = START_MS + number * STEP_MS + number // 30 * 6_000 - late_ms
    key = f"k{number * 5 % KEYS}"
    if number % 4 == 0:
        account = {"owner": f"owner-{number // 4 % 3}", "limit": number}
        yield Send("accounts", key, None if number % 28 == 24 else account, time)
    if number % 5 == 0:
        yield Send("rates", key, number / 8, time - 1_000)
        yield Send("names", CITIES[number // 5 % 3], f"name-{number}", time)
    if number % 3 == 0:
        item = {"id": number, "account": f"k{number % KEYS}"}
        yield Send("items", f"i{number % 11}", None if number % 33 == 30 else item, time)
    order = {"id": f"o{number}", "amount": number % 6, "city": CITIES[number * 2 % 3]}
    yield Send("orders", key, order, time)
    if number % 3 != 1:
        # Some keys have no orders.
        payer = f"k{number * 4 % (KEYS + 2)}"
        yield Send("payments", payer, {"id": f"p{number}"}, time + 200)
