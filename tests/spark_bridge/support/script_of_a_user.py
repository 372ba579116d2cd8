"""What one writes in a script or a notebook: classes, serdes and functions of `__main__`.

Run as a script: with ``classes`` it sends each class and an object of it to a process that does not
have this file; with a broker's address, an application's id and its input it backfills from there.
"""

from __future__ import annotations

import enum
import json
import pickle
import subprocess
import sys
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, ClassVar, NamedTuple, NotRequired, TypedDict

import msgspec
import orjson

from headrace.spark_bridge.plan import by_value
from headrace.topology import StreamsBuilder, serdes


class Kind(enum.StrEnum):
    BOOK = "book"
    TEA = "tea"


class Rank(enum.IntEnum):
    LOW = 1


@dataclass
class Address:
    city: str
    before: Address | None = None


@dataclass(frozen=True, slots=True)
class Order:
    cents: int
    kind: Kind
    to: Address
    rank: Rank = Rank.LOW
    tags: list[str] = field(default_factory=list)

    def twice(self) -> int:
        return 2 * self.cents


class Place(TypedDict):
    at: Address
    shelf: NotRequired[str]


class Shelves(Place, total=False):
    others: list[Place]


class Line(msgspec.Struct, frozen=True, rename="camel", tag="line"):
    in_cents: int
    place: Place
    parts: list[Line] = []
    limit: ClassVar[int] = 1_000_000

    def __post_init__(self) -> None:
        assert self.in_cents < Line.limit

    def twice(self) -> int:
        return 2 * self.in_cents


class Gift(Line, frozen=True, kw_only=True):
    to: str


class Total(NamedTuple):
    cents: int
    last: Order | None = None


HOME = Address("Oslo", Address("Bergen"))
ORDER = Order(12, Kind.TEA, HOME, tags=["new"])
PLACE: Place = {"at": HOME}
OBJECTS: dict[Any, Any] = {
    Address: HOME,
    Order: ORDER,
    Place: PLACE,
    Shelves: {"at": HOME, "others": [PLACE], "shelf": "s"},
    Line: Line(3, PLACE, [Line(4, PLACE)]),
    Gift: Gift(5, PLACE, to="Ann"),
    Total: Total(7, ORDER),
    Kind: Kind.BOOK,
    Rank: Rank.LOW,
}


def look_at(cls: Any, value: Any) -> list[Any]:
    made = asdict(value) if is_dataclass(value) else None
    text = json.dumps(orjson.loads(orjson.dumps(value)), sort_keys=True) if made else None
    twice = value.twice() if hasattr(value, "twice") else None
    return [cls.__name__, repr(value), repr(made), text, twice]


ELSEWHERE = """
import json, pickle, sys
for packed in pickle.loads(sys.stdin.buffer.read()):
    cls, serde, function, data = pickle.loads(packed)
    value = serde.deserialize(data)
    assert serde.serialize(value) == data
    print(json.dumps(function(cls, value)))
"""


def send_classes() -> None:
    """Print what each object is here, and in a process without this file."""
    packed = []
    for cls, value in OBJECTS.items():
        serde = serdes.json_of(cls)
        data = serde.serialize(value)
        assert serde.deserialize(data) == value  # now the class has what msgspec leaves on it
        print(json.dumps(look_at(cls, value)), flush=True)
        packed.append(by_value.dumps((cls, serde, look_at, data)))
    subprocess.run([sys.executable, "-c", ELSEWHERE], input=pickle.dumps(packed), check=True)


def topology_of(orders: str) -> Any:
    builder = StreamsBuilder()
    (
        builder.stream(orders, key=serdes.string, value=serdes.json_of(Order))
        .map_values(lambda order: (order.kind, Line(order.twice() // 2, {"at": order.to})))
        .map(lambda _, pair: pair)
        .group_by_key(key=serdes.json_of(Kind), value=serdes.json_of(Line))
        .aggregate(
            lambda: Total(0),
            lambda kind, line, old: Total(
                old.cents + line.in_cents, Order(line.in_cents, kind, line.place["at"])
            ),
            value=serdes.json_of(Total),
            store="totals",
        )
    )
    return builder.build()


def run(bootstrap: str, application: str, orders: str) -> None:
    from headrace.spark_bridge import backfill, local_session, read_store, read_topic

    spark = local_session(cores=1)
    settings = {"application.id": application, "bootstrap.servers": bootstrap}
    topology = topology_of(orders)
    report = backfill(topology, settings, spark=spark)
    totals = read_store(spark, topology, "totals", settings).collect()
    read = read_topic(spark, topology, orders, settings).collect()
    said = {
        "records": report.records,
        "totals": {row["key"]: json.loads(row["value"])[0] for row in totals},
        "cities": sorted({json.loads(row["value"])["to"]["city"] for row in read}),
    }
    print(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1] == "classes":
        send_classes()
    else:
        run(*sys.argv[1:])
