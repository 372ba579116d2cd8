"""What whoever may read rows is told beside them: keys that change most, workers of all hosts."""

from __future__ import annotations

from typing import Any

from headrace.streams.lines.documents import to_document
from headrace.streams.queries.queries import Queries
from headrace.streams_web.stores.asked import Asked
from headrace.streams_web.stores.local import Answer
from headrace.topology.errors import SerdeError

KEYS_MAX = 100
"""So many keys of a store are told, of all tasks together."""


def hot_keys(queries: Queries, _: Asked) -> Answer:
    """The keys of each store that change most in the tasks of this host."""
    found = [_of_store(queries, name) for name in sorted(queries.stores)]
    return {
        "most": queries.config.hot_keys_max,
        "stores": [one for one in found if one["keys"]],
    }, 200


def _of_store(queries: Queries, name: str) -> dict[str, Any]:
    reader = queries.reader(name)
    keys: list[dict[str, Any]] = []
    for partition, told in queries.told(reader.store).items():
        hot = (key for store in told.task.stores if store.name == name for key in store.hot_keys)
        for one in hot:
            try:
                key = to_document(reader.key_serde.deserialize(one.key))
            except SerdeError:
                continue  # of another version of the application
            keys.append({"key": key, "partition": partition, "share": round(one.share, 4),
                         "over": round(one.over, 4)})  # fmt: skip
    keys.sort(key=lambda one: (-one["share"], one["partition"]))
    return {"store": name, "keys": keys[:KEYS_MAX]}


def group(queries: Queries, _: Asked) -> Answer:
    """The workers of all hosts, and which tasks each has, as the brokers say it."""
    heard = queries.whereabouts.heard()
    return {
        "state": heard.state,
        "host": queries.host,
        "members": [
            {
                "member": one.id,
                "client_id": one.client_id,
                "machine": one.machine,
                "host": one.endpoint,
                "tasks": list(one.tasks),
            }
            for one in heard.members
        ],
    }, 200
