"""`serdes.list_of` writes what Kafka's ListSerializer writes, and reads what its reader reads."""

from __future__ import annotations

import pickle
from typing import Any, assert_type
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topology import serdes
from headrace.topology.errors import SerdeError
from headrace.topology.serdes import Serde
from tests.support.shown import shown

uuids: Serde[UUID] = serdes.serde_from(
    name="uuid",
    serialize=lambda value: str(value).encode(),
    deserialize=lambda data: UUID(data.decode()),
)

# What ListSerializer of Kafka 4.3.1 (Java) wrote.
JAVA: list[tuple[Serde[Any], list[Any], str]] = [
    (
        serdes.list_of(serdes.long, nulls=True),
        [1, None, -2, None],
        "00000000020000000100000003000000040000000000000001fffffffffffffffe",
    ),
    (serdes.list_of(serdes.long), [], "000000000000000000"),
    (serdes.list_of(serdes.integer), [1, -1], "00000000000000000200000001ffffffff"),
    (
        serdes.list_of(serdes.double, nulls=True),
        [None, 1.0],
        "000000000100000000000000023ff0000000000000",
    ),
    (
        serdes.list_of(serdes.string, nulls=True),
        ["é", None, "", "ab"],
        "010000000400000002c3a9ffffffff00000000000000026162",
    ),
    (serdes.list_of(serdes.string), [], "0100000000"),
    (
        serdes.list_of(uuids, nulls=True, item_bytes=36),
        [UUID("00000000-0000-0001-0000-000000000002"), None],
        "000000000100000001" + "00000002" + b"00000000-0000-0001-0000-000000000002".hex(),
    ),
    (
        serdes.list_of(serdes.list_of(serdes.long), nulls=True),
        [[1], None],
        "0100000002000000110000000000000000010000000000000001ffffffff",
    ),
]


@pytest.mark.parametrize(("serde", "value", "data"), JAVA, ids=shown)
def test_known_lists_have_the_bytes_that_java_writes(
    serde: Serde[Any], value: list[Any], data: str
) -> None:
    assert serde.serialize(value).hex() == data
    assert serde.deserialize(bytes.fromhex(data)) == value


def test_items_of_a_known_width_are_read_with_lengths_too_as_kafka_does() -> None:
    data = bytes.fromhex("0100000002ffffffff000000080000000000000007")
    assert serdes.list_of(serdes.long, nulls=True).deserialize(data) == [None, 7]


@given(st.lists(st.none() | st.text()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_a_list_reads_back_as_it_was(texts: list[str | None], numbers: list[int | None]) -> None:
    text, number = (
        serdes.list_of(serdes.string, nulls=True),
        serdes.list_of(serdes.long, nulls=True),
    )
    assert text.deserialize(text.serialize(texts)) == texts
    assert number.deserialize(number.serialize(numbers)) == numbers


@given(st.binary(max_size=60), st.sampled_from([s for s, _, _ in JAVA]))
def test_any_bytes_are_read_or_refused_with_an_error_of_the_serde(
    data: bytes, serde: Serde[Any]
) -> None:
    try:
        items = serde.deserialize(data)
    except SerdeError:
        return
    assert serde.deserialize(serde.serialize(items)) == items


@pytest.mark.parametrize("serde", [s for s, _, _ in JAVA[:5]], ids=lambda s: s.name)
def test_a_list_that_is_cut_off_or_goes_on_is_refused(serde: Serde[Any]) -> None:
    whole = next(bytes.fromhex(data) for s, _, data in JAVA if s is serde)
    for data in (*(whole[:i] for i in range(len(whole))), whole + b"\x00"):
        with pytest.raises(SerdeError, match="cannot decode"):
            serde.deserialize(data)


@pytest.mark.parametrize(
    ("serde", "data", "said"),
    [
        (serdes.list_of(serdes.long), "02", "begins with 2"),
        (serdes.list_of(serdes.string), "000000000000000000", "fixed width"),
        (serdes.list_of(serdes.string), "01ffffffff", "count of -1"),
        (serdes.list_of(serdes.string), "017fffffff", "count of 2147483647"),
        (serdes.list_of(serdes.string), "0100000001fffffffe", "item of -2 bytes"),
        (serdes.list_of(serdes.string), "010000000100000005", "item of 5 bytes"),
        (serdes.list_of(serdes.long), "00000000010000000700000001", "does not hold 1 items"),
        (serdes.list_of(serdes.string), "0100000001ffffffff", "null at index 0"),
        (serdes.list_of(serdes.long), "00000000010000000000000001", "null at index 0"),
    ],
    ids=shown,
)
def test_what_is_no_such_list_is_refused_with_the_reason(
    serde: Serde[Any], data: str, said: str
) -> None:
    with pytest.raises(SerdeError, match=said):
        serde.deserialize(bytes.fromhex(data))


def test_none_needs_the_word_of_who_made_the_serde() -> None:
    with pytest.raises(SerdeError, match=r"None at index 1; allow it with .*nulls=True"):
        serdes.list_of(serdes.string).serialize(["a", None])  # type: ignore[list-item]


@pytest.mark.parametrize("value", [None, ("a",), "ab", {"a": 1}], ids=shown)
def test_only_lists_are_encoded(value: Any) -> None:
    with pytest.raises(SerdeError, match="pass a list"):
        serdes.list_of(serdes.string).serialize(value)


def test_an_item_that_the_inner_serde_refuses_is_its_error() -> None:
    with pytest.raises(SerdeError, match="serde 'string'"):
        serdes.list_of(serdes.string).serialize(["a", 5])  # type: ignore[list-item]
    with pytest.raises(SerdeError, match="serde 'string'"):
        serdes.list_of(serdes.string).deserialize(bytes.fromhex("010000000100000001ff"))


def test_items_of_another_width_than_was_told_are_refused() -> None:
    serde = serdes.list_of(serdes.string, item_bytes=2)
    assert serde.serialize(["ab"]).hex() == "0000000000000000016162"
    with pytest.raises(SerdeError, match="takes items of 2 bytes, but 'string' wrote 3"):
        serde.serialize(["abc"])


def test_a_list_may_be_mutated_so_stores_take_copies() -> None:
    assert not serdes.list_of(serdes.long).immutable


def test_the_serde_travels_to_another_process() -> None:
    serde = serdes.list_of(serdes.list_of(serdes.long))
    assert pickle.loads(pickle.dumps(serde)) == serde


def test_a_type_checker_knows_the_items() -> None:
    assert_type(serdes.list_of(serdes.long), Serde[list[int]])
    assert_type(serdes.list_of(serdes.long, nulls=True), Serde[list[int | None]])
    assert_type(serdes.list_of(serdes.list_of(serdes.string)), Serde[list[list[str]]])
