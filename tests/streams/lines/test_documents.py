"""What people write as JSON becomes the bytes that a producer would have written."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from headrace import SerdeError, serdes
from headrace.streams.lines.documents import to_bytes, to_document
from headrace.topology.serdes import Serde


@dataclass(frozen=True)
class Place:
    """Its fields are in no order of letters."""

    shelf: str
    aisle: int
    box: float = 0.0


class Spot(msgspec.Struct, frozen=True):
    y: int
    x: int = 0


@pytest.mark.parametrize(
    ("serde", "value", "document"),
    [
        (serdes.json_of(Place), Place("b", 1, 2.0), {"shelf": "b", "aisle": 1, "box": 2.0}),
        (serdes.json_of(Place), Place("b", 1), {"aisle": 1, "shelf": "b"}),
        (serdes.json_of(Spot), Spot(y=2), {"y": 2, "x": 0}),
        (
            serdes.json_of(tuple[str, Place]),
            ("a", Place("b", 1)),
            ["a", {"shelf": "b", "aisle": 1}],
        ),
        (serdes.json, {"z": 1, "a": [2]}, {"z": 1, "a": [2]}),
    ],
)
def test_a_document_of_a_key_is_written_as_its_serde_writes_it(
    serde: Serde[object], value: object, document: object
) -> None:
    """Otherwise a row that is there would not be found."""
    assert to_bytes(document, serde) == serde.serialize(value)
    assert to_bytes(to_document(value), serde) == serde.serialize(value)


def test_a_document_that_is_no_such_value_is_refused() -> None:
    with pytest.raises(SerdeError, match="its JSON is no such value"):
        to_bytes({"shelf": 7}, serdes.json_of(Place))
