"""An error of a serde says whether it is about the key or the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.errors import SerdeError
from tests.support.operators import Stream

DECODE_KEY = r"^the key's serde 'string' cannot decode 8 bytes .* as key=serdes\.long or serdes\.d"
DECODE_VALUE = r"^the value's serde 'string' cannot decode 8 bytes .* as value=serdes\.long or "
ENCODE_KEY = r"^the key's serde 'string' cannot encode a key of type int; pass key=serdes\.long\b"
ENCODE_VALUE = (
    r"^the value's serde 'string' cannot encode a value of type int; pass value=serdes\.l"
)
EIGHT = b"\xff" * 8


def driver_of(
    step: Callable[[Stream], Stream], settings: dict[str, object] | None = None, **source: Any
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    read = builder.stream("in", key=serdes.string, value=serdes.string, **source)
    step(read).to("out", key=serdes.string, value=serdes.string)
    return TopologyTestDriver(builder.build(), settings)


@pytest.mark.parametrize("source", [{}, {"timestamps": lambda record, _: 5}])
@pytest.mark.parametrize(
    ("key", "value", "said"), [(EIGHT, b"v", DECODE_KEY), (b"k", EIGHT, DECODE_VALUE)]
)
def test_what_cannot_be_decoded_is_key_or_value(
    key: bytes, value: bytes, said: str, source: dict[str, Any]
) -> None:
    driver = driver_of(lambda stream: stream, **source)
    with pytest.raises(RecordError, match=said):
        driver.input("in").send_bytes(key, value)


@pytest.mark.parametrize("handler", [None, lambda failure: "fail"])
@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda s: s.select_key(lambda k, v: 5), ENCODE_KEY),
        (lambda s: s.map_values(lambda v: 5), ENCODE_VALUE),
        (lambda s: s.select_key(lambda k, v: 5).repartition(key=serdes.string), ENCODE_KEY),
    ],
)
def test_what_cannot_be_encoded_is_key_or_value(
    step: Callable[[Stream], Stream], said: str, handler: Any
) -> None:
    settings = None if handler is None else {"production.exception.handler": handler}
    with pytest.raises(RecordError, match=said):
        driver_of(step, settings).input("in").send("k", "v")


def test_a_global_table_says_it_too() -> None:
    for key, value, said in ((EIGHT, b"v", "the key's serde"), (b"k", EIGHT, "the value's serde")):
        builder = StreamsBuilder()
        builder.stream("other").to("out")
        builder.global_table("in", key=serdes.string, value=serdes.string)
        driver = TopologyTestDriver(builder.build())
        with pytest.raises(RecordError, match=f"cannot be decoded: {said}"):
            driver.input("in").send_bytes(key, value)


def _text(builder: StreamsBuilder, topic: str) -> Any:
    return builder.table(topic, key=serdes.string, value=serdes.string)


LOOK_UPS: dict[str, tuple[Callable[[StreamsBuilder], Any], str]] = {
    "a global table": (
        lambda b: b.stream("left", key=serdes.string, value=serdes.string).join(
            b.global_table("right", key=serdes.string, value=serdes.string),
            "{} {}".format,
            key_mapper=lambda key, value: 5,
        ),
        r"pass the global table's key=serdes\.long \(left-",
    ),
    "a table by a foreign key": (
        lambda b: _text(b, "left").join(
            _text(b, "right"), "{} {}".format, foreign_key=lambda value: 5
        ),
        r"pass this table's value=serdes\.long \(the other table's key=serdes\.long for keys\)[; ]",
    ),
}


@pytest.mark.parametrize("kind", LOOK_UPS)
def test_a_key_to_look_up_is_written_with_a_serde_that_the_join_does_not_name(kind: str) -> None:
    join, said = LOOK_UPS[kind]
    builder = StreamsBuilder()
    join(builder)
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(RecordError, match=said):
        driver.input("left").send("k", "v")


def test_the_ends_of_the_test_driver_say_it() -> None:
    driver = driver_of(lambda stream: stream)
    unfit: Any = 5
    with pytest.raises(SerdeError, match=ENCODE_KEY):
        driver.input("in").send(unfit, "v")
    with pytest.raises(SerdeError, match=ENCODE_VALUE):
        driver.input("in").send("k", unfit)
    driver.input("in").send("k", "v")
    for options, said in (({"key": serdes.long}, "key"), ({"value": serdes.long}, "value")):
        with pytest.raises(SerdeError, match=f"^the {said}'s serde 'long'"):
            driver.output("out", **options).read()


def test_a_serde_that_nobody_says_it_of_names_both() -> None:
    with pytest.raises(SerdeError, match=r"pass value=serdes\.long \(key=serdes\.long for keys\)"):
        serdes.string.serialize(5)  # type: ignore[arg-type]
    with pytest.raises(
        SerdeError, match=r"value=serdes\.long or serdes\.double \(key= for keys\)$"
    ):
        serdes.string.deserialize(EIGHT)
