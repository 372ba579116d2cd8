"""The calls of joins behind files of tests/golden/kafka_streams; its README has them in Java."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.dsl.ktable import KTable
from headrace.topology.graph.materialized import Materialized
from headrace.topology.windows import JoinWindows
from tests.topology.describe.golden_cases import Stream, case, nothing, one, same, value_as_key, yes

MS = timedelta(milliseconds=1)
WINDOWS = JoinWindows(time_difference=10 * MS, grace=5 * MS)
NAMED: dict[str, Any] = {"name": "j"}
STORED: dict[str, Any] = {"store": "pair"}
BOTH: dict[str, Any] = {**NAMED, **STORED}


def joiner(value: Any, other: Any) -> Any:
    return value


def stream(b: StreamsBuilder, topic: str) -> Stream:
    return b.stream(topic)


def rekeyed(b: StreamsBuilder, topic: str) -> Stream:
    return b.stream(topic).select_key(value_as_key)


def table(b: StreamsBuilder, topic: str, store: str | None = None) -> KTable[Any, Any]:
    return b.table(topic, store=store)


def streams(kind: str, left: Any, right: Any, **names: Any) -> Any:
    def build(b: StreamsBuilder) -> None:
        this, other = left(b, "a"), right(b, "b")
        getattr(this, kind)(other, joiner, WINDOWS, **names).to("out")

    return build


one("join-streams", streams("join", stream, stream))
one("join-streams-named", streams("join", stream, stream, **NAMED))
one("join-streams-store-named", streams("join", stream, stream, **STORED))
one("join-streams-all-named", streams("join", stream, stream, **BOTH))
one("left-join-streams", streams("left_join", stream, stream))
one("left-join-streams-named", streams("left_join", stream, stream, **NAMED))
one("left-join-streams-all-named", streams("left_join", stream, stream, **BOTH))
one("outer-join-streams", streams("outer_join", stream, stream))
one("outer-join-streams-named", streams("outer_join", stream, stream, **NAMED))
one("outer-join-streams-all-named", streams("outer_join", stream, stream, **BOTH))
one("join-streams-left-rekeyed", streams("join", rekeyed, stream))
one("join-streams-right-rekeyed", streams("join", stream, rekeyed))
one("join-streams-both-rekeyed", streams("join", rekeyed, rekeyed))
one("join-streams-both-rekeyed-named", streams("join", rekeyed, rekeyed, **BOTH))
one("left-join-streams-rekeyed", streams("left_join", rekeyed, rekeyed))
one("outer-join-streams-rekeyed-named", streams("outer_join", rekeyed, rekeyed, **BOTH))


@case
def join_stream_with_itself(b: StreamsBuilder) -> None:
    x = stream(b, "a")
    x.join(x, joiner, WINDOWS).to("out")


@case
def left_join_stream_with_itself(b: StreamsBuilder) -> None:
    x = stream(b, "a")
    x.left_join(x, joiner, WINDOWS).to("out")


@case
def join_rekeyed_stream_with_itself(b: StreamsBuilder) -> None:
    x = rekeyed(b, "a")
    x.join(x, joiner, WINDOWS).to("out")


@case
def join_rekeyed_stream_with_itself_named(b: StreamsBuilder) -> None:
    x = rekeyed(b, "a")
    x.join(x, joiner, WINDOWS, **BOTH).to("out")


def twice(b: StreamsBuilder, first: dict[str, Any], second: dict[str, Any]) -> None:
    x = rekeyed(b, "a")
    x.join(stream(b, "b"), joiner, WINDOWS, **first).to("x")
    x.join(stream(b, "c"), joiner, WINDOWS, **second).to("y")


one("join-rekeyed-stream-twice", lambda b: twice(b, {}, {}))
one("join-rekeyed-stream-twice-first-named", lambda b: twice(b, BOTH, {}))
one("join-rekeyed-stream-twice-second-named", lambda b: twice(b, {}, BOTH))


@case
def join_then_count(b: StreamsBuilder) -> None:
    joined = stream(b, "a").join(stream(b, "b"), joiner, WINDOWS)
    joined.group_by_key().count().to_stream().to("out")


@case
def join_then_join(b: StreamsBuilder) -> None:
    joined = stream(b, "a").join(stream(b, "b"), joiner, WINDOWS)
    joined.join(stream(b, "c"), joiner, WINDOWS).to("out")


@case
def join_of_counts(b: StreamsBuilder) -> None:
    x = stream(b, "a").group_by(value_as_key).count().to_stream()
    y = stream(b, "b").group_by(value_as_key).count().to_stream()
    x.join(y, joiner, WINDOWS).to("out")


@case
def join_filtered(b: StreamsBuilder) -> None:
    x, y = stream(b, "a").filter(yes), stream(b, "b").map_values(same)
    x.join(y, joiner, WINDOWS).peek(nothing).to("out")


def with_table(kind: str, left: Any, store: str | None = None, **names: Any) -> Any:
    def build(b: StreamsBuilder) -> None:
        this, other = left(b, "a"), table(b, "t", store)
        getattr(this, kind)(other, joiner, **names).to("out")

    return build


one("join-stream-table", with_table("join", stream))
one("join-stream-table-named", with_table("join", stream, **NAMED))
one("left-join-stream-table", with_table("left_join", stream))
one("left-join-stream-table-named", with_table("left_join", stream, **NAMED))
one("join-stream-table-materialized-as", with_table("join", stream, "rows"))
one("join-stream-table-rekeyed", with_table("join", rekeyed))
one("join-stream-table-rekeyed-named", with_table("join", rekeyed, **NAMED))
one("left-join-stream-table-rekeyed", with_table("left_join", rekeyed))


@case
def join_stream_table_built_first(b: StreamsBuilder) -> None:
    t = table(b, "t")
    stream(b, "a").join(t, joiner).to("out")


@case
def join_stream_table_filtered(b: StreamsBuilder) -> None:
    x = stream(b, "a")
    x.join(table(b, "t").filter(yes).map_values(same), joiner).to("out")


@case
def join_stream_table_of_counts(b: StreamsBuilder) -> None:
    x = stream(b, "a")
    x.join(stream(b, "b").group_by(value_as_key).count(), joiner).to("out")


@case
def join_stream_to_table(b: StreamsBuilder) -> None:
    x = stream(b, "a")
    x.join(stream(b, "b").to_table(), joiner).to("out")


@case
def join_rekeyed_stream_two_tables(b: StreamsBuilder) -> None:
    x = rekeyed(b, "a")
    x.join(table(b, "t"), joiner).to("x")
    x.left_join(table(b, "u"), joiner).to("y")


@case
def join_stream_table_then_stream(b: StreamsBuilder) -> None:
    joined = stream(b, "a").join(table(b, "t"), joiner)
    joined.left_join(stream(b, "b"), joiner, WINDOWS).to("out")


@case
def join_stream_table_of_itself(b: StreamsBuilder) -> None:
    x = stream(b, "a")
    x.join(x.to_table(), joiner).to("out")


def with_versions(kind: str, left: Any, **options: Any) -> Any:
    def build(b: StreamsBuilder) -> None:
        this = left(b, "a")
        other = b.table("t", store=Materialized("rows", history=timedelta(hours=1)))
        getattr(this, kind)(other, joiner, **options).to("out")

    return build


GRACE: dict[str, Any] = {"grace": 10 * MS}
one("join-stream-versioned-table", with_versions("join", stream))
one("join-stream-versioned-table-grace", with_versions("join", stream, **GRACE))
one(
    "left-join-stream-versioned-table-grace-named",
    with_versions("left_join", rekeyed, **GRACE, **NAMED),
)
