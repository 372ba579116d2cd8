"""The application that is run under failures: its topics, its topology, its settings.

Two sub-topologies that aggregate, and a table. What each output must be follows from the inputs
alone, see `expectations`:

    orders    ─┬─► echo              each order, byte for byte
               ├─► account-counts    how many orders an account has
               ├─► account-totals    their number, their sum, and which was the last
               ├─► account-changes   every tenth order, merged with
    accounts ──┴─►                   each change of the table of accounts
               └─► (by-region) ─► region-totals   as account-totals, of a region

Names are given without what a run puts in front, so that several runs can share a cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from topology import StreamsBuilder, Topology, serdes

PARTITIONS = 4

INPUTS = {"orders": PARTITIONS, "accounts": PARTITIONS}
"""Partitions of each topic that the application reads."""
OUTPUTS = {
    "echo": PARTITIONS,
    "account-counts": PARTITIONS,
    "account-totals": PARTITIONS,
    "account-changes": PARTITIONS,
    "region-totals": PARTITIONS,
}
"""Partitions of each topic that it writes."""
REPARTITION = "by-region"
"""The topic between the two sub-topologies; the application makes it."""
STORES = {"counts": 0, "totals": 0, "accounts": 0, "regions": 1}
"""The sub-topology of each store; each has a changelog."""

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


def repartition_topic(prefix: str) -> str:
    """The full name of the topic between the sub-topologies."""
    return f"{application_id(prefix)}-{REPARTITION}-repartition"


def changelog_topic(prefix: str, store: str) -> str:
    """The full name of a store's changelog."""
    return f"{application_id(prefix)}-{store}-changelog"


def build_topology(prefix: str = "") -> Topology:
    """Say what to compute."""
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
    return builder.build()


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
