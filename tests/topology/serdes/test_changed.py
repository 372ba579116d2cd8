"""The bytes of a change of a grouped table: Kafka Streams' layout (KIP-904)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topology import serdes
from headrace.topology.errors import SerdeError
from headrace.topology.serdes.changed import ChangedSerde, ValueChange

TEXT = ChangedSerde(serdes.string)


@pytest.mark.parametrize(
    ("change", "data"),
    [
        (ValueChange(None, "old"), b"old\x00"),
        (ValueChange("new", None), b"new\x01"),
        (ValueChange("new", "old"), b"\x06newold\x02"),
        (ValueChange("", "old"), b"\x00old\x02"),
        (ValueChange("new", ""), b"\x06new\x02"),
        (ValueChange("", None), b"\x01"),
        (ValueChange("x" * 64, "old"), b"\x80\x01" + b"x" * 64 + b"old\x02"),
        (ValueChange("x" * 8192, "y"), b"\x80\x80\x01" + b"x" * 8192 + b"y\x02"),
    ],
)
def test_a_flag_at_the_end_says_which_values_are_there(change: ValueChange, data: bytes) -> None:
    assert TEXT.serialize(change) == data
    assert TEXT.deserialize(data) == change


@pytest.mark.parametrize(
    ("data", "change"),
    [
        (b"old\x01\x03", ValueChange(None, "old")),
        (b"new\x01\x04", ValueChange("new", None)),
        (b"\x06newold\x01\x05", ValueChange("new", "old")),
        (b"new\x00\x04", ValueChange("new", None)),
    ],
)
def test_the_form_that_says_whether_a_change_is_the_latest_is_read(
    data: bytes, change: ValueChange
) -> None:
    assert TEXT.deserialize(data) == change


@given(st.one_of(st.none(), st.text(max_size=300)), st.one_of(st.none(), st.text(max_size=300)))
def test_what_was_written_is_read(new: str | None, old: str | None) -> None:
    if new is not None or old is not None:
        assert TEXT.deserialize(TEXT.serialize(ValueChange(new, old))) == ValueChange(new, old)


@pytest.mark.parametrize(
    "data", [b"", b"\x02", b"\x03", b"value\x06", b"\x0enew\x02", b"\x05newold\x02", b"\xff" * 6]
)
def test_other_bytes_are_refused_with_the_way_out(data: bytes) -> None:
    with pytest.raises(SerdeError, match="reset the application"):
        TEXT.deserialize(data)


def test_it_is_as_immutable_and_canonical_as_the_values_are() -> None:
    assert (TEXT.immutable, TEXT.canonical) == (True, True)
    assert not ChangedSerde(serdes.json).immutable


def test_the_serde_of_values_is_filled_in_where_none_was_given() -> None:
    assert ChangedSerde().with_inner_default(serdes.long) == ChangedSerde(serdes.long)
    assert TEXT.with_inner_default(serdes.long) is TEXT
