"""The page docs/configuration.md, made from the tables that the settings are checked by."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace.streams.config.client_settings import OWNED, OWNED_TOPIC_CONFIGS
from headrace.streams.config.config import table
from headrace.streams.config.java_settings import NOT_SUPPORTED
from headrace.streams.secrets import SECRET_NAMES

_HEAD = """\
# Configuration

Settings keep Kafka's dotted names. All of them are checked before anything starts, and all that
is wrong is reported at once. `headrace settings` shows them in a terminal, `headrace settings NAME`
one of them. This page is printed by `python -m headrace.streams.config.config_page`.

| setting | values | default | meaning |
|---|---|---|---|
"""

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

_REFUSED = """
## Settings of Kafka Streams that are refused

| setting | what to do |
|---|---|
"""


def page() -> str:
    """The whole page, as Markdown."""
    return (
        _HEAD
        + "".join(_rows())
        + PLACES.format(secrets=", ".join(f"`{name}`" for name in sorted(SECRET_NAMES)))
        + CLIENTS
        + "".join(_owned_rows())
        + _REFUSED
        + "".join(_row(f"`{name}`", why) for name, why in NOT_SUPPORTED.items())
    )


def _rows() -> Iterator[str]:
    for own in table():
        default = own.default_words
        if default not in ("required", "not set") and " " not in default:
            default = f"`{default}`"
        yield _row(f"`{own.name}`", own.kind.words, default, own.doc)


def _owned_rows() -> Iterator[str]:
    for owned in OWNED:
        clients = ", ".join(client.rstrip(".") for client in owned.clients)
        value = "none" if owned.value is None else f"`{owned.value}`"
        if owned.exactly_once_only:
            value += " under exactly-once"
        yield _row(f"`{owned.name}`", clients, value, owned.reason)
    for name, reason in OWNED_TOPIC_CONFIGS.items():
        yield _row(f"`{name}`", "topic", "none", reason)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
