"""The jobs with Quix Streams; run by the Python of a separate environment, see `quix.py`.

Arguments: job, bootstrap, consumer group, prefix of the input topics, output topic, state
directory, guarantee, commit interval in seconds. Runs until SIGTERM.
"""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application
from quixstreams.models import Serializer


class Long(Serializer):  # type: ignore[misc]
    """Serializer of eight bytes, as Kafka's."""

    def __call__(self, value: int, ctx: object = None) -> bytes:  # noqa: ARG002
        return value.to_bytes(8, "big")


def main() -> None:
    """Run one job until SIGTERM."""
    job, bootstrap, group, source, output, state, guarantee, interval = sys.argv[1:]
    exactly_once = guarantee == "exactly_once_v2"
    app = Application(
        broker_address=bootstrap,
        consumer_group=group,
        state_dir=state,
        auto_offset_reset="earliest",
        commit_interval=float(interval),
        processing_guarantee="exactly-once" if exactly_once else "at-least-once",
        # As of the other peers.
        producer_extra_config={"compression.type": "lz4", "linger.ms": 5},
        consumer_extra_config={"fetch.queue.backoff.ms": 2},
        loglevel="WARNING",
    )
    if job == "words":
        lines = app.topic(f"{source}-in", key_deserializer="bytes", value_deserializer="str")
        counts = app.topic(output, key_serializer="str", value_serializer=Long())
        words = app.dataframe(lines).apply(str.split, expand=True)
        by_word = words.group_by(
            _identity,
            name="word",
            key_serializer="str",
            key_deserializer="str",
            value_serializer="str",
            value_deserializer="str",
        )
        by_word.apply(_count, stateful=True).to_topic(counts)
    elif job == "sum":
        amounts = app.topic(f"{source}-in", key_deserializer="bytes", value_deserializer="json")
        sums = app.topic(output, key_serializer="bytes", value_serializer="json")
        app.dataframe(amounts).apply(_sum, stateful=True).to_topic(sums)
    else:
        orders = app.topic(f"{source}-in", key_deserializer="bytes", value_deserializer="json")
        invoiced = app.topic(output, key_serializer="bytes", value_serializer="json")
        invoices = app.dataframe(orders).filter(_is_paid).apply(_invoice)
        invoices.to_topic(invoiced)
    app.run()


def _identity(word: str) -> str:
    return word


def _count(_word: str, state: Any) -> int:
    count: int = state.get("n", 0) + 1
    state.set("n", count)
    return count


def _sum(booking: dict[str, int], state: Any) -> int:
    total: int = state.get("total", 0) + booking["amount"]
    state.set("total", total)
    return total


def _is_paid(order: dict[str, bool]) -> bool:
    return order["paid"]


def _invoice(order: dict[str, Any]) -> dict[str, Any]:
    return {"total": order["price"] * order["quantity"], "user": order["user"]}


if __name__ == "__main__":
    main()
