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

A program gives its settings to `KafkaStreams`. Commands read settings from other places, too. If a
setting is in several places, the first in this list applies:

1. the command line: `--set NAME=VALUE`, and `--bootstrap-servers`;
2. the environment: `HEADRACE_BOOTSTRAP_SERVERS` is `bootstrap.servers`. An underscore stands for a
   dot, two for an underscore (`HEADRACE_LOG__LEVEL`) and three for a dash, as in Kafka's own
   images. A variable that matches no setting is refused, with the most similar name;
3. a TOML file, named by `--config FILE` or by `HEADRACE_CONFIG`: lines such as
   `"sasl.username" = "app"`, or tables;
4. the program.

So a program may leave out the required settings `bootstrap.servers` and `application.id`, if it is
started by a command; `headrace describe`, `check` and `try` require neither. Tests and programs
that import such a module do not have these settings: let a function create the application, as in
`def app(): return KafkaStreams(...)`.

The error of a wrong or unknown setting names its origin: `(from --set)`, `(from HEADRACE_POLL_MS)`,
`(from app.toml, line 3)`. Without an origin, the program has set it.

A program that calls `app.run()` itself reads neither files nor the environment.

**Secrets in files.** For each setting that holds a secret, the name with `.file` appended names a
file with the secret: `sasl.password.file`, `ssl.key.password.file`, `producer.ssl.key.pem.file`, or
`HEADRACE_SASL_PASSWORD_FILE`. This works in all places, including the program. Line ends after the
secret are ignored. Each worker reads the file when it starts, so a new password requires a restart,
and no other change. A secret overrides the file of a later place in the list, and the file
overrides the secret of a later place. These settings hold secrets:

{secrets}.
"""

CLIENTS = """
## Settings of the Kafka clients

Set any setting of librdkafka with the prefix of its client: `consumer.` (the inputs and, unless
`restore.` overrides it, the changelogs), `restore.`, `producer.`, `admin.`. Settings for security,
network, logging and statistics without a prefix (`security.protocol`, `sasl.*`, `ssl.*`,
`socket.*`, `client.id`, `client.rack`, `debug`, `statistics.interval.ms`, `oauth_cb`, ...) apply to
all clients, and a setting with a prefix overrides them. `topic.` sets a config of the internal
topics.

`consumer.isolation.level` is `read_committed` under both guarantees: inputs are read up to the
first open transaction, without aborted records. Under at-least-once it may be `read_uncommitted`;
then the application and its [backfill](backfill.md) read all records immediately, including aborted
ones.

`consumer.session.timeout.ms` is 10 s: then the group removes a worker that died.
`consumer.heartbeat.interval.ms` is 200, or a third of the session timeout if that is shorter.
Workers learn of a rebalance with their next heartbeat, and partitions that move are not read until
then.

`consumer.queued.min.messages` is 5000 and `consumer.max.partition.fetch.bytes` 262144: records of
all inputs share a queue, so prefetched records of one input delay the others. If brokers are far
away, larger values read faster.

`consumer.fetch.wait.max.ms` is 100: a broker answers one request of a client at a time, and waits
that long if the requested partitions have no records. Partitions that a worker starts to read
meanwhile wait as long.

`consumer.queued.max.messages.kbytes` is 16384 and `producer.queue.buffering.max.kbytes` 65536: with
values of 10 KB and more, these limit the memory of a worker.

`reconnect.backoff.ms` is 20 for all clients, and doubles with each attempt up to 10 s: a new client
waits half of it before it connects, and a worker starts several clients.

The runtime owns these settings, and refuses other values:

| setting | clients | only legal value | reason |
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
    clients = CLIENTS.rpartition("The runtime owns these settings")[0]
    yield from _plain(places + clients)
    yield "headrace settings NAME prints a single setting, including the settings of Kafka clients."


def of_name(name: str) -> list[str]:
    """Return the lines about a setting, or about all settings whose names contain a text.

    >>> print("\\n".join(of_name("poll.ms")))
    poll.ms
        ms or timedelta, from 0; default 100; HEADRACE_POLL_MS
        Maximum wait for records.
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
        meaning = f"cannot be set: {reason}" if reason else "a config of the internal topics"
        yield from _wrapped(meaning)
        return
    if bare not in SHARED | TUNING | CONSUMER | PRODUCER:
        return
    yield name
    whose = f"the {prefix.rstrip('.')} client" if prefix else _whose(bare)
    variable = f"; {variable_of(name)}" if prefix or bare in SHARED else ""
    yield from _wrapped(f"a setting of librdkafka, for {whose}{variable}")
    if bare in SECRET_NAMES:
        yield from _wrapped(f"It is a secret. {prefix}{bare}{FILE} names a file that contains it.")
    for owned in OWNED:
        if owned.name == bare and (not prefix or prefix in owned.clients):
            who = ", ".join(client.rstrip(".") for client in owned.clients)
            value = "cannot be set" if owned.value is None else f"always {owned.value}"
            only = " under exactly-once" if owned.exactly_once_only else ""
            yield from _wrapped(f"{who}: {value}{only}, because {owned.reason}")


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
