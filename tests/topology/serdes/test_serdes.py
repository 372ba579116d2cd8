"""Serdes write Kafka's byte forms, read back what they wrote, and refuse everything else."""

from __future__ import annotations

import json
import math
import pickle
import struct
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topology import serdes
from headrace.topology.errors import SerdeError
from headrace.topology.serdes import Serde
from tests.support.shown import shown

INT_32 = st.integers(-(2**31), 2**31 - 1)
INT_64 = st.integers(-(2**63), 2**63 - 1)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
CONSTANTS: list[Serde[Any]] = [
    serdes.string,
    serdes.bytes,
    serdes.integer,
    serdes.long,
    serdes.double,
    serdes.json,
]
CANONICAL = [serde for serde in CONSTANTS if serde.canonical]


def json_form(value: object) -> str:
    return json.dumps(value, sort_keys=True)


@given(st.text())
def test_a_string_is_its_utf_8(value: str) -> None:
    data = serdes.string.serialize(value)
    assert data == value.encode("utf-8")
    assert serdes.string.deserialize(data) == value


@given(INT_32)
def test_an_integer_is_four_bytes_big_endian(value: int) -> None:
    """Kafka's IntegerSerializer: ``{v >>> 24, v >>> 16, v >>> 8, v}``."""
    data = serdes.integer.serialize(value)
    assert data == bytes((value >> shift) & 0xFF for shift in (24, 16, 8, 0))
    assert serdes.integer.deserialize(data) == value


@given(INT_64)
def test_a_long_is_eight_bytes_big_endian(value: int) -> None:
    """Kafka's LongSerializer: eight shifts from 56 down to 0."""
    data = serdes.long.serialize(value)
    assert data == bytes((value >> shift) & 0xFF for shift in range(56, -8, -8))
    assert serdes.long.deserialize(data) == value


@given(st.floats())
def test_a_double_is_its_ieee_754_bits_big_endian(value: float) -> None:
    """Kafka's DoubleSerializer: ``Double.doubleToLongBits`` as a long."""
    data = serdes.double.serialize(value)
    if not math.isnan(value):
        assert data == serdes.long.serialize(struct.unpack("<q", struct.pack("<d", value))[0])
        assert serdes.double.deserialize(data) == value
        assert math.copysign(1, serdes.double.deserialize(data)) == math.copysign(1, value)
    else:
        assert math.isnan(serdes.double.deserialize(data))


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (serdes.integer, 1, "00000001"),
        (serdes.integer, -1, "ffffffff"),
        (serdes.integer, 2**31 - 1, "7fffffff"),
        (serdes.long, -(2**63), "8000000000000000"),
        (serdes.long, 256, "0000000000000100"),
        (serdes.double, 1.0, "3ff0000000000000"),
        (serdes.double, -0.0, "8000000000000000"),
        (serdes.double, math.inf, "7ff0000000000000"),
        (serdes.double, math.nan, "7ff8000000000000"),
        (serdes.string, "é€", "c3a9e282ac"),
    ],
)
def test_known_values_have_the_bytes_that_java_writes(
    serde: Serde[Any], value: object, data: str
) -> None:
    assert serde.serialize(value).hex() == data


@given(st.data())
def test_a_canonical_serde_writes_the_bytes_that_it_read(data: st.DataObject) -> None:
    """`canonical` lets the runtime reuse input bytes, so it must hold for all bytes accepted."""
    serde = data.draw(st.sampled_from(CANONICAL))
    raw = data.draw(st.binary(max_size=12) | st.binary(min_size=8, max_size=8))
    try:
        value = serde.deserialize(raw)
    except SerdeError:
        return
    assert serde.serialize(value) == raw


def test_a_double_keeps_the_payload_of_a_nan() -> None:
    for raw in ("7ff8000000000001", "fff8000000000000"):
        data = bytes.fromhex(raw)
        assert serdes.double.serialize(serdes.double.deserialize(data)) == data


@given(JSON_VALUES.filter(lambda value: value is not None))
def test_json_reads_back_what_it_wrote(value: object) -> None:
    again = serdes.json.deserialize(serdes.json.serialize(value))
    assert json_form(again) == json_form(value)


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON_VALUES, min_size=2), st.randoms())
def test_json_does_not_depend_on_the_order_of_keys(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert serdes.json.serialize(dict(items)) == serdes.json.serialize(value)


@given(JSON_VALUES.filter(lambda value: value is not None))
def test_json_written_again_is_the_same(value: object) -> None:
    data = serdes.json.serialize(value)
    assert serdes.json.serialize(serdes.json.deserialize(data)) == data


def test_json_reads_other_spellings_so_it_is_not_canonical() -> None:
    read = serdes.json.deserialize(b'{ "b": 1, "a": 2 }')
    assert serdes.json.serialize(read) == b'{"a":2,"b":1}'
    assert not serdes.json.canonical


def test_json_tells_one_and_one_point_zero_and_true_apart() -> None:
    assert [serdes.json.serialize(v) for v in (1, 1.0, True)] == [b"1", b"1.0", b"true"]


def test_json_has_no_whitespace_and_no_escapes_beyond_need() -> None:
    assert serdes.json.serialize({"é": [1, "a b"]}) == '{"é":[1,"a b"]}'.encode()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("nest", [lambda v: v, lambda v: [None, v], lambda v: {"a": {"b": (v,)}}])
def test_json_refuses_nan_and_infinities(bad: float, nest: Any) -> None:
    """The encoder underneath would write null, which reads back as nothing."""
    with pytest.raises(SerdeError, match="NaN or infinity"):
        serdes.json.serialize(nest(bad))


def test_json_takes_the_word_null_and_nested_nulls() -> None:
    value = {"null": ["null", None], "n": 1}
    assert serdes.json.deserialize(serdes.json.serialize(value)) == value


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, [2**64], {"n": 10**30}])
def test_json_refuses_ints_beyond_64_bits(value: object) -> None:
    with pytest.raises(SerdeError, match="64-bit"):
        serdes.json.serialize(value)


def test_json_reads_ints_beyond_64_bits_as_floats() -> None:
    """A rule to know, as JavaScript has it; no check of every document pays for it."""
    assert serdes.json.deserialize(b"18446744073709551615") == 2**64 - 1
    assert serdes.json.deserialize(b"18446744073709551616") == float(2**64)


@pytest.mark.parametrize(
    "value",
    [{1: 2}, {None: 1}, {"a": {(1,): 2}}, {1, 2}, b"x", [b"x"], object(), 1j, "\ud800"],
    ids=shown,
)
def test_json_refuses_what_json_cannot_say(value: object) -> None:
    with pytest.raises(SerdeError, match="serde 'json' cannot encode a value of type"):
        serdes.json.serialize(value)


@pytest.mark.parametrize("value", [Counter("ab"), datetime(2024, 1, 1)], ids=shown)
def test_json_refuses_types_that_would_read_back_as_others(value: object) -> None:
    """A stored value must not change its type with the commit."""
    with pytest.raises(SerdeError, match=type(value).__name__):
        serdes.json.serialize(value)


@pytest.mark.parametrize(
    ("serde", "value", "advice"),
    [
        (serdes.string, 5, "serdes.long"),
        (serdes.string, b"x", "serdes.bytes"),
        (serdes.string, {"a": 1}, "serdes.json"),
        (serdes.string, True, "serdes.json"),
        (serdes.bytes, "x", "serdes.string"),
        (serdes.bytes, bytearray(b"x"), "serdes.serde_from"),
        (serdes.bytes, memoryview(b"x"), "serdes.serde_from"),
        (serdes.integer, "5", "serdes.string"),
        (serdes.integer, 5.0, "serdes.double"),
        (serdes.integer, True, "serdes.json"),
        (serdes.integer, 2**31, "serdes.long"),
        (serdes.integer, -(2**31) - 1, "serdes.long"),
        (serdes.long, 2**63, "serdes.serde_from"),
        (serdes.long, -(2**63) - 1, "serdes.serde_from"),
        (serdes.long, "5", "serdes.string"),
        (serdes.double, "5", "serdes.string"),
        (serdes.double, True, "serdes.json"),
        (serdes.double, 2**53 + 1, "serdes.long"),
        (serdes.double, 10**400, "serdes.long"),
        (serdes.json, b"x", "serdes.bytes"),
    ],
    ids=shown,
)
def test_a_value_of_another_type_is_refused_with_the_way_out(
    serde: Serde[Any], value: object, advice: str
) -> None:
    with pytest.raises(SerdeError) as caught:
        serde.serialize(value)
    assert f"serde {serde.name!r}" in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("serde", "data", "never"),
    [
        (serdes.json, b"not json", ["serdes.long", "serdes.json"]),
        (serdes.json, b"[1,2", ["serdes.integer", "serdes.json"]),
        (serdes.string, b"\xff\xfe", ["serdes.string", "serdes.json"]),
        (serdes.long, b"four", ["serdes.integer", "serdes.long"]),
    ],
    ids=shown,
)
def test_no_serde_is_named_that_cannot_have_written_it(
    serde: Serde[Any], data: bytes, never: list[str]
) -> None:
    with pytest.raises(SerdeError) as caught:
        serde.deserialize(data)
    assert not [name for name in never if name in str(caught.value)]


@pytest.mark.parametrize("serde", CONSTANTS, ids=lambda serde: serde.name)
def test_none_is_refused_as_null_stays_outside(serde: Serde[Any]) -> None:
    with pytest.raises(SerdeError, match="null"):
        serde.serialize(None)


@pytest.mark.parametrize(
    ("serde", "data", "advice"),
    [
        (serdes.string, b"\xff\x00", "serdes.bytes"),
        (serdes.string, b"\xed\xa0\x80", "serdes.bytes"),
        (serdes.integer, b"", "4"),
        (serdes.integer, bytes(8), "serdes.long"),
        (serdes.long, bytes(4), "serdes.integer"),
        (serdes.long, bytes(9), "8"),
        (serdes.double, bytes(7), "8"),
        (serdes.json, b"", "serdes.string"),
        (serdes.json, b"{", "serdes.string"),
        (serdes.json, b"NaN", "serdes.string"),
        (serdes.json, b"\xff", "serdes.bytes"),
    ],
    ids=shown,
)
def test_foreign_bytes_are_refused_with_the_way_out(
    serde: Serde[Any], data: bytes, advice: str
) -> None:
    with pytest.raises(SerdeError) as caught:
        serde.deserialize(data)
    assert f"serde {serde.name!r} cannot decode {len(data)} bytes" in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize("serde", CONSTANTS, ids=lambda serde: serde.name)
@pytest.mark.parametrize("data", [None, 5, ["x"]], ids=shown)
def test_only_bytes_are_decoded(serde: Serde[Any], data: Any) -> None:
    with pytest.raises(SerdeError):
        serde.deserialize(data)


def test_errors_never_show_the_payload() -> None:
    secret = "hunter2" * 3
    values: list[tuple[Serde[Any], object]] = [
        (serdes.long, secret),
        (serdes.string, secret.encode()),
        (serdes.string, secret + "\ud800"),
        (serdes.json, {secret: {secret}}),
        (serdes.json, [secret, math.nan]),
    ]
    for serde, value in values:
        with pytest.raises(SerdeError) as caught:
            serde.serialize(value)
        assert "hunter2" not in str(caught.value)
    for serde in CONSTANTS[2:]:
        with pytest.raises(SerdeError) as caught:
            serde.deserialize(secret.encode())
        assert "hunter2" not in str(caught.value)


@given(st.integers(-(2**53), 2**53))
def test_a_double_takes_an_int_that_fits(value: int) -> None:
    """A sum that starts at 0 is an int until the first float comes."""
    assert serdes.double.deserialize(serdes.double.serialize(value)) == value


def test_only_immutable_values_may_be_shared() -> None:
    assert {serde.name: serde.immutable for serde in CONSTANTS} == {
        "string": True,
        "bytes": True,
        "integer": True,
        "long": True,
        "double": True,
        "json": False,
    }


@pytest.mark.parametrize("serde", CONSTANTS, ids=lambda serde: serde.name)
def test_a_serde_travels_to_another_process(serde: Serde[Any]) -> None:
    again = pickle.loads(pickle.dumps(serde))
    assert again == serde
    assert again.deserialize is not None


def hexadecimal(**options: Any) -> Serde[int]:
    return serdes.serde_from(
        name="hex",
        serialize=lambda value: f"{value:x}".encode(),
        deserialize=lambda data: int(data, 16),
        **options,
    )


@given(st.integers())
def test_a_serde_of_two_functions_calls_them(value: int) -> None:
    serde = hexadecimal(immutable=True)
    assert serde.serialize(value) == f"{value:x}".encode()
    assert serde.deserialize(serde.serialize(value)) == value


def test_a_serde_of_two_functions_promises_nothing_unless_told() -> None:
    assert not hexadecimal().immutable
    assert not hexadecimal().canonical
    assert hexadecimal(immutable=True).immutable
    assert hexadecimal(canonical=True).canonical


def test_a_failing_function_becomes_the_cause_of_a_serde_error() -> None:
    with pytest.raises(SerdeError, match="serialize function raised ValueError") as caught:
        hexadecimal().serialize("text")  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(SerdeError, match="deserialize function raised ValueError") as caught:
        hexadecimal().deserialize(b"xyz")
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_function_that_does_not_return_bytes_is_refused() -> None:
    upper: Any = str.upper
    serde: Serde[str] = serdes.serde_from(name="wrong", serialize=upper, deserialize=bytes.decode)
    with pytest.raises(SerdeError, match=r"returned str .* return bytes"):
        serde.serialize("text")


@given(st.text() | st.integers(-9, 9) | st.lists(st.text()), st.booleans(), st.booleans())
def test_json_reads_and_writes_a_key_again_as_if_it_had_only_written_it(
    value: Any, ascii_only: bool, spaced: bool
) -> None:
    """The shortcut for plain strings gives the canonical bytes, whoever wrote the input."""
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    if spaced:
        data = b" " + data + b"\n"
    try:
        read = serdes.json.deserialize(data)
    except SerdeError:
        return
    assert serdes.json.reserialize(read, data) == serdes.json.serialize(read)  # type: ignore[attr-defined]
