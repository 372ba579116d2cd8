"""Version and query endpoint of a worker, encoded in its consumer's client.id.

A group's description contains the client.id of each member next to its assignment, so no further
storage or message is required when tasks move. Brokers and their metrics use client ids in names,
so only letters, digits, ``.``, ``-`` and ``_`` are used.
"""

from __future__ import annotations

import re

from headrace.streams.config.settings import Kind

_MARK = "_at_"
_VERSION = re.compile(r"_v_([0-9a-f]{8})$")
_ENDPOINT = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[a-zA-Z0-9._-]+):(\d{1,5})", re.ASCII)
_PLAIN = re.compile(r"[a-zA-Z0-9.-]", re.ASCII)
_ESCAPED = re.compile(r"_([0-9a-f]{2})")
LENGTH_MAX = 200


def endpoint() -> Kind:
    def parse(value: object) -> object:
        text = value.strip() if isinstance(value, str) else ""
        match = _ENDPOINT.fullmatch(text)
        if match is None or not 0 < int(match[2]) < 65536 or len(text) > LENGTH_MAX:
            raise ValueError(
                f"must be HOST:PORT, as other hosts reach this host, not {str(value)[:80]!r}"
            )
        return text

    return Kind("`host:port`", parse)


def with_endpoint(client_id: str, where: str | None) -> str:
    """Return a client id with the endpoint of its host.

    >>> with_endpoint("shop-consumer", "10.0.0.7:9464")
    'shop-consumer_at_10.0.0.7_3a9464'
    """
    if where is None:
        return client_id
    escaped = (one if _PLAIN.fullmatch(one) else f"_{ord(one):02x}" for one in where)
    return f"{client_id}{_MARK}{''.join(escaped)}"


def endpoint_of(client_id: str) -> str | None:
    """Return the endpoint in a client id, or None without a valid endpoint.

    >>> endpoint_of(with_endpoint("a_at_b", "[::1]:80")), endpoint_of("shop-consumer")
    ('[::1]:80', None)
    """
    # The escaped endpoint contains no mark, because two hex digits follow each underscore.
    _, mark, escaped = client_id.rpartition(_MARK)
    text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), escaped)
    return text if mark and _ENDPOINT.fullmatch(text) else None


def with_version(client_id: str, version: str) -> str:
    """Return a client id with the version of a worker's topology; an empty version adds nothing.

    >>> with_version("shop-consumer", "0a1b2c3d")
    'shop-consumer_v_0a1b2c3d'
    """
    return f"{client_id}_v_{version}" if version else client_id


def version_of(client_id: str) -> str:
    """Return the version in a client id; an empty string without a version.

    >>> version_of(with_endpoint(with_version("shop-consumer", "0a1b2c3d"), "h:80"))
    '0a1b2c3d'
    """
    match = _VERSION.search(_without_endpoint(client_id))
    return "" if match is None else match[1]


def client_of(client_id: str) -> str:
    """Return a client id without version and endpoint.

    >>> client_of(with_endpoint(with_version("shop-consumer", "0a1b2c3d"), "10.0.0.7:9464"))
    'shop-consumer'
    """
    return _VERSION.sub("", _without_endpoint(client_id))


def _without_endpoint(client_id: str) -> str:
    return client_id if endpoint_of(client_id) is None else client_id.rpartition(_MARK)[0]
