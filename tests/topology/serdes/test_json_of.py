"""`serdes.json_of` reads JSON into classes, writes it canonically, and names what is wrong."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, NotRequired, TypedDict, assert_type
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topology import serdes
from headrace.topology.errors import SerdeError, TopologyError
from headrace.topology.serdes import Serde
from tests.support.shown import shown


class Side(Enum):
    BUY = "buy"
    SELL = "sell"


@dataclass(frozen=True)
class Item:
    sku: str
    price: float
    count: int = 1


@dataclass
class Order:
    id: UUID
    customer: str
    at: datetime
    day: date
    total: Decimal
    side: Side
    items: list[Item] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, order=True)
class Place:
    country: str
    zip: int | None = None
    coordinates: tuple[float, float] = (0.0, 0.0)


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


@dataclass(frozen=True)
class Basket:
    items: list[Item]


@dataclass
class ByNumber:
    rows: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Impossible:
    amount: complex


@dataclass
class Picky:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError(f"hunter2 {self.value} - at `$.hunter2`")


@dataclass(eq=False)
class Incomparable:
    value: int


@dataclass(frozen=True)
class SpecialItem(Item):
    secret: str = ""


class Click(TypedDict):
    page: str
    ms: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int


ORDER = Order(
    id=UUID(int=7),
    customer="héron",
    at=datetime(2024, 2, 29, 12, tzinfo=UTC),
    day=date(2024, 2, 29),
    total=Decimal("12.50"),
    side=Side.BUY,
    items=[Item("a", 2.5), Item("b", 10.0, 3)],
    tags={"z": 1, "a": 2},
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ITEMS = st.builds(Item, st.text(), FLOATS, st.integers())
ORDERS = st.builds(
    Order,
    st.uuids(),
    st.text(),
    st.datetimes(timezones=st.just(UTC)),
    st.dates(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.sampled_from(Side),
    st.lists(ITEMS, max_size=3),
    st.dictionaries(st.text(), st.integers(), max_size=3),
    st.none() | st.text(),
)
order_serde = serdes.json_of(Order)


def test_a_dataclass_is_compact_json_with_sorted_fields() -> None:
    assert order_serde.serialize(ORDER).decode() == (
        '{"at":"2024-02-29T12:00:00Z","customer":"héron","day":"2024-02-29",'
        '"id":"00000000-0000-0000-0000-000000000007",'
        '"items":[{"count":1,"price":2.5,"sku":"a"},{"count":3,"price":10.0,"sku":"b"}],'
        '"note":null,"side":"buy","tags":{"a":2,"z":1},"total":"12.50"}'
    )


@given(ORDERS)
def test_what_was_written_reads_back_as_an_equal_object(order: Order) -> None:
    data = order_serde.serialize(order)
    again = order_serde.deserialize(data)
    assert again == order
    assert order_serde.serialize(again) == data


@given(ORDERS)
def test_the_quick_decoder_reads_the_same(order: Order) -> None:
    """The compiler takes `decoder` where a serde has one."""
    data = order_serde.serialize(order)
    assert order_serde.decoder(data) == order_serde.deserialize(data)  # type: ignore[attr-defined]


@given(st.dictionaries(st.text(), st.integers(), min_size=2), st.randoms())
def test_equal_objects_give_equal_bytes_whatever_the_order_of_their_dicts(
    tags: dict[str, int], random: Any
) -> None:
    items = list(tags.items())
    random.shuffle(items)
    serde = serdes.json_of(dict[str, int])
    assert serde.serialize(dict(items)) == serde.serialize(tags)


def test_an_int_in_a_float_field_is_written_as_the_float_that_it_equals() -> None:
    place = serdes.json_of(Place)
    assert Place("fr", 1, (1, 2)) == Place("fr", 1, (1.0, 2.0))
    one, other = Place("fr", 1, (1, 2)), Place("fr", 1, (1.0, 2.0))
    assert place.serialize(one) == place.serialize(other)


def test_it_is_not_canonical_for_the_compiler_as_it_reads_other_spellings() -> None:
    place = serdes.json_of(Place)
    read = place.deserialize(b' { "zip": 1, "country": "fr", "more": [] } ')
    assert read == Place("fr", 1)
    assert not place.canonical


def test_a_missing_field_takes_its_default_and_an_unknown_one_is_left_out() -> None:
    item = serdes.json_of(Item)
    assert item.deserialize(b'{"sku":"a","price":1,"colour":"red"}') == Item("a", 1.0)


@pytest.mark.parametrize(
    ("cls", "immutable"),
    [
        (Item, True),
        (Place, True),
        (Side, True),
        (Point, True),
        (tuple[Item, ...], True),
        (frozenset[int], True),
        (Item | None, True),
        (Order, False),
        (Basket, False),
        (Tree, False),
        (Click, False),
        (list[int], False),
        (dict[str, int], False),
        (tuple[Basket, int], False),
        (Any, False),
    ],
    ids=shown,
)
def test_only_frozen_classes_of_immutable_fields_are_immutable(cls: Any, immutable: bool) -> None:
    assert serdes.json_of(cls).immutable is immutable


@pytest.mark.parametrize(
    ("cls", "value", "data"),
    [
        (Tree, Tree(1, [Tree(2)]), b'{"children":[{"children":[],"value":2}],"value":1}'),
        (Click, {"page": "/"}, b'{"page":"/"}'),
        (Point, Point(1, 2), b"[1,2]"),
        (list[Point], [Point(1, 2)], b"[[1,2]]"),
        (ByNumber, ByNumber({10: "x", 9: "y"}), b'{"rows":{"10":"x","9":"y"}}'),
        (set[int], {3, 1, 2}, b"[1,2,3]"),
        (Item | int, 5, b"5"),
    ],
    ids=shown,
)
def test_other_shapes_than_plain_dataclasses_are_taken(cls: Any, value: Any, data: bytes) -> None:
    serde = serdes.json_of(cls)
    assert serde.serialize(value) == data
    assert serde.deserialize(data) == value


@pytest.mark.parametrize(
    ("cls", "data", "said"),
    [
        (Item, b'{"sku":"a","price":"hunter2"}', "Expected `float`, got `str` at `$.price`"),
        (Item, b'{"sku":"a"}', "Object missing required field `price`"),
        (Item, b'{"sku":null,"price":1}', "Expected `str`, got `null` at `$.sku`"),
        (Item, b"[1]", "Expected `object`, got `array`"),
        (Item, b'{"sku":"hunter2', "not JSON"),
        (Item, b"", "not JSON"),
        (Item, b"\xffhunter2", "not JSON"),
        (Side, b'"hunter2"', "Invalid enum value"),
        (list[Item], b'[{"sku":1}]', "at `$[0].sku`"),
        (dict[str, int], b'{"hunter2":"x"}', "at `$[...]`"),
        (Picky, b'{"value":-1}', "ValidationError"),
        (UUID, b'"hunter2"', "Invalid UUID"),
        (date, b'"hunter2"', "Invalid RFC3339 encoded date"),
    ],
    ids=shown,
)
def test_a_document_that_does_not_fit_is_refused_with_the_field_and_not_the_value(
    cls: Any, data: bytes, said: str
) -> None:
    serde = serdes.json_of(cls)
    with pytest.raises(SerdeError) as caught:
        serde.deserialize(data)
    message = str(caught.value)
    assert f"serde {serde.name!r} cannot decode {len(data)} bytes" in message
    assert said in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("cls", "value", "said"),
    [
        (Item, Item("a", "hunter2"), "Expected `float`, got `str` at `$.price`"),  # type: ignore[arg-type]
        (Item, Item("a", float("nan")), "Expected `float`, got `null` at `$.price`"),
        (Item, Item("a", 1.0, True), "Expected `int`, got `bool` at `$.count`"),
        (Item, Item("a", 1.0, 1.5), "Expected `int`, got `float` at `$.count`"),  # type: ignore[arg-type]
        (Item, Item("\ud800", 1.0), "UnicodeEncodeError"),
        (Item, SpecialItem("a", 1.0), "`$` would read back as Item"),
        (Basket, Basket([SpecialItem("a", 1.0)]), "`$.items` would read back as another value"),
        (Basket, Basket((Item("a", 1.0),)), "`$.items` would read back as another value"),  # type: ignore[arg-type]
        (Any, datetime(2024, 1, 1), "`$` would read back as str"),
        (dict[str, Any], {"a": float("inf")}, "`$` would read back as another value"),
        (Item, {"sku": "a", "price": 1.0}, "`$` would read back as Item"),
        (Item, None, "Expected `object`, got `null`"),
        (Item, object(), "TypeError"),
        (Incomparable, Incomparable("hunter2"), "Expected `int`, got `str` at `$.value`"),  # type: ignore[arg-type]
    ],
    ids=shown,
)
def test_an_object_that_would_not_read_back_is_refused_with_the_field_and_not_the_value(
    cls: Any, value: Any, said: str
) -> None:
    serde = serdes.json_of(cls)
    with pytest.raises(SerdeError) as caught:
        serde.serialize(value)
    message = str(caught.value)
    assert f"cannot encode a value of type {type(value).__name__}" in message
    assert said in message
    assert "hunter2" not in message


def test_an_unchecked_serde_writes_what_it_could_not_read() -> None:
    item = serdes.json_of(Item, checked=False)
    data = item.serialize(Item("a", "text"))  # type: ignore[arg-type]
    assert data == b'{"count":1,"price":"text","sku":"a"}'
    with pytest.raises(SerdeError, match=r"\$\.price"):
        item.deserialize(data)


def test_a_class_without_equality_is_written() -> None:
    serde = serdes.json_of(Incomparable)
    assert serde.deserialize(serde.serialize(Incomparable(5))).value == 5


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Impossible, "field 'amount' of Impossible has type complex"),
        (list[object], "object"),
        (Item | Place, "cannot be JSON"),
        ("Item", "give the class itself"),
    ],
    ids=shown,
)
def test_a_class_that_json_cannot_hold_is_refused_at_once(cls: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        serdes.json_of(cls)


@pytest.mark.parametrize("data", [None, 5, ["x"]], ids=shown)
def test_only_bytes_are_decoded(data: Any) -> None:
    with pytest.raises(SerdeError, match="pass bytes"):
        serdes.json_of(Item).deserialize(data)


def test_the_serde_travels_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(order_serde))
    assert again == order_serde
    assert again.deserialize(again.serialize(ORDER)) == ORDER


def test_errors_call_the_serde_by_its_name() -> None:
    with pytest.raises(SerdeError, match="serde 'orders'"):
        serdes.json_of(Item, name="orders").deserialize(b"{}")
    assert serdes.json_of(list[Item]).name.startswith("json_of(list[")


def test_a_type_checker_knows_the_class() -> None:
    assert_type(serdes.json_of(Order), Serde[Order])
    assert_type(serdes.json_of(list[Order]), Serde[list[Order]])
    assert_type(serdes.json_of(Click), Serde[Click])


def test_times_of_day_and_durations_are_strings() -> None:
    serde = serdes.json_of(timedelta)
    assert serde.deserialize(serde.serialize(timedelta(minutes=5))) == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("Item", r"json_of: give the class itself, and not its name: json_of\(Item\)$"),
        ("a secret!", r"not its name: json_of\(Order\)$"),
        (ORDER, r"json_of: give a class, and not an object of the class Order: json_of\(Order\)$"),
        ({"a secret": 1}, r"not an object of the class dict$"),
        ([Item], r"not an object of the class list$"),
    ],
)
def test_what_is_no_class_is_refused_without_what_it_holds(given: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        serdes.json_of(given)


def test_a_list_of_what_is_no_serde_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"inner must be a serde, .* write serdes\.json_of"):
        serdes.list_of(Item)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Shelf:
    """Its default is a class's attribute, which objects that were read may lack."""

    name: str
    floor: int = 0
    inner: Shelf | None = None


@dataclass(frozen=True)
class Room:
    shelves: tuple[Shelf, ...] = ()
    by_name: dict[str, Shelf] = field(default_factory=dict)


class Hall(msgspec.Struct, frozen=True):
    shelf: Shelf
    size: int = 1


@pytest.mark.parametrize(
    ("cls", "made", "left_out"),
    [
        (Shelf, Shelf("a"), b'{"name":"a"}'),
        (Shelf, Shelf("a", 2, Shelf("b")), b'{"name":"a","floor":2,"inner":{"name":"b"}}'),
        (Room, Room((Shelf("a"),)), b'{"shelves":[{"name":"a"}]}'),
        (Room, Room(by_name={"x": Shelf("a")}), b'{"by_name":{"x":{"name":"a"}}}'),
        (Hall, Hall(Shelf("a")), b'{"shelf":{"name":"a"}}'),
        (tuple[str, Shelf], ("k", Shelf("a")), b'["k",{"name":"a"}]'),
        (list[Shelf], [Shelf("a")], b'[{"name":"a"}]'),
    ],
)
def test_equal_objects_have_equal_bytes_whatever_a_document_leaves_out(
    cls: Any, made: object, left_out: bytes
) -> None:
    """As keys they are one, wherever they come from."""
    serde: Any = serdes.json_of(cls)
    read = serde.deserialize(left_out)
    assert read == made
    assert serde.serialize(read) == serde.serialize(made)
    assert serde.normalise(made) == made
