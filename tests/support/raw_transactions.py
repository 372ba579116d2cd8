"""Transactions that never end, made by requests that no client library sends."""

from __future__ import annotations

import json
import struct
import time
from typing import Any

import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support.patience import PATIENCE_S
from tests.support.raw_requests import ask, error_at


def hang(
    bootstrap: str,
    transactional_id: str,
    topic: str,
    *,
    group: str | None = None,
    input_topic: str = "",
) -> None:
    """Leave a transaction open of which the coordinator knows nothing.

    It holds a record of partition 0 of a topic and, with a group, the offset 1 of partition 0 of
    its input.
    """
    producer_id, epoch = _identity(bootstrap, transactional_id, topic)
    _verify(bootstrap, on=False)
    try:
        # librdkafka has written one record with the sequence number 0.
        batch = _batch(producer_id, epoch, sequence=1)
        topics = _array(_text(topic) + _array(struct.pack(">ii", 0, len(batch)) + batch))
        body = _text(transactional_id) + struct.pack(">hi", -1, 30_000) + topics
        ask(bootstrap, (0, 7), body, error_at(4 + 2 + len(topic) + 4 + 4))
        if group is not None:
            offset = struct.pack(">iqi", 0, 1, -1) + struct.pack(">h", -1)
            topics = _array(_text(input_topic) + _array(offset))
            head = _text(transactional_id) + _text(group) + struct.pack(">qh", producer_id, epoch)
            ask(bootstrap, (28, 2), head + topics, error_at(4 + 4 + 2 + len(input_topic) + 4 + 4))
    finally:
        _verify(bootstrap, on=True)


def _identity(bootstrap: str, transactional_id: str, topic: str) -> tuple[int, int]:
    """Of a producer that has committed one record, as librdkafka's statistics tell it."""
    seen: dict[str, Any] = {}
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "statistics.interval.ms": 100,
            "stats_cb": lambda text: seen.update(json.loads(text)["eos"]),
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"before", b"k", partition=0)
    producer.commit_transaction(PATIENCE_S)
    seen.clear()
    end_s = time.monotonic() + PATIENCE_S
    while seen.get("producer_id", -1) < 0 and time.monotonic() < end_s:
        producer.poll(0.1)
    return seen["producer_id"], seen["producer_epoch"]


def _verify(bootstrap: str, *, on: bool) -> None:
    """Whether brokers ask the coordinator before they take records of a transaction."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(
        "transaction.partition.verification.enable",
        "true" if on else "false",
        incremental_operation=AlterConfigOpType.SET,
    )
    for broker in admin.list_topics(timeout=PATIENCE_S).brokers:
        asked = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
        for done in admin.incremental_alter_configs([asked]).values():
            done.result(PATIENCE_S)
    time.sleep(2)  # it is told to brokers in the background


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _array(one: bytes) -> bytes:
    return struct.pack(">i", 1) + one


def _batch(producer_id: int, epoch: int, *, sequence: int) -> bytes:
    """A batch of one record, of a transaction."""
    now_ms = time.time_ns() // 1_000_000
    body = b"\0" + _varint(0) + _varint(0) + _varint(1) + b"k" + _varint(5) + b"ghost" + _varint(0)
    record = _varint(len(body)) + body
    head = struct.pack(">hiqqqhii", 0x10, 0, now_ms, now_ms, producer_id, epoch, sequence, 1)
    summed = head + record
    rest = struct.pack(">ibI", -1, 2, _crc32c(summed)) + summed
    return struct.pack(">qi", 0, len(rest)) + rest


def _varint(number: int) -> bytes:
    assert 0 <= number < 64
    return bytes([number << 1])


def _crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF
