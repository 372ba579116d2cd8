"""The settings as a terminal shows them, from the tables of the page docs/configuration.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from headrace.streams.client_names import CONSUMER, PRODUCER, SHARED, TUNING
from headrace.streams.config.client_settings import (
    OWNED,
    OWNED_TOPIC_CONFIGS,
    PREFIXES,
    unknown_setting,
)
from headrace.streams.config.config import table
from headrace.streams.config.config_page import CLIENTS, PLACES
from headrace.streams.config.environment import variable_of
from headrace.streams.config.java_settings import next_step
from headrace.streams.errors import ConfigError
from headrace.streams.secrets import FILE, SECRET_NAMES
from headrace.streams.settings import Setting

_WIDTH = 96
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def listing() -> Iterator[str]:
    """The lines that tell of all settings, of where they come from, and of clients' settings."""
    for own in table():
        yield from _own(own)
        yield ""
    secrets = ", ".join(sorted(SECRET_NAMES))
    places = PLACES.format(secrets=secrets)
    clients = CLIENTS.rpartition("The runtime owns these")[0]
    yield from _plain(places + clients)
    yield "headrace settings NAME shows one of them, and those of clients that are not free."


def of_name(name: str) -> list[str]:
    """The lines on one setting, or on those whose names have this in them.

    Raises:
        ConfigError: there is none.

    Example:
        >>> print("\\n".join(of_name("poll.ms")))
        poll.ms
            ms or timedelta, from 0; default 100; HEADRACE_POLL_MS
            Longest wait for records when there are none.
    """
    every = {own.name: own for own in table()}
    if name in every:
        return list(_own(every[name]))
    lines = list(_of_client(name)) or [
        line for own in every.values() if name in own.name for line in _own(own)
    ]
    if not lines:
        step = next_step(name)
        raise ConfigError(unknown_setting(name, every) if step is None else f"{name}: {step}")
    return lines


def _own(own: Setting) -> Iterator[str]:
    yield own.name
    values = _bare(f"{own.kind.words}; default {own.default_words}; {variable_of(own.name)}")
    yield from _wrapped(values)
    yield from _wrapped(_bare(own.doc))


def _of_client(name: str) -> Iterator[str]:
    """What is known of a client's setting, with a prefix or without."""
    prefix = next((p for p in PREFIXES if name.startswith(p)), "")
    if any(owned.name == name for owned in OWNED):
        prefix = ""  # such as topic.blacklist
    bare = name.removeprefix(prefix).removesuffix(FILE if _is_file(name, prefix) else "")
    if prefix == "topic.":
        yield name
        reason = OWNED_TOPIC_CONFIGS.get(bare)
        said = f"cannot be set: {reason}" if reason else "a config of the internal topics"
        yield from _wrapped(said)
        return
    if bare not in SHARED | TUNING | CONSUMER | PRODUCER:
        return
    yield name
    whose = f"the {prefix.rstrip('.')} client" if prefix else _whose(bare)
    variable = f"; {variable_of(name)}" if prefix or bare in SHARED else ""
    yield from _wrapped(f"a setting of librdkafka, for {whose}{variable}")
    if bare in SECRET_NAMES:
        yield from _wrapped(f"It is a secret: {prefix}{bare}{FILE} names a file that holds it.")
    for owned in OWNED:
        if owned.name == bare and (not prefix or prefix in owned.clients):
            who = ", ".join(client.rstrip(".") for client in owned.clients)
            value = "not to be set" if owned.value is None else f"always {owned.value}"
            only = " under exactly-once" if owned.exactly_once_only else ""
            yield from _wrapped(f"{who}: {value}{only}, as {owned.reason}")


def _is_file(name: str, prefix: str) -> bool:
    return name.removeprefix(prefix).removesuffix(FILE) in SECRET_NAMES


def _whose(bare: str) -> str:
    if bare in SHARED:
        return "every client"
    if bare in TUNING:
        return f"one client: consumer.{bare}, producer.{bare}"
    return f"one client: {'consumer' if bare in CONSUMER else 'producer'}.{bare}"


def _wrapped(text: str) -> Iterator[str]:
    for line in textwrap.wrap(text, _WIDTH - 4, break_on_hyphens=False, break_long_words=False):
        yield f"    {line}"


def _bare(text: str) -> str:
    """Markdown without its marks.

    >>> _bare("see **all** of [Query it](query.md), `poll.ms`")
    'see all of Query it, poll.ms'
    """
    return _LINK.sub(r"\1", text).replace("`", "").replace("**", "")


def _plain(markdown: str) -> Iterator[str]:
    for line in _bare(markdown).strip().splitlines():
        yield line.removeprefix("## ").upper() if line.startswith("## ") else line
    yield ""
