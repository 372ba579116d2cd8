"""The application that is run under failures: its topics, its topology, its settings.

Sub-topologies that aggregate, a table, windows and joins. What each output must be follows from the
inputs alone, see `expectations`, `windowing` and `joining`:

    orders    ─┬─► echo              each order, byte for byte
               ├─► account-counts    how many orders an account has
               ├─► account-totals    their number, their sum, and which was the last
               ├─► account-changes   every tenth order, merged with
    accounts ──┼─►                   each change of the table of accounts
               ├─► (by-region) ─► region-totals   as account-totals, of a region
               ├─► window-counts     the orders of an account by tumbling windows, each change
               ├─► closed-counts     the same by longer windows, once each is closed
               ├─► session-counts    the same by sessions, held back until they are closed
               ├─► order-limits      each order with its account's row, merged with the rows
               ├─► tallies           how many orders a task has seen since the last tally, by a
               │                     processor with a store, at intervals of stream time
    payments ──┴─► order-payments    each order with the payments near it in time, or with none
    accounts ────► (by-tier) ─► tier-totals       accounts that joined and left, and their limits

Names are given without what a run puts in front, so that several runs can share a cluster.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson

from headrace.topology import (
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    serdes,
)

PARTITIONS = 4

INPUTS = {"orders": PARTITIONS, "accounts": PARTITIONS, "payments": PARTITIONS}
"""Partitions of each topic that the application reads."""
LATER_INPUTS = {"refunds": PARTITIONS, "products": PARTITIONS}
"""The same of those that later versions read too; nobody writes to them."""
VERSIONS = (1, 2, 3)
OUTPUTS = {
    "echo": PARTITIONS,
    "account-counts": PARTITIONS,
    "account-totals": PARTITIONS,
    "account-changes": PARTITIONS,
    "region-totals": PARTITIONS,
    "window-counts": PARTITIONS,
    "closed-counts": PARTITIONS,
    "session-counts": PARTITIONS,
    "order-limits": PARTITIONS,
    "order-payments": PARTITIONS,
    "tallies": PARTITIONS,
    "tier-totals": PARTITIONS,
}
"""Partitions of each topic that it writes."""
OUTPUTS_OF_TASKS = ("echo", "account-totals", "window-counts", "order-limits", "order-payments")
"""Those to whose partition of the same number a task of the orders writes all the time."""
REPARTITION = "by-region"
"""The topic between the orders and their regions; the application makes it."""
BY_TIER = "by-tier"
"""The same between the accounts and their tiers."""
REPARTITIONS = (REPARTITION, BY_TIER)
STORES = {
    "counts": 0,
    "totals": 0,
    "accounts": 0,
    "windows": 0,
    "closed": 0,
    "sessions": 0,
    "held-sessions-store": 0,
    "paid-this-join-store": 0,
    "paid-outer-other-join-store": 0,
    "paid-left-shared-join-store": 0,
    "tally": 0,
    "regions": 1,
    "tiers": 2,
}
"""The sub-topology of each store; each has a changelog."""

WINDOW_MS, WINDOW_GRACE_MS = 2_000, 1_000
CLOSED_MS, CLOSED_GRACE_MS = 3_000, 2_000
SESSION_GAP_MS, SESSION_GRACE_MS = 800, 1_500
PAID_BEFORE_MS, PAID_AFTER_MS, PAID_GRACE_MS = 400, 700, 1_000
KEPT_PAYMENTS_MS = 7 * 86_400_000
"""Longer than all parts of a run: what an order meets does not depend on what is read first."""
TALLY_MS = 1_000
TIER = 100
"""Limits of a tier."""

Total = dict[str, int]


def topic(prefix: str, name: str) -> str:
    """The full name of an input or an output.

    >>> topic("run1-", "echo")
    'run1-echo'
    """
    return prefix + name


def application_id(prefix: str) -> str:
    """The application's id, which is its consumer group too."""
    return f"{prefix}application"


def repartition_topic(prefix: str, name: str = REPARTITION) -> str:
    """The full name of a topic between two sub-topologies."""
    return f"{application_id(prefix)}-{name}-repartition"


def changelog_topic(prefix: str, store: str) -> str:
    """The full name of a store's changelog."""
    return f"{application_id(prefix)}-{store}-changelog"


def build_topology(prefix: str = "", version: int = 1) -> Topology:
    """Return what to compute; later versions read more, and all write and keep the same.

    Args:
        prefix: in front of the topics' names.
        version: one of `VERSIONS`.
    """
    builder = StreamsBuilder()
    raw = builder.stream(topic(prefix, "orders"), key=serdes.string, value=serdes.bytes)
    accounts = builder.table(
        topic(prefix, "accounts"), key=serdes.string, value=serdes.bytes, store="accounts"
    )
    raw.to(topic(prefix, "echo"))
    # A task with two input partitions, whose offsets are committed together.
    accounts.to_stream().merge(raw.filter(_is_tenth)).to(topic(prefix, "account-changes"))
    orders = raw.map_values(orjson.loads)
    by_account = orders.group_by_key(key=serdes.string, value=serdes.json)
    by_account.count(store="counts").to_stream().to(topic(prefix, "account-counts"))
    by_account.aggregate(_nothing, _add, store="totals", value=serdes.json).to_stream().to(
        topic(prefix, "account-totals")
    )
    by_region = orders.group_by(_region, key=serdes.string, value=serdes.json, name=REPARTITION)
    by_region.aggregate(_nothing, _add, store="regions", value=serdes.json).to_stream().to(
        topic(prefix, "region-totals")
    )
    _fold_windows(orders, prefix)
    _join_limits(raw, accounts, prefix)
    _join_payments(builder, raw, prefix)
    raw.process(Tally, name="tally").to(
        topic(prefix, "tallies"), key=serdes.string, value=serdes.json
    )
    _fold_tiers(accounts, prefix)
    # At the end, so that generated names of nodes are the same in all versions.
    if version >= 2:
        _read_refunds(builder, raw, prefix)
    if version >= 3:
        _join_products(builder, raw, prefix)
    return builder.build()


def _read_refunds(builder: StreamsBuilder, orders: KStream[str, bytes], prefix: str) -> None:
    """Read one more topic, whose name comes after those of all others."""
    refunds = builder.stream(topic(prefix, "refunds"), key=serdes.string, value=serdes.bytes)
    refunds.merge(orders.filter(_is_tenth)).for_each(_ignore)


def _join_products(builder: StreamsBuilder, orders: KStream[str, bytes], prefix: str) -> None:
    """Join one more table, which has a store."""
    products = builder.table(
        topic(prefix, "products"), key=serdes.string, value=serdes.bytes, store="products"
    )
    orders.left_join(products, _with_limit, value=serdes.bytes, name="sold").for_each(_ignore)


def _fold_windows(orders: KStream[str, Any], prefix: str) -> None:
    by_account = orders.group_by_key(key=serdes.string, value=serdes.json)
    windows = TimeWindows(size=_ms(WINDOW_MS), grace=_ms(WINDOW_GRACE_MS))
    by_account.windowed_by(windows).count(store="windows").to_stream().to(
        topic(prefix, "window-counts")
    )
    longer = TimeWindows(size=_ms(CLOSED_MS), grace=_ms(CLOSED_GRACE_MS))
    by_account.windowed_by(longer, emit="on_window_close").count(store="closed").to_stream().to(
        topic(prefix, "closed-counts")
    )
    sessions = SessionWindows(inactivity_gap=_ms(SESSION_GAP_MS), grace=_ms(SESSION_GRACE_MS))
    visits = by_account.windowed_by(sessions).count(store="sessions")
    final = visits.suppress(Suppressed.until_window_closes(), name="held-sessions")
    final.to_stream().to(topic(prefix, "session-counts"))


def _join_limits(orders: KStream[str, bytes], accounts: KTable[str, bytes], prefix: str) -> None:
    # In the same topic as the rows, so that it shows which row an order met.
    limits = orders.left_join(accounts, _with_limit, value=serdes.bytes, name="limited")
    accounts.to_stream().merge(limits).to(
        topic(prefix, "order-limits"), key=serdes.string, value=serdes.bytes
    )


def _join_payments(builder: StreamsBuilder, orders: KStream[str, bytes], prefix: str) -> None:
    payments = builder.stream(topic(prefix, "payments"), key=serdes.string, value=serdes.bytes)
    near = JoinWindows(
        time_difference=_ms(PAID_AFTER_MS), before=_ms(PAID_BEFORE_MS), grace=_ms(PAID_GRACE_MS)
    )
    kept = Materialized("paid", retention=_ms(KEPT_PAYMENTS_MS))
    paid = orders.left_join(payments, _with_payment, near, store=kept, name="paid")
    paid.to(topic(prefix, "order-payments"), key=serdes.string, value=serdes.json)


def _fold_tiers(accounts: KTable[str, bytes], prefix: str) -> None:
    by_tier = accounts.group_by(_tier, key=serdes.string, value=serdes.integer, name=BY_TIER)
    totals = by_tier.aggregate(_no_accounts, _joins, _leaves, store="tiers", value=serdes.json)
    totals.to_stream().to(topic(prefix, "tier-totals"))


class Tally(Processor[str, bytes, str, dict[str, int]]):
    """Counts the orders of a task; at intervals of stream time says how many there were."""

    stores = (Stores.key_value("tally", key=serdes.string, value=serdes.json),)

    def init(self, context: ProcessorContext[str, dict[str, int]]) -> None:
        """Keep the store and ask to be called."""
        self.context = context
        self._store = context.store("tally")
        self._key = f"task-{context.partition}"
        context.schedule(_ms(TALLY_MS), self._tell, kind="stream_time")

    def process(self, record: Record[str, bytes]) -> None:
        """Count an order."""
        tally = self._store.get(self._key) or {"number": 1, "count": 0, "sum": 0}
        n = orjson.loads(record.value)["n"]
        self._store.put(self._key, {**tally, "count": tally["count"] + 1, "sum": tally["sum"] + n})

    def _tell(self, now_ms: int) -> None:
        tally = self._store.get(self._key)
        if tally is None:
            return
        self.context.forward(Record(self._key, tally, now_ms))
        self._store.put(self._key, {"number": tally["number"] + 1, "count": 0, "sum": 0})


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def _with_limit(order: bytes, row: bytes | None) -> bytes:
    change = None if row is None else orjson.loads(row)["change"]
    return orjson.dumps({"n": orjson.loads(order)["n"], "row": change})


def _with_payment(order: bytes, payment: bytes | None) -> dict[str, int | None]:
    number = None if payment is None else orjson.loads(payment)["payment"]
    return {"n": orjson.loads(order)["n"], "payment": number}


def _tier(account: str, row: bytes) -> tuple[str, int]:
    limit = orjson.loads(row)["limit"]
    return f"tier-{limit // TIER}", limit


def _no_accounts() -> dict[str, int]:
    return {"joined": 0, "left": 0, "limits": 0}


def _joins(tier: str, limit: int, total: dict[str, int]) -> dict[str, int]:
    return {**total, "joined": total["joined"] + 1, "limits": total["limits"] + limit}


def _leaves(tier: str, limit: int, total: dict[str, int]) -> dict[str, int]:
    return {**total, "left": total["left"] + 1, "limits": total["limits"] - limit}


def _ignore(key: str, value: bytes) -> None:
    pass


def _is_tenth(key: str, value: bytes) -> bool:
    return bool(orjson.loads(value)["n"] % 10 == 0)


def _region(key: str, order: dict[str, Any]) -> str:
    return str(order["region"])


def _nothing() -> Total:
    return {"count": 0, "sum": 0, "last": -1}


def _add(key: str, order: dict[str, Any], total: Total) -> Total:
    return {
        "count": total["count"] + 1,
        "sum": total["sum"] + order["amount"],
        "last": order["n"],
    }


def settings(
    bootstrap: str,
    state_dir: str | Path,
    *,
    prefix: str = "",
    guarantee: str = "exactly_once_v2",
    caches: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """The settings of a worker.

    Args:
        bootstrap: brokers to find the cluster by.
        state_dir: where local state lives.
        prefix: in front of all names of this run.
        guarantee: "exactly_once_v2" or "at_least_once".
        caches: whether updates of a key wait for the commit; without, every one is written.
        more: further settings, with underscores for dots; they go over these.
    """
    return {
        "application.id": application_id(prefix),
        "bootstrap.servers": bootstrap,
        "processing.guarantee": guarantee,
        "state.dir": str(state_dir),
        # At-least-once too: what was aborted is no input.
        "consumer.isolation.level": "read_committed",
        **({} if caches else {"statestore.cache.max.bytes": 0}),
        **{name.replace("_", "."): value for name, value in more.items()},
    }
