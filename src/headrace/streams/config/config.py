"""The settings of an application: one table, checked whole before anything starts.

The fields of `StreamsConfig` are the table; `config_page` prints it as docs/configuration.md.
Names are Kafka's dotted names, where a field has underscores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from headrace.streams.config.client_configs import ClientConfigs
from headrace.streams.config.client_settings import (
    ClientSettings,
    read_client_settings,
)
from headrace.streams.config.cross_checks import (
    check_heartbeats,
    check_transaction_timeout,
)
from headrace.streams.config.endpoints import endpoint
from headrace.streams.config.java_settings import next_step
from headrace.streams.config.kinds import extractor, serde
from headrace.streams.config.secret_files import with_files_read
from headrace.streams.errors import ConfigError
from headrace.streams.records.handlers import Handler, Handlers, handler
from headrace.streams.secrets import guarded
from headrace.streams.settings import (
    REQUIRED,
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
from headrace.topology import serdes, timestamps
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.graph.optimizer import (
    BY_NAME,
    COMBINE,
    DEFAULT,
    Rewrite,
    count_before_repartition,
    reuse_table_sources,
)
from headrace.topology.serdes import Serde
from headrace.topology.timestamps import TimestampExtractor

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig(ClientConfigs):
    """All settings of an application, checked; made by `StreamsConfig.parse`.

    Example:
        >>> config = StreamsConfig.parse({
        ...     "application.id": "word-count",
        ...     "bootstrap.servers": "localhost:9092",
        ...     "processing.guarantee": "exactly_once",
        ... })
        >>> config.processing_guarantee, config.commit_interval_ms
        ('exactly_once_v2', 100)
        >>> StreamsConfig.parse({"application.id": "a b", "bootstrap.server": "localhost:9092"})
        Traceback (most recent call last):
            ...
        headrace.streams.errors.ConfigError: 3 settings are wrong:
        - application.id must consist of ASCII letters, digits, '.', '_' and '-', not be 'a b'; \
topics and groups are named after it
        - bootstrap.servers is required, and not set; the program gives it to KafkaStreams, or \
whoever starts it by a command does: --set bootstrap.servers=...
        - bootstrap.server is unknown; did you mean bootstrap.servers?
    """

    application_id: str = setting(
        group_name(),
        "Name of the application: consumer group, and first part of internal topics.",
    )
    bootstrap_servers: str = setting(servers(), "Brokers to find the cluster by.")
    processing_guarantee: Literal["at_least_once", "exactly_once_v2"] = setting(
        choice("at_least_once", "exactly_once_v2", also={"exactly_once": "exactly_once_v2"}),
        "The one switch: whether a failure may repeat records in state and output.",
        default="at_least_once",
    )
    commit_interval_ms: int = setting(
        duration(0),
        "Longest time between commits, but see commit.interval.max.ms; 0 commits after every "
        "batch.",
        default=None,
        default_words="30000, or 100 under exactly-once",
    )
    commit_interval_min_ms: int = setting(
        duration(0),
        "Shortest time between commits under exactly-once, of a worker that has caught up with its "
        "inputs and need not wait for the interval: what it writes is seen so much sooner. More "
        "costs the brokers less; from commit.interval.ms on the interval alone decides.",
        default=10,
    )
    commit_interval_max_ms: int = setting(
        duration(0),
        "Longest time between commits of a worker that is far behind, with more to read than it "
        "has read since its last one: where commits are slow it makes fewer, so that they take "
        "about a fifth of its time. Up to commit.interval.ms, and where that is 0, the interval "
        "alone decides.",
        default=1000,
    )
    state_dir: Path = setting(  # noqa: RUF009 - declares a field
        directory(),
        "Where local state lives, shared by the workers of a host; must survive a restart.",
        default=None,
        default_words="`$XDG_STATE_HOME/headrace`, else `~/.local/state/headrace`",
    )
    worker_id: str | None = setting(
        legal_name(),
        "Identity of this worker, unique among live workers and kept across restarts, such as "
        "a pod's name; without it the worker takes a free slot in state.dir.",
        default=None,
    )
    application_server: str | None = setting(
        endpoint(),
        "Where other hosts reach the stores of this one over HTTP, as `host:port`: it stands at "
        "the end of the consumer's client.id, by which hosts find out who has which key. `headrace "
        "run --http ... --queries` sets it to the address that it serves.",
        default=None,
    )
    default_key_serde: Serde[Any] = setting(  # noqa: RUF009 - declares a field
        serde(),
        "How keys are read and written where the topology does not say.",
        default=serdes.json,
        default_words="json",
    )
    default_value_serde: Serde[Any] = setting(  # noqa: RUF009 - declares a field
        serde(),
        "How values are read and written where the topology does not say.",
        default=serdes.json,
        default_words="json",
    )
    statestore_cache_max_bytes: int = setting(
        integer(0, unit="bytes"),
        "Memory to hold results back until the commit, so that each key goes downstream once; "
        "0 forwards every update.",
        default=10 * MIB,
    )
    statestore_uncommitted_max_bytes: int = setting(
        integer(MIB, unit="bytes"),
        "Memory for writes between commits, with what a commit of them takes; when it is full the "
        "worker commits early.",
        default=64 * MIB,
    )
    statestore_read_cache_max_bytes: int = setting(
        integer(0, unit="bytes"),
        "Memory of a worker to keep committed values for reading, those of all stores and global "
        "tables together; 0 reads RocksDB each time.",
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
        "Replicas of internal topics; -1 takes the brokers' default.",
        default=-1,
    )
    max_poll_records: int = setting(
        integer(1, 1_000_000), "Most records in one batch through the topology.", default=5000
    )
    poll_ms: int = setting(
        duration(0, 60_000), "Longest wait for records when there are none.", default=100
    )
    node_times_interval_ms: int = setting(
        duration(0),
        "Time between two looks at what the worker is doing, from which the metrics have how long "
        "each node takes; 0 never looks.",
        default=50,
    )
    hot_keys_max: int = setting(
        integer(0, 100),
        "How many keys that change most to tell of each store of a task; they are data, see "
        "[Query it](query.md#keys-that-change-most). 0 looks at none.",
        default=0,
    )
    max_task_idle_ms: int = setting(
        duration(-1),
        "How long a task with several inputs waits for an empty one, to process in timestamp "
        "order; 0 waits for data known to be on the broker, -1 never waits.",
        default=0,
    )
    window_close_idle_ms: int = setting(
        duration(0),
        "How long a task must have had no new record until its windows are closed as if later "
        "records had come; records that come for them after that are late. 0 leaves them open.",
        default=0,
    )
    stream_time: Literal["slowest", "fastest"] = setting(
        choice("slowest", "fastest"),
        "Which upstream task the stream time of a repartition topic follows: with slowest no "
        "record is late that came in order, whatever the speed of partitions and workers; fastest "
        "is the rule of Kafka Streams. See [Event time and backlogs](event-time.md).",
        default="slowest",
    )
    buffered_records_per_partition: int = setting(
        integer(1), "Queued records at which an input partition is paused.", default=10_000
    )
    repartition_lag_max_records: int = setting(
        integer(0),
        "Unprocessed records in a partition of a repartition topic at which the tasks that write "
        "to it pause; 0 never pauses them. What a quarter as many of their inputs make may come on "
        "top in each worker, as they look how full it is no more often than that.",
        default=50_000,
    )
    repartition_purge_interval_ms: int = setting(
        duration(1),
        "Time between deletions of what was read from repartition topics.",
        default=30_000,
    )
    topics_check_interval_ms: int = setting(
        duration(1),
        "Time between looks at the topics: whether one was deleted, or has more partitions.",
        default=300_000,
    )
    task_timeout_ms: int = setting(
        duration(0),
        "How long calls to the cluster are repeated after temporary errors; while no broker can "
        "be reached at all, it does not count.",
        default=300_000,
    )
    null_key_policy: Literal["fail", "drop"] = setting(
        choice("fail", "drop"),
        "What happens to a record without a key where an operator needs one.",
        default="fail",
    )
    default_timestamp_extractor: TimestampExtractor = setting(  # noqa: RUF009 - declares a field
        extractor(),
        "Which time the records of sources have where the topology does not say.",
        default=timestamps.fail_on_invalid_timestamp,
        default_words="fail_on_invalid_timestamp",
    )
    deserialization_exception_handler: Handler = setting(  # noqa: RUF009 - declares a field
        handler(),
        "What happens to a record whose key or value cannot be decoded.",
        default="fail",
    )
    processing_exception_handler: Handler = setting(  # noqa: RUF009 - declares a field
        handler(),
        "What happens to a record on which a function of the topology fails.",
        default="fail",
    )
    production_exception_handler: Handler = setting(  # noqa: RUF009 - declares a field
        handler(),
        "What happens to a record that a sink cannot encode, or that is too large to be sent.",
        default="fail",
    )
    errors_dead_letter_queue_topic_name: str | None = setting(
        legal_name("it names a topic"),
        "Where handlers that say `continue` write the records that they let go.",
        default=None,
    )
    topology_optimization: tuple[str, ...] = setting(
        choices(*BY_NAME),
        "Whether repartition topics that would carry the same records are shared, whether the "
        "compacted topic that a table is read from is its changelog too, and whether records are "
        "counted, reduced or aggregated before they are written to a repartition topic, as far as "
        "that changes nothing. A count then takes records whose values could not be written.",
        default=DEFAULT,
        default_words=COMBINE,
    )
    topology_change_accept: str | None = setting(
        text(),
        "Starts although the topology would lose state that is deployed; the code of that one "
        "change, as the error or headrace check --deployed prints it.",
        default=None,
    )
    windowstore_changelog_additional_retention_ms: int = setting(
        duration(0),
        "Added to the retention of windowed changelogs, as clocks differ.",
        default=86_400_000,
    )
    on_stop: Literal["leave", "stay"] = setting(
        choice("leave", "stay"),
        "Whether a worker that stops gives its tasks to others at once, or keeps them for a "
        "restart within consumer.session.timeout.ms.",
        default="leave",
    )
    log_errors: Literal["places", "full"] | None = setting(
        choice("places", "full"),
        "Whether logs have the texts of errors that user code raises, which may quote records, or "
        "only the places in the code.",
        default=None,
        default_words="full where `headrace run` writes to a terminal, else places",
    )
    shutdown_timeout_ms: int = setting(
        duration(0),
        "How long `close` waits for a stop, and `headrace run` before it kills.",
        default=30_000,
    )
    restore_batch_records: int = setting(
        integer(1, 1_000_000), "Most changelog records in one batch of a restore.", default=10_000
    )
    topic_configs: Mapping[str, str] = field(repr=False)
    """Configs of internal topics, given with the prefix ``topic.``."""
    _clients: ClientSettings = field(repr=False)  # may hold passwords

    @classmethod
    def parse(
        cls, settings: Mapping[str, object], *, environ: Mapping[str, str] = os.environ
    ) -> Self:
        """Check settings and fill in the defaults; a value of None means not set.

        Args:
            settings: dotted names and values; durations are milliseconds or timedelta. A secret
                may be given by the name of its file, such as ``sasl.password.file``.
            environ: where the user's state directory is looked up.

        Raises:
            ConfigError: naming every wrong setting, and what would be right.
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
            problems += check_transaction_timeout(values.get("commit.interval.ms"), clients)
        problems += check_heartbeats(clients)
        if problems:
            raise ConfigError(*(placed(problem, origins) for problem in problems))
        topic_configs = {name: str(value) for name, value in clients.by_prefix["topic."].items()}
        named = {name.replace(".", "_"): value for name, value in values.items()}
        return cls(**named, topic_configs=topic_configs, _clients=clients)  # type: ignore[arg-type]

    @property
    def handlers(self) -> Handlers:
        """What decides about records that cannot be processed."""
        return Handlers(
            deserialization=self.deserialization_exception_handler,
            processing=self.processing_exception_handler,
            production=self.production_exception_handler,
            dead_letter_topic=self.errors_dead_letter_queue_topic_name,
        )

    @property
    def compile_options(self) -> CompileOptions:
        """What the code that is generated depends on."""
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
        """Why these settings let no partial results be written; None where they do.

        Args:
            asks_user: whether functions of the user's make them: not those of counts.
        """
        # Results are held back with a cache alone, and a record that cannot be written, or that a
        # function fails on, is the handler's as long as it is one.
        if COMBINE not in self.topology_optimization:
            return f"topology.optimization leaves {COMBINE} out"
        if not self.statestore_cache_max_bytes:
            return "statestore.cache.max.bytes is 0"
        if self.production_exception_handler != "fail":
            return "production.exception.handler decides about records that cannot be written"
        if asks_user and self.processing_exception_handler != "fail":
            return "processing.exception.handler decides about records that a function fails on"
        return None

    @property
    def rewrites(self) -> Sequence[Rewrite]:
        """Those of the topology, without one that would not keep the results here."""
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


def table() -> Iterator[Setting]:
    """The settings that the runtime knows by name, in the order of the documentation."""
    for declared in fields(StreamsConfig):
        own = setting_of(declared)
        if own is not None:
            yield own


REQUIRED_NAMES = tuple(own.name for own in table() if own.default is REQUIRED)


def user_state_dir(environ: Mapping[str, str]) -> Path:
    """The directory for state that must outlive a reboot, by the XDG rules."""
    base = environ.get("XDG_STATE_HOME", "")
    # The rules say that a relative path there is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "headrace"


def _value(own: Setting, given: Mapping[str, object]) -> object:
    if own.name in given:
        return own.kind.parse(given[own.name])
    if own.default is REQUIRED:
        raise ValueError(
            "is required, and not set; the program gives it to KafkaStreams, or whoever starts it "
            f"by a command does: --set {own.name}=..."
        )
    return own.default
