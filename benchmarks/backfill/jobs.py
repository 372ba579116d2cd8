"""Jobs of `benchmarks.backfill`, as topologies and as queries in Spark SQL.

Sentences are a number and eight words. The count does not depend on their order, the hash does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from headrace import StreamsBuilder, Topology, serdes

WORDS_PER_SENTENCE = 8
MODULUS = 2_147_483_647


def sentence(number: int, random: Random, vocabulary: int) -> str:
    words = (f"word-{random.randrange(vocabulary)}" for _ in range(WORDS_PER_SENTENCE))
    return f"{number} {' '.join(words)}"


def words(line: str) -> list[str]:
    return line.split(" ")[1:]


def numbered_words(_: object, line: str) -> list[tuple[str, int]]:
    number, *found = line.split(" ")
    return [(word, int(number)) for word in found]


def zero() -> int:
    return 0


def add_to_hash(_: str, number: int, total: int) -> int:
    return (total * 31 + number) % MODULUS


def count_topology(source: str) -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream(source, value=serdes.string).flat_map_values(words)
    lines.group_by(_word, key=serdes.string, value=serdes.string, name="w").count(store="result")
    return builder.build()


def _word(_: object, word: str) -> str:
    return word


def hash_topology(source: str) -> Topology:
    builder = StreamsBuilder()
    pairs = builder.stream(source, value=serdes.string).flat_map(numbered_words)
    grouped = pairs.group_by_key(key=serdes.string, value=serdes.long, name="w")
    grouped.aggregate(zero, add_to_hash, store="result", value=serdes.long)
    return builder.build()


def table_topology(source: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    stream.group_by_key().reduce(_last, store="result")
    return builder.build()


def _last(_: str, new: str) -> str:
    return new


_SPLIT = "select split(cast(value as string), ' ') w from {rows}"
COUNT_SQL = (
    f"select word, count(*) result from ({_SPLIT}) "
    "lateral view explode(slice(w, 2, 8)) e as word group by word"
)
HASH_SQL = f"""
    select word, aggregate(
      array_sort(collect_list(struct(cast(w[0] as long) n, pos))),
      0L, (total, one) -> pmod(total * 31 + one.n, {MODULUS}L)) result
    from ({_SPLIT}) lateral view posexplode(slice(w, 2, 8)) e as pos, word group by word"""


@dataclass(frozen=True, slots=True)
class BackfillJob:
    """A topology with an order of its backfill, and the SQL query with the same result."""

    name: str
    topology: Callable[[str], Topology]
    order: Any
    sql: str


JOBS = (
    BackfillJob("word count, partial aggregates", count_topology, "combine", COUNT_SQL),
    BackfillJob("word count, record by record", count_topology, "exact", COUNT_SQL),
    BackfillJob("aggregation in exact order", hash_topology, "exact", HASH_SQL),
)
