"""Settings of Kafka Streams and of Java clients that do not exist here, with advice for each.

They occur in configurations from Java. A test checks that each name in Kafka 4.3 is either known
here or has advice.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.streams.config.client_names import CONSUMER, PRODUCER, SHARED, TUNING

_NO_LOCAL_COUNTERPART = "remove it: librdkafka has no such feature"
_METRICS = (
    "remove it: Java's metric reporters do not exist here; `headrace run --http PORT` serves "
    "metrics, and statistics.interval.ms with stats_cb reports those of the clients"
)
_STANDBYS = (
    "remove it: there are no standby tasks; state survives an unclean stop, so a restart restores "
    "only the last records"
)
_LIST_SERDES = "write serdes.list_of(...) in the topology"
_WINDOWED_SERDES = (
    "a windowed serde contains its size: write serdes.time_windowed(inner, size=...) or "
    "serdes.session_windowed(inner) in the topology"
)
_STORES = "remove it: stores use RocksDB; create a custom store with Stores.custom"
_BROKERS_PART = "remove it: only brokers use it, to check tokens"
_SERDES_OF_CLIENTS = (
    "write default.key.serde and default.value.serde, or key= and value= in the sources and sinks "
    "of the topology"
)
_LOGIN = (
    "remove it: librdkafka renews tokens automatically; for your own token set oauth_cb, or "
    "sasl.oauthbearer.method=oidc with sasl.oauthbearer.token.endpoint.url"
)
_INTERCEPTORS = "remove it: write an operator, such as peek, or a worker_listener"
_OPENSSL = "remove it: TLS uses OpenSSL instead of Java's providers; see ssl.* of librdkafka"
_PEM = (
    "key stores must be PEM or PKCS#12: write ssl.certificate.location and ssl.key.location, or "
    "ssl.keystore.location with a PKCS#12 file"
)

NOT_SUPPORTED: Mapping[str, str] = {
    # Kafka Streams
    "num.stream.threads": (
        "workers are processes, not threads; remove it and run `headrace run --workers N`"
    ),
    "num.standby.replicas": (
        "remove it: there are no standby tasks, because the client library supports no custom "
        "assignor; state survives an unclean stop, so a restart restores only the last records"
    ),
    "cache.max.bytes.buffering": "write statestore.cache.max.bytes",
    "rocksdb.config.setter": "write rocksdb.block.cache.bytes and rocksdb.write.buffer.bytes",
    "group.protocol": "members are static members of the classic protocol; remove it",
    "transaction.timeout.ms": "write producer.transaction.timeout.ms",
    "default.deserialization.exception.handler": "write deserialization.exception.handler",
    "default.production.exception.handler": "write production.exception.handler",
    "window.size.ms": _WINDOWED_SERDES,
    "windowed.inner.class.serde": _WINDOWED_SERDES,
    "default.windowed.key.serde.inner": _WINDOWED_SERDES,
    "default.windowed.value.serde.inner": _WINDOWED_SERDES,
    "uncaught.exception.handler": "write uncaught_error_handler= of KafkaStreams()",
    "acceptable.recovery.lag": _STANDBYS,
    "max.warmup.replicas": _STANDBYS,
    "probing.rebalance.interval.ms": _STANDBYS,
    "rack.aware.assignment.non_overlap_cost": _STANDBYS,
    "rack.aware.assignment.strategy": _STANDBYS,
    "rack.aware.assignment.tags": _STANDBYS,
    "rack.aware.assignment.traffic_cost": _STANDBYS,
    "task.assignor.class": (
        "remove it: tasks follow the group's assignment of partitions by librdkafka; worker.id "
        "keeps a task on the host of its state"
    ),
    "allow.os.group.write.access": "remove it: the process's umask determines access to state.dir",
    "built.in.metrics.version": _METRICS,
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "log.summary.interval.ms": "write `headrace run --status-every SECONDS`",
    "config.providers": (
        "remove it: settings are a dict, so the program can read secrets from any source"
    ),
    "default.client.supplier": (
        "remove it: all clients are librdkafka's; write their settings with the prefixes "
        "consumer., producer. and admin., and test without a broker with TopologyTestDriver"
    ),
    "default.dsl.store": _STORES,
    "dsl.store.format": "remove it: each row always stores the time of its last update",
    "dsl.store.suppliers.class": _STORES,
    "default.list.key.serde.inner": _LIST_SERDES,
    "default.list.key.serde.type": _LIST_SERDES,
    "default.list.value.serde.inner": _LIST_SERDES,
    "default.list.value.serde.type": _LIST_SERDES,
    "ensure.explicit.internal.resource.naming": (
        "run `headrace check --strict`, whose exit code is 1 if a store or a repartition topic has "
        "a generated name"
    ),
    "processing.exception.handler.global.enabled": (
        "remove it: deserialization.exception.handler handles records of global tables"
    ),
    "processor.wrapper.class": "remove it: wrap the function or the processor in the topology",
    "state.cleanup.delay.ms": (
        "remove it: the state of tasks that moved to other hosts stays until `headrace reset`, so "
        "that they can return"
    ),
    "state.cleanup.dir.max.age.ms": (
        "remove it: only clean_up() and `headrace reset` remove local state"
    ),
    "upgrade.from": "remove it: `headrace check --deployed` shows the effects of an upgrade",
    # Security
    "sasl.jaas.config": (
        "it is for Java: write sasl.mechanism with sasl.username and sasl.password, or for "
        "OAUTHBEARER sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret, or for GSSAPI "
        "sasl.kerberos.principal and sasl.kerberos.keytab"
    ),
    "ssl.truststore.location": (
        "write ssl.ca.location with a PEM file: create it with keytool "
        "-exportcert -rfc -keystore ..."
    ),
    "ssl.truststore.password": "remove it: ssl.ca.location names a PEM file, which has no password",
    "ssl.truststore.type": "remove it: ssl.ca.location names a PEM file",
    "ssl.truststore.certificates": "write ssl.ca.pem",
    "ssl.keystore.certificate.chain": "write ssl.certificate.pem",
    "ssl.keystore.key": "write ssl.key.pem, with ssl.key.password if it has a password",
    "ssl.keystore.type": _PEM,
    "ssl.protocol": _OPENSSL,
    "ssl.enabled.protocols": _OPENSSL,
    "ssl.provider": _OPENSSL,
    "ssl.engine.factory.class": _OPENSSL,
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "ssl.secure.random.implementation": _OPENSSL,
    "security.providers": _OPENSSL,
    "sasl.client.callback.handler.class": _LOGIN,
    "sasl.login.callback.handler.class": _LOGIN,
    "sasl.login.class": _LOGIN,
    "sasl.login.connect.timeout.ms": _LOGIN,
    "sasl.login.read.timeout.ms": _LOGIN,
    "sasl.login.refresh.buffer.seconds": _LOGIN,
    "sasl.login.refresh.min.period.seconds": _LOGIN,
    "sasl.login.refresh.window.factor": _LOGIN,
    "sasl.login.refresh.window.jitter": _LOGIN,
    "sasl.login.retry.backoff.max.ms": _LOGIN,
    "sasl.login.retry.backoff.ms": _LOGIN,
    "sasl.oauthbearer.jwt.retriever.class": _LOGIN,
    "sasl.oauthbearer.header.urlencode": _LOGIN,
    "sasl.kerberos.ticket.renew.jitter": "write sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.ticket.renew.window.factor": "write sasl.kerberos.min.time.before.relogin",
    "sasl.oauthbearer.assertion.template.file": (
        "write sasl.oauthbearer.assertion.jwt.template.file"
    ),
    "sasl.oauthbearer.scope.claim.name": _BROKERS_PART,
    "sasl.oauthbearer.clock.skew.seconds": _BROKERS_PART,
    "sasl.oauthbearer.expected.audience": _BROKERS_PART,
    "sasl.oauthbearer.expected.issuer": _BROKERS_PART,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _BROKERS_PART,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _BROKERS_PART,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _BROKERS_PART,
    "sasl.oauthbearer.jwks.endpoint.url": _BROKERS_PART,
    "sasl.oauthbearer.jwt.validator.class": _BROKERS_PART,
    # Clients
    "receive.buffer.bytes": "write socket.receive.buffer.bytes",
    "send.buffer.bytes": "write socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "write socket.connection.setup.timeout.ms",
    "default.api.timeout.ms": "write task.timeout.ms for calls that are repeated, and "
    "socket.timeout.ms for each",
    "bootstrap.controllers": "write bootstrap.servers: clients connect to brokers only",
    "interceptor.classes": _INTERCEPTORS,
    "key.serializer": _SERDES_OF_CLIENTS,
    "value.serializer": _SERDES_OF_CLIENTS,
    "key.deserializer": _SERDES_OF_CLIENTS,
    "value.deserializer": _SERDES_OF_CLIENTS,
    "fetch.max.wait.ms": "write consumer.fetch.wait.max.ms",
    "exclude.internal.topics": "remove it: topics are read by name, not by a pattern",
    "share.acquire.mode": "remove it: inputs are read by a consumer group, not a share group",
    "buffer.memory": "write producer.queue.buffering.max.kbytes, in KiB",
    "compression.gzip.level": "write producer.compression.level",
    "compression.lz4.level": "write producer.compression.level",
    "compression.zstd.level": "write producer.compression.level",
    "max.block.ms": "write task.timeout.ms: a worker whose producer is full commits and continues",
    "max.request.size": "remove it: it follows from the topics' max.message.bytes",
    "metadata.max.idle.ms": _NO_LOCAL_COUNTERPART,
    "partitioner.class": (
        "remove it: equal keys must be in equal partitions; to(..., partitioner=...) sets the "
        "partitioner of a sink"
    ),
    "partitioner.adaptive.partitioning.enable": _NO_LOCAL_COUNTERPART,
    "partitioner.availability.timeout.ms": _NO_LOCAL_COUNTERPART,
    "partitioner.ignore.keys": "remove it: equal keys must be in equal partitions",
    "transaction.two.phase.commit.enable": (
        "remove it: Kafka's own transaction commits state and output"
    ),
}
"""Advice as the end of a sentence; the advice to use another setting starts with ``write``."""

_KNOWN_TO_CLIENTS = SHARED | TUNING | CONSUMER | PRODUCER
_CLIENTS = ("consumer", "restore", "producer", "admin")
_IN_ONE_CLIENT = {
    "consumer.request.timeout.ms": "write consumer.socket.timeout.ms",
    "restore.request.timeout.ms": "write restore.socket.timeout.ms",
    "admin.request.timeout.ms": "write admin.socket.timeout.ms",
    "request.timeout.ms": "write socket.timeout.ms, or producer.request.timeout.ms for output",
    "admin.retries": "write task.timeout.ms: calls are repeated until then",
    "retries": "remove it: calls are repeated until task.timeout.ms",
}


def next_step(name: str) -> str | None:
    """Return advice on a setting of Java, with or without a client's prefix; else None.

    >>> next_step("consumer.fetch.max.wait.ms")
    'write consumer.fetch.wait.max.ms'
    >>> next_step("pol.ms")
    """
    if name in _IN_ONE_CLIENT:
        return _IN_ONE_CLIENT[name]
    if name in NOT_SUPPORTED:
        return NOT_SUPPORTED[name]
    if name.startswith("client.tag."):
        return _STANDBYS
    prefix, _, bare = name.partition(".")
    is_unknown = prefix in _CLIENTS and bare not in _KNOWN_TO_CLIENTS
    return NOT_SUPPORTED.get(bare) if is_unknown else None
