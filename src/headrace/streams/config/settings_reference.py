"""Reference of the settings, printed by `headrace settings`, and texts of docs/configuration.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from headrace.streams.config.client_names import CONSUMER, PRODUCER, SHARED, TUNING
from headrace.streams.config.client_settings import (
    OWNED,
    OWNED_TOPIC_CONFIGS,
    PREFIXES,
    unknown_setting,
)
from headrace.streams.config.config import table
from headrace.streams.config.environment import variable_of
from headrace.streams.config.java_settings import next_step
from headrace.streams.config.secrets import FILE, SECRET_NAMES
from headrace.streams.config.settings import Setting
from headrace.streams.errors import ConfigError

PLACES = """
## Where settings come from

An application has settings of its own, which the program gives to `KafkaStreams`. Commands lay
others over them; of a setting that is in several places the first of these counts:

1. the command line: `--set NAME=VALUE`, and `--bootstrap-servers`;
2. the environment: `HEADRACE_BOOTSTRAP_SERVERS` is `bootstrap.servers`. An underscore stands for a
   dot, two for an underscore (`HEADRACE_LOG__LEVEL`) and three for a dash, as in Kafka's own
   images. A variable that is for no setting is refused, with the nearest one that is;
3. a file: `--config FILE`, or the one that `HEADRACE_CONFIG` names, in TOML: lines such as
   `"sasl.username" = "app"`, or tables;
4. the application's own.

So an application may leave `bootstrap.servers` and `application.id`, the two that are required, to
whoever starts it by a command; `headrace describe`, `check` and `try` need neither. Tests and
programs that import such a module have nobody who gives them: let a function make the application,
as in `def app(): return KafkaStreams(...)`.

The error of a setting that is wrong or unknown says where it was given: `(from --set)`,
`(from HEADRACE_POLL_MS)`, `(from app.toml, line 3)`. Without that it is the application's own.

A program that runs itself (`app.run()`) reads neither files nor the environment.

**Secrets by file.** Behind the name of each setting that holds a secret, `.file` names a file that
holds it: `sasl.password.file`, `ssl.key.password.file`, `producer.ssl.key.pem.file`, or
`HEADRACE_SASL_PASSWORD_FILE`. It works in all of these places, the application's own settings
included. Ends of lines behind the secret are no part of it. It is read when an application is made,
by each worker for itself, so that a new password needs a restart and no other change. A secret
takes the place of its file in the places below, and the other way round. Those that hold secrets:

{secrets}.
"""

CLIENTS = """
## Settings of the Kafka clients

Any setting of librdkafka reaches its client by prefix: `consumer.` (the input, and under
`restore.` the changelogs), `restore.`, `producer.`, `admin.`. Security, network, logging and
statistics settings without a prefix (`security.protocol`, `sasl.*`, `ssl.*`, `socket.*`,
`client.id`, `client.rack`, `debug`, `statistics.interval.ms`, `oauth_cb`, ...) go to every client;
a prefix wins over none. `topic.` sets a config of the internal topics.

`consumer.isolation.level` is `read_committed` under both guarantees: inputs are read up to the
first transaction that is still open, and without records that were aborted. Under at-least-once it
may be `read_uncommitted`; then the application reads all records at once, aborted ones too, and so
does a [backfill](backfill.md) of it.

`consumer.session.timeout.ms` is 10 s: after that the group gives up a worker that died.
`consumer.heartbeat.interval.ms` is 200, or a third of the session where that is shorter. Workers
hear of a rebalance with their next heartbeat, and nobody reads partitions that move until then.

`consumer.queued.min.messages` is 5000 and `consumer.max.partition.fetch.bytes` 262144: records of
all inputs wait in one line, and what is fetched ahead of one of them keeps the others waiting.
Where brokers are far away, larger ones read faster.

`consumer.fetch.wait.max.ms` is 100: a broker answers one request of a client at a time, and waits
that long where the partitions that it asks for have nothing; those that a worker begins to read
meanwhile wait as long.

`consumer.queued.max.messages.kbytes` is 16384 and `producer.queue.buffering.max.kbytes` 65536: with
values of 10 KB and more it is these that bound a worker's memory.

`reconnect.backoff.ms` is 20 for all clients, and doubles with each attempt up to 10 s: a new client
waits half of it before it connects, and a worker starts several.

The runtime owns these; another value is refused:

| setting | clients | only legal value | because |
|---|---|---|---|
"""

_WIDTH = 96
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def listing() -> Iterator[str]:
    for own in table():
        yield from _own(own)
        yield ""
    secrets = ", ".join(sorted(SECRET_NAMES))
    places = PLACES.format(secrets=secrets)
    clients = CLIENTS.rpartition("The runtime owns these")[0]
    yield from _plain(places + clients)
    yield "headrace settings NAME shows one of them, and those of clients that are not free."


def of_name(name: str) -> list[str]:
    """Return the lines about a setting, or about all settings whose names contain a text.

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
    """Remove Markdown marks.

    >>> _bare("see **all** of [Query it](interactive-queries.md), `poll.ms`")
    'see all of Query it, poll.ms'
    """
    return _LINK.sub(r"\1", text).replace("`", "").replace("**", "")


def _plain(markdown: str) -> Iterator[str]:
    for line in _bare(markdown).strip().splitlines():
        yield line.removeprefix("## ").upper() if line.startswith("## ") else line
    yield ""
