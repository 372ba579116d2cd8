"""`avro.registered` speaks the wire format of schema registries, and follows schemas by their ids.

Confluent's own serializer and deserializer, with its own registry in memory, are what the bytes are
compared with.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_type

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.topology import serdes
from headrace.topology.errors import (
    RegistryError,
    SchemaRefusedError,
    SchemaUnknownError,
    SerdeError,
)
from headrace.topology.serdes import Serde, avro

V1: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "int"}, {"name": "city", "type": "string"}],
}


def version(*fields: dict[str, Any]) -> dict[str, Any]:
    return {**V1, "fields": list(fields)}


ID = {"name": "id", "type": "int"}
CITY = {"name": "city", "type": "string"}
ADDED = version(ID, CITY, {"name": "note", "type": "string", "default": "-"})


@dataclass(frozen=True)
class Order:
    id: int
    city: str
    note: str = "?"


@dataclass
class Silent:
    """A registry that does not answer, and counts how often it was asked."""

    asked: int = 0

    def register(self, subject: str, schema: str, /) -> int:
        self.asked += 1
        raise RegistryError("no answer")

    id_of = register

    def schema(self, schema_id: int, /) -> str:
        self.asked += 1
        raise RegistryError("no answer")


@dataclass
class Counting(avro.MemoryRegistry):
    """Counts the questions."""

    questions: list[str] = field(default_factory=list)

    def register(self, subject: str, schema: str, /) -> int:
        self.questions.append(f"register {subject}")
        return avro.MemoryRegistry.register(self, subject, schema)

    def schema(self, schema_id: int, /) -> str:
        self.questions.append(f"schema {schema_id}")
        return avro.MemoryRegistry.schema(self, schema_id)


@dataclass(frozen=True)
class OfConfluent:
    """Confluent's registry in memory as one of ours."""

    client: Any

    def register(self, subject: str, schema: str, /) -> int:
        return int(self.client.register_schema(subject, Schema(schema, "AVRO")))

    def id_of(self, subject: str, schema: str, /) -> int:
        return int(self.client.lookup_schema(subject, Schema(schema, "AVRO")).schema_id)

    def schema(self, schema_id: int, /) -> str:
        return str(self.client.get_schema(schema_id).schema_str)


def test_confluent_s_deserializer_reads_it_and_its_serializer_is_read() -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://wire"})
    context = SerializationContext("orders", MessageField.VALUE)
    theirs = AvroSerializer(client, json.dumps(V1))
    value = {"id": 7, "city": "héron"}
    data = theirs(value, context)
    assert data is not None
    mine = avro.registered(
        V1, registry=OfConfluent(client), subject="orders-value", auto_register=False
    )
    assert mine.serialize(value) == data
    assert mine.deserialize(data) == value
    assert AvroDeserializer(client)(mine.serialize(value), context) == value


def test_the_format_is_a_zero_the_id_and_the_bare_bytes() -> None:
    registry = avro.MemoryRegistry()
    registry.register("other", '"string"')
    serde = avro.registered(V1, registry=registry, subject="orders-value")
    value = {"id": 7, "city": "x"}
    assert serde.serialize(value) == b"\x00\x00\x00\x00\x02" + avro.serde(V1).serialize(value)


def test_the_registry_is_asked_once_for_each_schema() -> None:
    registry = Counting()
    writer = avro.registered(V1, registry=registry, subject="orders-value")
    reader = avro.registered(ADDED, registry=registry, subject="orders-value")
    assert registry.questions == []
    data = [writer.serialize({"id": i, "city": "x"}) for i in range(5)]
    assert [reader.deserialize(one)["id"] for one in data] == [0, 1, 2, 3, 4]
    assert registry.questions == ["register orders-value", "schema 1"]


@pytest.mark.parametrize(
    ("newer", "read"),
    [
        (ADDED, {"id": 7, "city": "x", "note": "-"}),
        (version(ID), {"id": 7}),
        (version(ID, {**CITY, "name": "town", "aliases": ["city"]}), {"id": 7, "town": "x"}),
        (version({**ID, "type": "long"}, CITY), {"id": 7, "city": "x"}),
    ],
    ids=["field added with default", "field removed", "field renamed with alias", "int to long"],
)
def test_old_and_new_records_are_read_from_one_topic(
    newer: dict[str, Any], read: dict[str, Any]
) -> None:
    registry = avro.MemoryRegistry()
    old = avro.registered(V1, registry=registry, subject="orders-value")
    new = avro.registered(newer, registry=registry, subject="orders-value")
    data = [old.serialize({"id": 7, "city": "x"}), new.serialize(read)]
    assert data[0][:5] != data[1][:5]
    assert [new.deserialize(one) for one in data] == [read, read]


def test_records_of_a_newer_schema_are_read_in_the_older_shape() -> None:
    registry = avro.MemoryRegistry()
    old = avro.registered(V1, registry=registry, subject="orders-value", into=Order)
    new = avro.registered(ADDED, registry=registry, subject="orders-value")
    data = new.serialize({"id": 7, "city": "x", "note": "new"})
    assert old.deserialize(data) == Order(7, "x", "?")


def test_an_incompatible_schema_is_refused_before_anything_is_written() -> None:
    registry = avro.MemoryRegistry()
    avro.registered(V1, registry=registry, subject="orders-value").serialize({"id": 7, "city": "x"})
    needs_more = version(ID, CITY, {"name": "note", "type": "string"})
    new = avro.registered(needs_more, registry=registry, subject="orders-value")
    with pytest.raises(SchemaRefusedError, match=r"'orders-value'.*default value: note"):
        new.serialize({"id": 7, "city": "x", "note": "n"})


def test_a_record_that_the_own_schema_cannot_read_is_refused_with_id_and_subject() -> None:
    registry = avro.MemoryRegistry("NONE")
    data = avro.registered('"string"', registry=registry, subject="x").serialize("hunter2")
    serde = avro.registered(V1, registry=registry, subject="orders-value")
    with pytest.raises(SerdeError) as caught:
        serde.deserialize(data)
    assert "schema id 1, subject 'orders-value' cannot be read as shop.Order" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_id_that_the_registry_does_not_have_is_said_with_the_subject() -> None:
    serde = avro.registered(V1, registry=avro.MemoryRegistry(), subject="orders-value")
    with pytest.raises(SerdeError, match=r"schema id 17, subject 'orders-value'.*id 17"):
        serde.deserialize(b"\x00\x00\x00\x00\x11\x02\x02a")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "begins with 5 bytes of header"),
        (b"\x00\x00\x00\x01", "begins with 5 bytes of header"),
        (b"\x01\x00\x00\x00\x01\x02", "begins with byte 0x01, where registered Avro begins"),
        (b'{"id": 7, "city": "hunter2"}', "begins with byte 0x7b"),
        (b"\x00\x00\x00\x00\x01\x0e", "EOFError"),
        (b"\x00\x00\x00\x00\x01\x0e\x02xy", "1 bytes follow"),
    ],
)
def test_what_is_no_registered_avro_is_refused_with_the_reason(data: bytes, said: str) -> None:
    registry = avro.MemoryRegistry()
    serde = avro.registered(V1, registry=registry, subject="orders-value")
    serde.serialize({"id": 1, "city": "x"})
    with pytest.raises(SerdeError) as caught:
        serde.deserialize(data)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_registry_that_does_not_answer_blames_no_record_and_is_asked_again() -> None:
    registry = Silent()
    serde = avro.registered(V1, registry=registry, subject="orders-value")
    for _ in range(2):
        with pytest.raises(RegistryError, match="no answer"):
            serde.deserialize(b"\x00\x00\x00\x00\x11\x02\x02a")
        with pytest.raises(RegistryError, match="no answer"):
            serde.serialize({"id": 7, "city": "x"})
    assert registry.asked == 4
    assert not issubclass(RegistryError, SerdeError)


def test_without_auto_register_the_schema_must_be_there() -> None:
    registry = avro.MemoryRegistry()
    serde = avro.registered(V1, registry=registry, subject="orders-value", auto_register=False)
    with pytest.raises(SchemaUnknownError, match="orders-value"):
        serde.serialize({"id": 7, "city": "x"})
    registry.register("orders-value", json.dumps(V1))
    assert serde.serialize({"id": 7, "city": "x"})[:5] == b"\x00\x00\x00\x00\x01"


@pytest.mark.parametrize(
    ("subject_name", "of_value", "of_key"),
    [
        ("topic-name", "orders-value", "orders-key"),
        ("record-name", "shop.Order", "shop.Order"),
        ("topic-record-name", "orders-shop.Order", "orders-shop.Order"),
    ],
)
def test_the_subject_is_named_as_in_kafka(subject_name: Any, of_value: str, of_key: str) -> None:
    registry = Counting()
    serde: Any = avro.registered(V1, registry=registry, subject_name=subject_name)
    serde.for_topic("orders", is_key=False).serialize({"id": 7, "city": "x"})
    serde.for_topic("orders", is_key=True).serialize({"id": 7, "city": "x"})
    asked = list(dict.fromkeys(registry.questions))
    assert asked == list(dict.fromkeys([f"register {of_value}", f"register {of_key}"]))


def test_a_given_subject_is_kept_and_one_topic_gives_one_serde() -> None:
    fixed: Any = avro.registered(V1, registry=avro.MemoryRegistry(), subject="s")
    assert fixed.for_topic("orders", is_key=False) is fixed
    free: Any = avro.registered(V1, registry=avro.MemoryRegistry())
    bound = free.for_topic("orders", is_key=False)
    assert bound is free.for_topic("orders", is_key=False)
    assert bound is not free.for_topic("other", is_key=False)


def test_lists_and_windowed_keys_tell_the_topic_to_what_is_in_them() -> None:
    registry = Counting()
    inner = avro.registered("string", registry=registry)
    outer: Any = serdes.list_of(inner)
    outer.for_topic("orders", is_key=False).serialize(["x"])
    windowed: Any = serdes.session_windowed(inner)
    assert windowed.for_topic("orders", is_key=True).inner.subject == "orders-key"
    assert registry.questions == ["register orders-value"]
    plain: Any = serdes.list_of(serdes.long)
    assert plain.for_topic("orders", is_key=False) is plain


def test_without_a_topic_or_subject_nothing_is_written() -> None:
    serde = avro.registered(V1, registry=avro.MemoryRegistry())
    with pytest.raises(RegistryError, match="no subject"):
        serde.serialize({"id": 7, "city": "x"})


def test_without_a_schema_each_record_is_read_in_its_own_and_none_is_written() -> None:
    registry = avro.MemoryRegistry()
    data = [
        avro.registered(schema, registry=registry, subject="s").serialize(value)
        for schema, value in ((V1, {"id": 7, "city": "x"}), (version(ID), {"id": 8}))
    ]
    serde = avro.registered(registry=registry)
    assert [serde.deserialize(one) for one in data] == [{"id": 7, "city": "x"}, {"id": 8}]
    with pytest.raises(SerdeError, match="has no schema to write with"):
        serde.serialize({"id": 7})


def test_a_serde_travels_to_another_process(tmp_path: Path) -> None:
    registry = avro.FileRegistry(tmp_path / "schemas.json")
    serde = avro.registered(ADDED, registry=registry, subject="orders-value", into=Order)
    data = serde.serialize(Order(7, "x"))
    again = pickle.loads(pickle.dumps(serde))
    assert again == serde
    assert again.deserialize(data) == Order(7, "x")


def test_a_type_checker_knows_the_class() -> None:
    registry = avro.MemoryRegistry()
    assert_type(avro.registered(V1, registry=registry, into=Order), Serde[Order])
    assert_type(avro.registered(V1, registry=registry), Serde[Any])
