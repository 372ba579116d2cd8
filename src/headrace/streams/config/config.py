"""Settings of an application: a single table, validated as a whole before anything starts.

The fields of `StreamsConfig` are the table, which docs/configuration.md shows. Setting names are
Kafka's dotted names; field names have underscores instead of dots.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from headrace.streams.config.client_settings import (
    HEARTBEAT_INTERVAL_MS,
    MAX_POLL_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS,
    ClientConfig,
    ClientSettings,
    read_client_settings,
)
from headrace.streams.config.endpoints import endpoint, with_endpoint, with_version
from headrace.streams.config.handlers import Handler, Handlers, handler
from headrace.streams.config.java_settings import next_step
from headrace.streams.config.secrets import Secret, guarded, named_by_file
from headrace.streams.config.settings import (
    REQUIRED,
    Kind,
    Setting,
    choice,
    choices,
    directory,
    duration,
    group_name,
    integer,
    legal_name,
    origins_of,
    placed,
    servers,
    setting,
    setting_of,
    text,
)
from headrace.streams.errors import ConfigError
from headrace.topology import serdes, timestamps
from headrace.topology.arguments import why_not_called_as
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.graph.optimizer import (
    BY_NAME,
    COMBINE,
    DEFAULT,
    Rewrite,
    count_before_repartition,
    reuse_table_sources,
)
from headrace.topology.java_names import Hinting
from headrace.topology.serdes import Serde
from headrace.topology.timestamps import TimestampExtractor

# Checks of combinations of settings.


TRANSACTION_MARGIN_MS = 2_000
"""Minimum difference between transaction time-out and commit interval, for the slowest batch."""
HEARTBEATS_PER_SESSION = 3
"""Minimum number of heartbeats per session, because one or two may be lost."""


def _session_timeout_ms(clients: ClientSettings) -> int:
    return clients.number("consumer.", "session.timeout.ms", SESSION_TIMEOUT_MS)


def _heartbeat_interval_ms(clients: ClientSettings) -> int:
    third_ms = _session_timeout_ms(clients) // HEARTBEATS_PER_SESSION
    default_ms = max(1, min(HEARTBEAT_INTERVAL_MS, third_ms))
    return clients.number("consumer.", "heartbeat.interval.ms", default_ms)


def _heartbeat_problems(clients: ClientSettings) -> Iterator[str]:
    try:
        session_ms, heartbeat_ms = _session_timeout_ms(clients), _heartbeat_interval_ms(clients)
    except ValueError:
        names = "consumer.session.timeout.ms and consumer.heartbeat.interval.ms"
        yield f"{names} must be milliseconds or a timedelta"
        return
    if heartbeat_ms >= session_ms:
        yield (
            f"consumer.heartbeat.interval.ms {heartbeat_ms} must be shorter than "
            f"consumer.session.timeout.ms {session_ms}; set it to a third of that, or to less"
        )


def _transaction_timeout_ms(clients: ClientSettings) -> int:
    return clients.number("producer.", "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)


def _transaction_problems(commit_interval_ms: object, clients: ClientSettings) -> Iterator[str]:
    try:
        timeout_ms = _transaction_timeout_ms(clients)
    except ValueError:
        yield "producer.transaction.timeout.ms must be milliseconds or a timedelta"
        return
    if isinstance(commit_interval_ms, int) and (
        timeout_ms < (needed_ms := commit_interval_ms + TRANSACTION_MARGIN_MS)
    ):
        yield (
            f"commit.interval.ms {commit_interval_ms} is too long for transactions that the broker "
            f"aborts after {timeout_ms} ms; commit more often, or set "
            f"producer.transaction.timeout.ms to {needed_ms} or more"
        )


# librdkafka's settings for each client of an application.


PRODUCER_QUEUE_KIB = 64 * 1024
"""Limit of the producer's queue; a commit of larger data waits for free space."""
RECONNECT_MS = 20
"""Initial back-off of a client's reconnects, which doubles up to 10 s."""
FETCH_WAIT_MS = 100
"""Maximum wait of a fetch request at the broker; librdkafka's default is 500.

A client sends a single fetch request at a time to a broker. Partitions that are added meanwhile
wait for the response, and the first request often reads topics that are still empty.
"""
BATCH_BYTES = 1_000_000
"""Default of batch.size in librdkafka."""


# Kinds of settings whose values are Python objects, or names of built-in objects.


SERDES: Mapping[str, Serde[Any]] = {
    name: getattr(serdes, name) for name in ("string", "bytes", "integer", "long", "double", "json")
}
_SERDE_MEMBERS = ("name", "immutable", "canonical", "serialize", "deserialize")


def serde() -> Kind:
    def parse(value: object) -> object:
        if isinstance(value, str) and value in SERDES:
            return SERDES[value]
        if all(hasattr(value, member) for member in _SERDE_MEMBERS):
            return value
        raise ValueError(f"must be a Serde or one of {', '.join(SERDES)}, not {value!r}")

    return Kind("a Serde, or " + ", ".join(f"`{name}`" for name in SERDES), parse)


def extractor() -> Kind:
    def parse(value: object) -> object:
        if isinstance(value, str) and value in timestamps.BY_NAME:
            return timestamps.BY_NAME[value]
        if callable(value):
            wrong = why_not_called_as("extractor(record, partition_time)", 2, value)
            if wrong is not None:
                raise ValueError(wrong)
            return value
        names = ", ".join(timestamps.BY_NAME)
        raise ValueError(f"must be a function or one of {names}, not {value!r}")

    return Kind("a function, or " + ", ".join(f"`{name}`" for name in timestamps.BY_NAME), parse)


# Secrets from files: `sasl.password.file` names a file that contains `sasl.password`.
#
# A password is then neither in a program, nor on a command line, nor in an environment, and is read
# again at each start.


MAX_BYTES = 1 << 20


def with_files_read(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Replace settings that name a file by its content; return a sentence for each problem."""
    replaced, problems = dict(settings), []
    for name, path in settings.items():
        stem = named_by_file(name)
        if stem is None or path is None:
            continue
        del replaced[name]
        if settings.get(stem) is not None:
            problems.append(f"{stem} and {name} are both set; leave one of them out")
            continue
        try:
            replaced[stem] = Secret(_read(path), setting=name)
        except ValueError as error:
            problems.append(f"{name} {error}")
    return replaced, problems


def _read(given: object) -> str:
    text = str(given.reveal() if isinstance(given, Secret) else given)
    if "\n" in text or text.startswith("-----"):
        raise ValueError("must name a file, but is a secret itself; write the secret into a file")
    path = Path(text).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"names {path}, which is too large for a secret ({MAX_BYTES} bytes)")
        secret = data.decode().rstrip("\r\n")
    except OSError as error:
        raise ValueError(
            f"names {path}, which cannot be read ({error.strerror}); correct the path, or let the "
            "user that this runs as read it"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"names {path}, which is not UTF-8 text") from None
    if not secret:
        raise ValueError(f"names {path}, which is empty; write the secret into it")
    return secret


MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig(metaclass=Hinting):
    """Validated settings of an application, created by `StreamsConfig.parse`.

    Examples:
        >>> config = StreamsConfig.parse({
        ...     "application.id": "word-count",
        ...     "bootstrap.servers": "localhost:9092",
        ...     "processing.guarantee": "exactly_once",
        ... })
        >>> config.processing_guarantee, config.commit_interval_ms
        ('exactly_once_v2', 100)
        >>> config.exactly_once, config.transaction_timeout_ms
        (True, 10000)
        >>> config.session_timeout_ms, config.max_poll_interval_ms
        (10000, 300000)
        >>> StreamsConfig.parse({"application.id": "a b", "bootstrap.server": "localhost:9092"})
        Traceback (most recent call last):
            ...
        headrace.streams.errors.ConfigError: 3 settings are wrong:
        - application.id must be a name of ASCII letters, digits, '.', '_' and '-'; 'a b' is not; \
topics and groups are named after it
        - bootstrap.servers is required; set it in the settings that the program \
passes to KafkaStreams, or with the option --set bootstrap.servers=... of a command
        - bootstrap.server is unknown; did you mean bootstrap.servers?
    """

    application_id: str = setting(
        group_name(),
        "Name of the application: consumer group, and first part of internal topics.",
    )
    bootstrap_servers: str = setting(
        servers(), "Initial brokers, from which the clients discover the cluster."
    )
    processing_guarantee: Literal["at_least_once", "exactly_once_v2"] = setting(
        choice("at_least_once", "exactly_once_v2", also={"exactly_once": "exactly_once_v2"}),
        "Whether a failure may repeat records in state and output; the only setting for "
        "exactly-once.",
        default="at_least_once",
    )
    commit_interval_ms: int = setting(
        duration(0),
        "Maximum time between commits, but see commit.interval.max.ms; 0 commits after each batch.",
        default=None,
        default_words="30000, or 100 under exactly-once",
    )
    commit_interval_min_ms: int = setting(
        duration(0),
        "Minimum time between commits of a worker that has caught up with its inputs, under "
        "exactly-once. It then commits early, so that its output is visible sooner; larger "
        "values cost the brokers less. Has no effect if it is at least commit.interval.ms.",
        default=10,
    )
    commit_interval_max_ms: int = setting(
        duration(0),
        "Maximum time between commits of a worker that is far behind its inputs. If commits are "
        "slow, it commits less often, so that commits take about 20 % of its time. Has no "
        "effect if it is at most commit.interval.ms, or if that is 0.",
        default=1000,
    )
    state_dir: Path = setting(  # noqa: RUF009 - declares a field
        directory(),
        "Directory of local state, shared by the workers of a host; must survive a restart.",
        default=None,
        default_words="`$XDG_STATE_HOME/headrace`, else `~/.local/state/headrace`",
    )
    worker_id: str | None = setting(
        legal_name(),
        "Identity of this worker, such as a pod's name: unique among running workers and kept "
        "across restarts. By default, the worker takes a free slot in state.dir.",
        default=None,
    )
    application_server: str | None = setting(
        endpoint(),
        "Address at which other hosts reach the stores of this host over HTTP. It is appended "
        "to the consumer's client.id, so that hosts find the host of a key. `headrace run "
        "--http ... --queries` sets it to its own address.",
        default=None,
    )
    default_key_serde: Serde[Any] = setting(  # noqa: RUF009 - declares a field
        serde(),
        "Serde of keys, unless the topology names another.",
        default=serdes.json,
        default_words="json",
    )
    default_value_serde: Serde[Any] = setting(  # noqa: RUF009 - declares a field
        serde(),
        "Serde of values, unless the topology names another.",
        default=serdes.json,
        default_words="json",
    )
    statestore_cache_max_bytes: int = setting(
        integer(0, unit="bytes"),
        "Memory for results that are cached until the commit, so that each key is forwarded "
        "once; 0 forwards each update.",
        default=10 * MIB,
    )
    statestore_uncommitted_max_bytes: int = setting(
        integer(MIB, unit="bytes"),
        "Memory for uncommitted writes, including what their commit takes; the worker commits "
        "early when it is full.",
        default=64 * MIB,
    )
    statestore_read_cache_max_bytes: int = setting(
        integer(0, unit="bytes"),
        "Memory of a worker for the read cache of committed values, over all stores and global "
        "tables; 0 disables the cache.",
        default=64 * MIB,
    )
    rocksdb_block_cache_bytes: int = setting(
        integer(0, unit="bytes"), "RocksDB's block cache, shared by all stores.", default=128 * MIB
    )
    rocksdb_write_buffer_bytes: int = setting(
        integer(MIB, unit="bytes"),
        "RocksDB's write buffers, the sum over all stores.",
        default=64 * MIB,
    )
    replication_factor: int = setting(
        integer(-1, 32767, except_for=(0,)),
        "Replication factor of internal topics; -1 takes the brokers' default.",
        default=-1,
    )
    max_poll_records: int = setting(
        integer(1, 1_000_000), "Maximum number of records in a batch.", default=5000
    )
    poll_ms: int = setting(duration(0, 60_000), "Maximum wait for records.", default=100)
    node_times_interval_ms: int = setting(
        duration(0),
        "Interval of the samples from which the metrics estimate the time of each node; 0 "
        "disables them.",
        default=50,
    )
    hot_keys_max: int = setting(
        integer(0, 100),
        "Number of hot keys to report for each store of a task; they are data, see "
        "[Interactive queries](interactive-queries.md#keys-that-change-most). 0 disables it.",
        default=0,
    )
    max_task_idle_ms: int = setting(
        duration(-1),
        "Maximum time that a task with several inputs waits for an empty input, to process "
        "records in timestamp order. 0 waits only for records that are known to be on the "
        "broker, -1 never waits.",
        default=0,
    )
    window_close_idle_ms: int = setting(
        duration(0),
        "Time without a new record after which a task closes its windows; records that arrive "
        "for them later are late. 0 never closes them this way.",
        default=0,
    )
    stream_time: Literal["slowest", "fastest"] = setting(
        choice("slowest", "fastest"),
        "Upstream task that determines the stream time after a repartition topic. With slowest, "
        "no record that arrives in order is late, whatever the speed of partitions and workers; "
        "fastest is the rule of Kafka Streams. See [Event time and backlogs](event-time.md).",
        default="slowest",
    )
    buffered_records_per_partition: int = setting(
        integer(1),
        "Number of queued records at which an input partition is paused.",
        default=10_000,
    )
    repartition_lag_max_records: int = setting(
        integer(0),
        "Number of unprocessed records in a partition of a repartition topic at which the "
        "tasks that write to it are paused; 0 never pauses them. Each worker checks this once "
        "per quarter of that many input records, so the output of a quarter may be added.",
        default=50_000,
    )
    repartition_purge_interval_ms: int = setting(
        duration(1),
        "Interval of the deletion of processed records from repartition topics.",
        default=30_000,
    )
    topics_check_interval_ms: int = setting(
        duration(1),
        "Interval of the check whether a topic was deleted or has more partitions.",
        default=300_000,
    )
    task_timeout_ms: int = setting(
        duration(0),
        "Maximum time for retries of calls to the cluster after temporary errors; time without "
        "any reachable broker does not count.",
        default=300_000,
    )
    null_key_policy: Literal["fail", "drop"] = setting(
        choice("fail", "drop"),
        "Reaction to a record without a key in an operator that requires one.",
        default="fail",
    )
    default_timestamp_extractor: TimestampExtractor = setting(  # noqa: RUF009 - declares a field
        extractor(),
        "Timestamp extractor of sources, unless the topology names another.",
        default=timestamps.fail_on_invalid_timestamp,
        default_words="fail_on_invalid_timestamp",
    )
    deserialization_exception_handler: Handler = setting(  # noqa: RUF009 - declares a field
        handler(),
        "Reaction to a record whose key or value cannot be deserialized.",
        default="fail",
    )
    processing_exception_handler: Handler = setting(  # noqa: RUF009 - declares a field
        handler(),
        "Reaction to a record on which a function of the topology fails.",
        default="fail",
    )
    production_exception_handler: Handler = setting(  # noqa: RUF009 - declares a field
        handler(),
        "Reaction to a record that a sink cannot serialize, or that is too large to be sent.",
        default="fail",
    )
    errors_dead_letter_queue_topic_name: str | None = setting(
        legal_name("it names a topic"),
        "Topic for the records that a handler skips with `continue`.",
        default=None,
    )
    topology_optimization: tuple[str, ...] = setting(
        choices(*BY_NAME),
        "Optimizations: whether repartition topics with the same records are shared, whether "
        "the compacted source topic of a table is also its changelog, and whether records are "
        "counted, reduced or aggregated before they are written to a repartition topic, if that "
        "does not change the result. A count then accepts records whose values cannot be "
        "serialized.",
        default=DEFAULT,
        default_words=COMBINE,
    )
    topology_change_accept: str | None = setting(
        text(),
        "Code of a change of the topology that loses deployed state, to start in spite of it. "
        "The error and `headrace check --deployed` print the code.",
        default=None,
    )
    windowstore_changelog_additional_retention_ms: int = setting(
        duration(0),
        "Time added to the retention of windowed changelogs, because clocks differ.",
        default=86_400_000,
    )
    on_stop: Literal["leave", "stay"] = setting(
        choice("leave", "stay"),
        "Whether a stopping worker releases its tasks immediately, or keeps them for a restart "
        "within consumer.session.timeout.ms.",
        default="leave",
    )
    log_errors: Literal["places", "full"] | None = setting(
        choice("places", "full"),
        "Whether logs contain the texts of errors in user code, which may quote records, or "
        "only the places in the code.",
        default=None,
        default_words="full if `headrace run` writes to a terminal, else places",
    )
    shutdown_timeout_ms: int = setting(
        duration(0),
        "Maximum time of a stop: `close` waits for it, and `headrace run` then kills the workers.",
        default=30_000,
    )
    restore_batch_records: int = setting(
        integer(1, 1_000_000),
        "Maximum number of changelog records in a batch of a restore.",
        default=10_000,
    )
    topic_configs: Mapping[str, str] = field(repr=False)
    """Configs of internal topics, set with the prefix ``topic.``."""
    _clients: ClientSettings = field(repr=False)  # may hold passwords

    @classmethod
    def parse(
        cls, settings: Mapping[str, object], *, environ: Mapping[str, str] = os.environ
    ) -> Self:
        """Validate settings and apply defaults; a value of None means not set.

        Args:
            settings: settings by dotted name; durations are milliseconds or timedelta. A secret may
                be given by the name of its file, such as ``sasl.password.file``.
            environ: environment that determines the user's state directory.

        Raises:
            ConfigError: names each invalid setting and the valid values.
        """
        origins = origins_of(settings)
        settings, unread = with_files_read(guarded(settings))
        given = {str(name): value for name, value in settings.items() if value is not None}
        java_s = {name: step for name in given if (step := next_step(name)) is not None}
        problems = [*unread, *(f"{n} is not supported: {step}" for n, step in java_s.items())]
        values: dict[str, object] = {}
        for own in table():
            try:
                values[own.name] = _value(own, given)
            except ValueError as error:
                problems.append(f"{own.name} {error}")
        exactly_once = values.get("processing.guarantee") == "exactly_once_v2"
        if values.get("commit.interval.ms", 0) is None:
            values["commit.interval.ms"] = 100 if exactly_once else 30_000
        if values.get("state.dir", "") is None:
            values["state.dir"] = user_state_dir(environ)
        known = [own.name for own in table()]
        others = {n: v for n, v in given.items() if n not in known and n not in java_s}
        clients, client_problems = read_client_settings(
            others, exactly_once=exactly_once, known=known
        )
        problems += client_problems
        if exactly_once:
            problems += _transaction_problems(values.get("commit.interval.ms"), clients)
        problems += _heartbeat_problems(clients)
        if problems:
            raise ConfigError(*(placed(problem, origins) for problem in problems))
        topic_configs = {name: str(value) for name, value in clients.by_prefix["topic."].items()}
        named = {name.replace(".", "_"): value for name, value in values.items()}
        return cls(**named, topic_configs=topic_configs, _clients=clients)  # type: ignore[arg-type]

    @property
    def handlers(self) -> Handlers:
        """Handlers of records that cannot be processed."""
        return Handlers(
            deserialization=self.deserialization_exception_handler,
            processing=self.processing_exception_handler,
            production=self.production_exception_handler,
            dead_letter_topic=self.errors_dead_letter_queue_topic_name,
        )

    @property
    def compile_options(self) -> CompileOptions:
        """Options of code generation."""
        handlers = self.handlers
        return CompileOptions(
            application_id=self.application_id,
            default_key=self.default_key_serde,
            default_value=self.default_value_serde,
            caching=self.statestore_cache_max_bytes > 0,
            null_key_policy=self.null_key_policy,
            handles_errors=(handlers.processing, handlers.production) != ("fail", "fail"),
            skips_undecodable=handlers.deserialization != "fail",
            timestamps=self.default_timestamp_extractor,
        )

    def why_not_combined(self, *, asks_user: bool) -> str | None:
        """Return why these settings prevent partial aggregates; None if they do not.

        Args:
            asks_user: whether user functions compute them, which is not the case for counts.
        """
        # Only a cache delays results, and handlers must get single records, not partial aggregates.
        if COMBINE not in self.topology_optimization:
            return f"topology.optimization does not include {COMBINE}"
        if not self.statestore_cache_max_bytes:
            return "statestore.cache.max.bytes is 0"
        if self.production_exception_handler != "fail":
            return "production.exception.handler decides about records that cannot be written"
        if asks_user and self.processing_exception_handler != "fail":
            return "processing.exception.handler decides about records that a function fails on"
        return None

    @property
    def rewrites(self) -> Sequence[Rewrite]:
        """Rewrites of the topology that do not change results with these settings."""
        names = set(self.topology_optimization)
        rewrites = dict(BY_NAME)
        if self.why_not_combined(asks_user=False) is not None:
            names.discard(COMBINE)
        elif self.why_not_combined(asks_user=True) is not None:
            rewrites[COMBINE] = count_before_repartition
        chosen = [rewrite for name, rewrite in rewrites.items() if name in names]
        reset = self.consumer_config("").get("auto.offset.reset")
        begins_late = reset not in ("earliest", "smallest", "beginning")
        if begins_late or timestamps.needed(None, self.default_timestamp_extractor) is not None:
            return [rewrite for rewrite in chosen if rewrite is not reuse_table_sources]
        return chosen

    # -- librdkafka's settings of each client ---------------------------------------------------

    @property
    def exactly_once(self) -> bool:
        """Whether state, output and offsets are committed in a transaction."""
        return self.processing_guarantee == "exactly_once_v2"

    @property
    def reads_committed(self) -> bool:
        """Whether inputs are read without aborted records, up to the last stable offset."""
        return self.consumer_config("")["isolation.level"] != "read_uncommitted"

    @property
    def transaction_timeout_ms(self) -> int:
        """Time after which the broker aborts the transaction of a dead worker."""
        return _transaction_timeout_ms(self._clients)

    @property
    def max_poll_interval_ms(self) -> int:
        """Time without a poll after which the group removes a worker."""
        return self._clients.number("consumer.", "max.poll.interval.ms", MAX_POLL_INTERVAL_MS)

    @property
    def session_timeout_ms(self) -> int:
        """Time without a heartbeat after which the group removes a worker."""
        return _session_timeout_ms(self._clients)

    def consumer_config(self, instance_id: str, *, version: str = "") -> ClientConfig:
        """Return librdkafka's settings for the input consumer, a static member of the group.

        Args:
            instance_id: the worker's identity in the group.
            version: digest of the assignment rules (see `headrace.streams.plan.ownership`), for the
                other members.
        """
        chosen: ClientConfig = {
            **self._chosen_for_consumers(),
            # All inputs share a queue, so records prefetched of an input delay the others.
            "queued.min.messages": 5_000,
            # Large records reach this limit before the limit of their number.
            "queued.max.messages.kbytes": 16 * 1024,
            "max.partition.fetch.bytes": 256 * 1024,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
        }
        owned: ClientConfig = {
            **self._owned_by_consumers(),
            "group.instance.id": instance_id,
            "group.protocol": "classic",
            "partition.assignment.strategy": "cooperative-sticky",
        }
        config = self._clients.layered(("consumer.",), chosen, owned, role="consumer")
        name = with_version(str(config["client.id"]), version)
        config["client.id"] = with_endpoint(name, self.application_server)
        # A rebalance waits for the next heartbeat of all members; until then, moving partitions
        # are unassigned.
        config["heartbeat.interval.ms"] = _heartbeat_interval_ms(self._clients)
        return config

    def restore_config(self) -> ClientConfig:
        """Return librdkafka's settings for the consumer of changelogs, which joins no group.

        The ``consumer.`` settings apply to it as well, and ``restore.`` settings override them.
        """
        owned: ClientConfig = {
            **self._owned_by_consumers(),
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        return self._clients.layered(
            ("consumer.", "restore."), self._chosen_for_consumers(), owned, role="restore"
        )

    def producer_config(
        self,
        transactional_id: str | None,
        *,
        message_max_bytes: int | None = None,
        batch_max_bytes: int | None = None,
    ) -> ClientConfig:
        """Return librdkafka's settings for the producer of output and changelogs.

        Args:
            transactional_id: the worker's identity, or None for a producer without transactions.
            message_max_bytes: the largest record that any topic accepts, if known.
            batch_max_bytes: the largest batch that every topic accepts, if known.
        """
        chosen: ClientConfig = {
            **self._chosen_for_all(),
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5,
            # The default of 100 delays each transaction that immediately follows another.
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 1000,
            # Time for which a topic may be unknown before its records fail; 30 s by default.
            "topic.metadata.propagation.max.ms": 5_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": PRODUCER_QUEUE_KIB,
        }
        if message_max_bytes is not None:
            chosen["message.max.bytes"] = message_max_bytes
            # The largest record must fit.
            room_kib = max(PRODUCER_QUEUE_KIB, 2 * message_max_bytes // 1024)
            chosen["queue.buffering.max.kbytes"] = room_kib
        if batch_max_bytes is not None:
            # A topic limits whole batches, and the client does not split a rejected batch.
            chosen["batch.size"] = min(BATCH_BYTES, batch_max_bytes)
        owned: ClientConfig = {
            **self._owned_by_all(),
            "partitioner": "murmur2_random",
            # Exactly-once needs the offset of each changelog record, at-least-once each failure.
            "delivery.report.only.error": not self.exactly_once,
        }
        if transactional_id is not None:
            chosen["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
            owned["transactional.id"] = transactional_id
        return self._clients.layered(("producer.",), chosen, owned, role="producer")

    def admin_config(self) -> ClientConfig:
        """Return librdkafka's settings for the admin client."""
        chosen = self._chosen_for_all()
        return self._clients.layered(("admin.",), chosen, self._owned_by_all(), role="admin")

    def _chosen_for_all(self) -> ClientConfig:
        # A new client waits half of this before it connects; with the default of 100, its first
        # response takes 50 ms.
        return {"client.id": self.application_id, "reconnect.backoff.ms": RECONNECT_MS}

    def _owned_by_all(self) -> ClientConfig:
        return {"bootstrap.servers": self.bootstrap_servers}

    def _chosen_for_consumers(self) -> ClientConfig:
        return {
            **self._chosen_for_all(),
            # With the default of 1000, a full queue pauses each partition for up to a second.
            "fetch.queue.backoff.ms": 2,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
        }

    def _owned_by_consumers(self) -> ClientConfig:
        return {
            **self._owned_by_all(),
            "group.id": self.application_id,
            "allow.auto.create.topics": False,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": False,
        }


def table() -> Iterator[Setting]:
    """Yield the runtime's own settings, in the order of the documentation."""
    for declared in fields(StreamsConfig):
        own = setting_of(declared)
        if own is not None:
            yield own


REQUIRED_NAMES = tuple(own.name for own in table() if own.default is REQUIRED)


def user_state_dir(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_STATE_HOME", "")
    # The specification requires that relative paths are ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "headrace"


def _value(own: Setting, given: Mapping[str, object]) -> object:
    if own.name in given:
        return own.kind.parse(given[own.name])
    if own.default is REQUIRED:
        raise ValueError(
            "is required; set it in the settings that the program passes to KafkaStreams, or with "
            f"the option --set {own.name}=... of a command"
        )
    return own.default
