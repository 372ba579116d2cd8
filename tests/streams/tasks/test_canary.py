"""No secret and no key of a record in what fifty failures say, of all kinds that there are."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
import structlog

from headrace.streams import TopologyTestDriver, logs
from headrace.streams.kafka.schema_registry import SchemaRegistry
from headrace.streams.tasks.failures import describe_failure, log_failure
from headrace.topology import JoinWindows, StreamsBuilder, serdes
from headrace.topology.serdes import avro
from tests.streams.test_secrets import SECRETS

CANARY = "c4n4ry"
KEY, VALUE = f"{CANARY}-key", f"{CANARY}-value"
SEEDS = range(50)
REGISTRY = f"http://ann:{CANARY}@127.0.0.1:1"
WINDOWS = JoinWindows(time_difference=timedelta(hours=1))


def fails(*given: Any) -> Any:
    raise ValueError(f"cannot work with {given!r}")


class Broken:
    """A processor that fails where it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where

    def init(self, context: Any) -> None:
        if self.where == "init":
            fails(VALUE)
        context.schedule(timedelta(seconds=1), lambda at: fails(VALUE, at), kind="wall_clock")

    def process(self, record: Any) -> None:
        if self.where == "process":
            fails(record)

    def close(self) -> None: ...


Build = Callable[[Any, Any], Any]
STRINGS = {"key": serdes.string, "value": serdes.string}
KINDS: dict[str, Build] = {
    "map": lambda b, s: s.map_values(fails).to("out"),
    "key of a dict": lambda b, s: s.map_values(lambda v: {}[v]).to("out"),
    "filter": lambda b, s: s.filter(fails).to("out"),
    "fold": lambda b, s: s.group_by_key().aggregate(str, fails).to_stream().to("out"),
    "join": lambda b, s: s.join(s, fails, WINDOWS).to("out"),
    "table": lambda b, s: s.to_table().map_values(fails).to_stream().to("out"),
    "process": lambda b, s: s.process(lambda: Broken("process")).to("out"),
    "init": lambda b, s: s.process(lambda: Broken("init")).to("out"),
    "punctuator": lambda b, s: s.process(lambda: Broken("punctuator")).to("out"),
    "topic": lambda b, s: s.to(fails),
    "partitioner": lambda b, s: s.to("out", partitioner=fails),
    "other type": lambda b, s: s.to("out", value=serdes.long),
    "other key type": lambda b, s: s.to("out", key=serdes.long),
    "row of another type": lambda b, s: s.group_by_key().aggregate(
        str, lambda k, v, a: {k, v}, value=serdes.json),
    "large output": lambda b, s: s.map_values(lambda v: v * 300_000).to("out"),
    "large row": lambda b, s: s.group_by_key().reduce(lambda a, v: a + v * 50, store="rows"),
    "undecodable": lambda b, s: b.stream("bad", value=serdes.long).to("out"),
    "undecodable key": lambda b, s: b.stream("bad", key=serdes.long).to("out"),
    "time": lambda b, s: b.stream("bad", timestamps=fails, **STRINGS).to("out"),
    "registry": lambda b, s: s.map_values(lambda v: 1).to("out", value=avro.registered(
        '"int"', registry=SchemaRegistry(REGISTRY, {"timeout": 1, "max.retries": 0}))),
}  # fmt: skip


def run(kind: str, random: Random) -> BaseException | None:
    """Build a topology that fails on a record with the canary, and give it one."""
    builder = StreamsBuilder()
    KINDS[kind](builder, builder.stream("in", **STRINGS))
    settings = {
        **SECRETS,
        "processing.guarantee": random.choice(("exactly_once_v2", "at_least_once")),
        "statestore.cache.max.bytes": random.choice((0, 10_000_000)),
        "topic.max.message.bytes": "500",
        "processing.exception.handler": random.choice(("fail", fails)),
    }
    try:
        with TopologyTestDriver(
            builder.build(), settings, partitions=random.choice((1, 3))
        ) as made:
            for topic in {"in", "bad"} & set(made.cluster.topics):
                made.input(topic, **STRINGS).send_many([(KEY, VALUE), (KEY, VALUE)])
            made.advance(timedelta(seconds=5))
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_fifty_failures_say_no_secret_and_no_key(log_format: logs.LogFormat) -> None:
    out = io.StringIO()
    logs.configure(log_format, stream=out, colors=False, level="debug")
    failed: list[str] = []
    kinds = sorted(KINDS)
    try:
        for seed in SEEDS:
            kind = kinds[seed % len(kinds)]
            error = run(kind, Random(seed))
            if error is None:
                continue
            failed.append(kind)
            log_failure(structlog.get_logger(), describe_failure(error, full=False))
            structlog.get_logger().error("failed", exc_info=error)
            assert CANARY not in f"{error} {error!r} {vars(error)}", kind
    finally:
        structlog.reset_defaults()
    assert CANARY not in out.getvalue()
    assert set(failed) == set(KINDS)
    assert len(failed) == len(SEEDS)
