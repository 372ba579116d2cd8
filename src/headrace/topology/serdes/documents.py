"""Conversion between keys or values and JSON documents, for files and terminals."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.topology.errors import SerdeError
from headrace.topology.serdes import Serde

TOO_DEEP = "is nested too deeply"
BASE64 = "base64"
"""Field name of the object that represents bytes that are not UTF-8."""


def to_document(value: object) -> Any:
    r"""Return a decoded key or value as a JSON document: numbers, text, lists and dicts.

    Bytes become UTF-8 text, or an object with the field ``base64``; objects that JSON cannot
    represent become their `repr`. A value that is nested too deeply raises SerdeError.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     id: bytes
    ...     price: float
    >>> to_document(Order(b"a-1", 2.5))
    {'id': 'a-1', 'price': 2.5}
    >>> to_document(b"\xff")
    {'base64': '/w=='}
    """
    try:
        return msgspec.to_builtins(_without_bytes(value), str_keys=True, enc_hook=_otherwise)
    except RecursionError as error:
        raise SerdeError(f"a {type(value).__name__} {TOO_DEEP} to be shown as JSON") from error


def _without_bytes(value: object) -> object:
    """Convert bytes in plain containers to text, because msgspec writes all bytes as base64."""
    if isinstance(value, bytes):
        return _text_of(value)
    if isinstance(value, list):
        return [_without_bytes(item) for item in value]
    if isinstance(value, dict):
        return {_name_of(name): _without_bytes(item) for name, item in value.items()}
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        items = [_without_bytes(item) for item in value]
        return items if names is None else dict(zip(names, items, strict=True))
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is None:
        fields = getattr(type(value), "__struct_fields__", None)
    if fields is not None:
        return {name: _without_bytes(getattr(value, name)) for name in fields}
    return value


def _text_of(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return as_base64(data)


def _name_of(name: object) -> object:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def _otherwise(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # a method of pydantic's models
    return _without_bytes(dump()) if callable(dump) else repr(value)


def decoded(data: bytes | None, serde: Serde[Any]) -> Any:
    """Return the decoded data, or the data if the serde cannot decode it, as in dead letters.

    >>> from headrace import serdes
    >>> decoded(b"{}", serdes.json), decoded(b"{", serdes.json), decoded(None, serdes.json)
    ({}, b'{', None)
    """
    try:
        return None if data is None else serde.deserialize(data)
    except SerdeError:
        return data


def as_base64(data: bytes) -> dict[str, str]:
    r"""Return the document that represents exactly these bytes.

    >>> as_base64(b"\xff")
    {'base64': '/w=='}
    """
    return {BASE64: base64.b64encode(data).decode()}


def to_bytes(document: Any, serde: Serde[Any]) -> bytes:
    r"""Return the bytes that a producer would write for a JSON document other than null.

    The serde encodes documents that it accepts: numbers, text, dicts for JSON and Avro. A serde of
    a user's class does not accept dicts. If it reads JSON, the document is decoded and encoded
    again, so fields are in the serde's order. Avro serdes of a class convert the document to an
    object. An object with only the field ``base64`` represents the bytes themselves, which the
    serde may be unable to decode.

    >>> from headrace import serdes
    >>> to_bytes(7, serdes.long)
    b'\x00\x00\x00\x00\x00\x00\x00\x07'
    >>> to_bytes({"id": 1}, serdes.json)
    b'{"id":1}'
    >>> to_bytes("a-1", serdes.bytes)
    b'a-1'
    """
    try:
        return _to_bytes(document, serde)
    except RecursionError as error:
        raise SerdeError(f"the document {TOO_DEEP}") from error


def _to_bytes(document: Any, serde: Serde[Any]) -> bytes:
    if isinstance(document, dict) and document.keys() == {BASE64}:
        return _from_base64(document[BASE64])
    value = _raw(document) if _takes_bytes(serde) else document
    try:
        return serde.serialize(value)
    except SerdeError as refused:
        if not isinstance(document, dict | list):
            raise
        make = getattr(serde, "of_plain", None)  # a method of Avro serdes
        if make is not None:
            return serde.serialize(_made(make, document, refused))
        data = msgspec.json.encode(document)
        try:
            read = serde.deserialize(data)
        except SerdeError as unread:
            raise SerdeError(
                f"{refused}; its JSON is not a valid value either: {unread}"
            ) from refused
        if isinstance(read, int | float):  # a numeric serde decodes any eight bytes
            raise
        return serde.serialize(read)


def _made(make: Callable[[Any], Any], document: Any, refused: SerdeError) -> Any:
    value = make(document)
    shown = to_document(value)
    # Text may be bytes or their base64, so check that the object has the document's values.
    if isinstance(document, dict) and any(shown.get(n) != field for n, field in document.items()):
        raise SerdeError(f"{refused}; converted to an object, it would be {shown}") from refused
    return value


def _takes_bytes(serde: Serde[Any]) -> bool:
    try:
        return isinstance(serde.deserialize(b""), bytes)
    except SerdeError:
        return False


def _raw(document: Any) -> bytes:
    if isinstance(document, str):
        return document.encode()
    return msgspec.json.encode(document)


def _from_base64(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError as error:
        raise SerdeError(f"the field {BASE64!r} is not base64: {error}") from error
