"""What a type checker knows of tables that are computed from tables (see `test_dsl_types`)."""

from __future__ import annotations

from typing import assert_type

from headrace.topology import KGroupedTable, KTable, StreamsBuilder, serdes


class Doubled:
    def transform(self, key: str, value: int | None) -> float | None:
        return None if value is None else value * 2.0


def price_and_name(price: int, name: str) -> tuple[int, str]:
    return price, name


def price_and_maybe_name(price: int, name: str | None) -> tuple[int, str | None]:
    return price, name


def either(price: int | None, name: str | None) -> str | None:
    return name if price is None else None


def test_tables_of_tables_have_the_types_of_their_functions() -> None:
    builder = StreamsBuilder()
    prices = builder.table("prices", key=serdes.string, value=serdes.long)
    names = builder.table("names", key=serdes.string, value=serdes.string)
    assert_type(prices.filter(lambda k, v: v > 1, store="kept"), KTable[str, int])
    assert_type(names.map_values(len, store="lengths"), KTable[str, int])
    assert_type(prices.transform_values(Doubled), KTable[str, float])
    assert_type(prices.join(names, price_and_name), KTable[str, tuple[int, str]])
    assert_type(prices.left_join(names, price_and_maybe_name), KTable[str, tuple[int, str | None]])
    assert_type(prices.outer_join(names, either), KTable[str, str])


def test_grouped_tables_have_the_types_of_their_groups() -> None:
    prices = StreamsBuilder().table("prices", key=serdes.string, value=serdes.long)
    grouped = prices.group_by(lambda item, price: (price, item))
    assert_type(grouped, KGroupedTable[int, str])
    assert_type(grouped.count(), KTable[int, int])
    assert_type(grouped.reduce(max, min), KTable[int, str])
    assert_type(
        grouped.aggregate(int, lambda k, v, n: n + len(v), lambda k, v, n: n - len(v)),
        KTable[int, int],
    )
