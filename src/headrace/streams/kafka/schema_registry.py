"""Schema registry over HTTP, for `headrace.topology.serdes.avro.registered`.

It uses Confluent's client, and needs the extra ``headrace[registry]``. Importing this module does
not import the client; creating a `SchemaRegistry` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headrace.streams.config.secrets import (
    Secret,
    guarded,
    revealed,
    scrubbed,
    shown_url,
    url_secrets,
)
from headrace.topology.errors import RegistryError, SchemaRefusedError, SchemaUnknownError

T = TypeVar("T")

_NOT_FOUND = 404
_CONFLICT = 409


class SchemaRegistry:
    """Client of a registry with Confluent's HTTP API (Confluent, Redpanda, Apicurio, Karapace).

    The client caches answers, and retries if the registry is slow or fails.

    Args:
        url: the registry's URL, such as ``http://localhost:8081``; several with commas.
        settings: settings of Confluent's `SchemaRegistryClient`, such as ``basic.auth.user.info``,
            ``ssl.ca.location``, ``timeout`` in seconds and ``max.retries``.

    Raises:
        RegistryError: the client is not installed, or rejects a setting.
    """

    def __init__(self, url: str, settings: Mapping[str, Any] | None = None) -> None:
        try:
            from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
            from confluent_kafka.schema_registry.error import SchemaRegistryError
        except ImportError as error:
            raise RegistryError(
                f"the schema registry's client needs {error.name}; pip install 'headrace[registry]'"
            ) from error
        self._url = Secret(url)
        self._settings = settings = guarded(settings or {})
        self._where = f"schema registry at {shown_url(url)}"
        self._secrets = [Secret(value) for value in _secrets(url, settings)]
        url = self._where
        self._schema = Schema
        self._refusal = SchemaRegistryError
        try:
            self._client = SchemaRegistryClient(revealed({"url": self._url, **settings}))
        except (TypeError, ValueError) as error:
            text = self._scrubbed(error)
            raise RegistryError(f"{self._where}: {text}; correct it") from self._cause(error)

    def __reduce__(self) -> tuple[type[SchemaRegistry], tuple[str, dict[str, Any]]]:
        # A connection cannot be pickled.
        return SchemaRegistry, (self._url.reveal(), revealed(self._settings))

    def register(self, subject: str, schema: str, /) -> int:
        """Register a schema as a version of a subject, if it is new, and return its ID."""
        return self._ask(
            lambda: int(self._client.register_schema(subject, self._schema(schema, "AVRO"))),
            f"subject {subject!r}",
        )

    def id_of(self, subject: str, schema: str, /) -> int:
        """Return the ID of a schema that is registered under a subject."""
        return self._ask(
            lambda: int(
                self._client.lookup_schema(subject, self._schema(schema, "AVRO")).schema_id or 0
            ),
            f"subject {subject!r}",
        )

    def schema(self, schema_id: int, /) -> str:
        """Return the schema with an ID."""
        return self._ask(
            lambda: str(self._client.get_schema(schema_id).schema_str), f"schema id {schema_id}"
        )

    def _ask(self, question: Callable[[], T], about: str) -> T:
        where = f"{self._where}, {about}"
        try:
            return question()
        except self._refusal as error:
            status, text = error.http_status_code, self._scrubbed(error.error_message)
            if status == _NOT_FOUND:
                raise SchemaUnknownError(f"{where}: {text}") from self._cause(error)
            if status == _CONFLICT:
                raise SchemaRefusedError(
                    f"{where}: {text}; change the schema so that it can read existing data, or "
                    "write to another subject"
                ) from self._cause(error)
            raise RegistryError(f"{where}: {text} (HTTP {status})") from self._cause(error)
        except Exception as error:
            raise RegistryError(
                f"{where}: no answer ({type(error).__name__}: {self._scrubbed(error)}); check "
                "that it runs and is reachable, then start again"
            ) from self._cause(error)

    def _scrubbed(self, text: object) -> str:
        return scrubbed(str(text), *(secret.reveal() for secret in self._secrets))

    def _cause(self, error: BaseException) -> BaseException | None:
        """Return the error, or None if its text and variables may reveal secrets."""
        return None if self._secrets else error


def _secrets(url: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the secrets in URL and settings, and the parts of them that texts may show."""
    secrets = url_secrets(url)
    for value in settings.values():
        if isinstance(value, Secret) and isinstance(value.reveal(), str):
            text = value.reveal()
            secrets += [text, *text.split(":", 1)[1:]]
    return secrets
