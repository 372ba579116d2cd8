from __future__ import annotations

import contextlib
import ctypes
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.admin.backfill_gate import backfill_group
from headrace.streams.app import KafkaStreams
from headrace.streams.config.client_names import CONSUMER, PRODUCER, SHARED, TUNING
from headrace.streams.config.client_settings import OWNED
from headrace.streams.config.config import StreamsConfig, table
from headrace.streams.config.java_settings import NOT_SUPPORTED
from headrace.streams.config.settings import OWN_GROUPS
from headrace.streams.errors import ConfigError
from headrace.streams.plan.deployed import topology_group
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.worker.shutdown import shutdown_group
from headrace.topology import serdes
from tests.support.generated_pages import configuration
from tests.support.topologies import key_count

BASE: dict[str, object] = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
GUARANTEES = ("at_least_once", "exactly_once_v2")


def parse(**settings: object) -> StreamsConfig:
    """Parse the smallest legal settings and these; double underscores stand for dots."""
    return StreamsConfig.parse({**BASE, **{n.replace("__", "."): v for n, v in settings.items()}})


def problems(settings: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        StreamsConfig.parse({**BASE, **settings})
    return raised.value.problems


def test_all_wrong_settings_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        StreamsConfig.parse({"application.id": "no spaces", "poll.ms": -1, "polls.ms": 3})
    text = str(raised.value)
    assert text.startswith("4 settings are wrong:")
    for part in ("application.id must", "bootstrap.servers is required", "poll.ms must be at"):
        assert part in text
    assert "polls.ms is unknown; did you mean poll.ms?" in text


def test_one_wrong_setting_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^on\.stop must be one of 'leave', 'stay', not 'go'$"):
        parse(on__stop="go")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("commit.interval.msec", "did you mean commit.interval.ms?"),
        ("sasl.passwort", "did you mean sasl.password?"),
        ("consumer.fetch.min.byte", "did you mean consumer.fetch.min.bytes?"),
        ("producer.fetch.min.bytes", "is unknown"),
        ("fetch.min.bytes", "write consumer.fetch.min.bytes"),
        ("linger.ms", "write producer.linger.ms"),
        ("retry.backoff.ms", "write consumer.retry.backoff.ms or producer.retry.backoff.ms"),
        ("main.consumer.fetch.min.bytes", "write consumer.fetch.min.bytes"),
        ("restore.consumer.fetch.min.bytes", "write restore.fetch.min.bytes"),
        ("enable.auto.commit", "offsets are committed together with the state"),
        ("something.else.entirely", "headrace settings lists all"),
        ("num.stream.threads", "workers are processes"),
        ("num.standby.replicas", "there are no standby tasks"),
        ("transaction.timeout.ms", "write producer.transaction.timeout.ms"),
    ],
)
def test_an_unknown_setting_is_answered_with_what_to_write(name: str, advice: str) -> None:
    (problem,) = problems({name: 1})
    assert problem.startswith(name)
    assert advice in problem


@pytest.mark.parametrize("guarantee", ["exactly_once", "exactly_once_v2"])
def test_exactly_once_is_an_alias_of_v2(guarantee: str) -> None:
    config = parse(processing__guarantee=guarantee)
    assert config.processing_guarantee == "exactly_once_v2"
    assert config.exactly_once


def test_the_commit_interval_follows_from_the_guarantee_unless_it_is_given() -> None:
    assert parse().commit_interval_ms == 30_000
    assert parse(processing__guarantee="exactly_once").commit_interval_ms == 100
    given = parse(processing__guarantee="exactly_once", commit__interval__ms=250)
    assert given.commit_interval_ms == 250


@pytest.mark.parametrize("value", [1500, "1500", timedelta(seconds=1.5)])
def test_a_duration_is_milliseconds_or_a_timedelta(value: object) -> None:
    assert parse(commit__interval__ms=value).commit_interval_ms == 1500


@pytest.mark.parametrize("value", [timedelta(microseconds=1500), 1.5, True, "1.5s", -1])
def test_a_duration_that_is_no_whole_milliseconds_is_refused(value: object) -> None:
    (problem,) = problems({"commit.interval.ms": value})
    assert problem.startswith("commit.interval.ms must be ")


def test_none_means_not_set() -> None:
    assert parse(worker__id=None, poll__ms=None) == parse()


@pytest.mark.parametrize("application_id", ["", ".", "..", "a/b", "é", "x" * 250, 7])
def test_an_application_id_that_kafka_would_refuse_is_refused(application_id: object) -> None:
    (problem,) = problems({"application.id": application_id})
    assert problem.startswith("application.id must")


@pytest.mark.parametrize("ending", [".topology", ".backfill"])
def test_an_application_is_not_named_like_the_notes_of_another(ending: str) -> None:
    """Its offsets would be taken for the other's notes, and the notes for its offsets."""
    (problem,) = problems({"application.id": f"word-count{ending}"})
    assert f"must not end in '{ending}'" in problem
    assert "an application 'word-count' stores its metadata" in problem


def test_the_endings_that_are_refused_are_those_of_the_groups_of_notes() -> None:
    groups = {topology_group("a"), backfill_group("a"), shutdown_group("a")}
    assert groups == {f"a{ending}" for ending in OWN_GROUPS}


@pytest.mark.parametrize("value", ["localhost", "localhost:", ":9092", "h:0", "h:1,,h:2", [], 9092])
def test_servers_that_are_no_host_and_port_are_refused(value: object) -> None:
    (problem,) = problems({"bootstrap.servers": value})
    assert "host:port" in problem


@pytest.mark.parametrize(
    "value",
    [
        "http://h:9092",
        "kafka://h:9092",
        "PLAINTEXT://h:9092",
        "h:1,SSL://i:2",
        "h:9092/",
        ["a://h:1"],
    ],
)
def test_servers_with_a_scheme_are_refused(value: object) -> None:
    (problem,) = problems({"bootstrap.servers": value})
    assert "bootstrap.servers must be host:port, without a scheme or a path" in problem
    assert "security.protocol" in problem


def test_servers_may_be_a_list() -> None:
    config = StreamsConfig.parse({**BASE, "bootstrap.servers": ["a:1", "[::1]:2"]})
    assert config.admin_config()["bootstrap.servers"] == "a:1,[::1]:2"


def test_a_default_serde_is_named_or_given() -> None:
    own = serdes.serde_from(serialize=lambda v: v, deserialize=lambda b: b, name="own")
    config = parse(default__key__serde="string", default__value__serde=own)
    assert config.default_key_serde is serdes.string
    assert config.default_value_serde is own
    assert parse().default_key_serde is serdes.json
    (problem,) = problems({"default.key.serde": "avro"})
    assert "string, bytes, integer, long, double, json" in problem


def test_state_is_kept_where_it_survives_a_reboot() -> None:
    settings = BASE
    xdg = StreamsConfig.parse(settings, environ={"XDG_STATE_HOME": "/var/lib/me"})
    assert xdg.state_dir == Path("/var/lib/me/headrace")
    relative = StreamsConfig.parse(settings, environ={"XDG_STATE_HOME": "me"})
    assert relative.state_dir == Path.home() / ".local/state/headrace"
    given = StreamsConfig.parse({**settings, "state.dir": "~/s"}, environ={})
    assert given.state_dir == Path.home() / "s"


def clients(config: StreamsConfig) -> dict[str, dict[str, object]]:
    return {
        "consumer": config.consumer_config("w-0"),
        "restore": config.restore_config(),
        "producer": config.producer_config("shop-w-0" if config.exactly_once else None),
        "admin": config.admin_config(),
    }


def test_a_setting_without_prefix_reaches_every_client_and_a_prefix_wins() -> None:
    config = parse(
        security__protocol="SSL", socket__timeout__ms=timedelta(seconds=9), client__id="me",
        producer__socket__timeout__ms=8000,
    )  # fmt: skip
    for role, settings in clients(config).items():
        assert settings["security.protocol"] == "SSL"
        assert settings["client.id"] == f"me-{role}"
        assert settings["socket.timeout.ms"] == (8000 if role == "producer" else 9000)


def test_every_client_connects_soon_unless_told_otherwise() -> None:
    """librdkafka's default of 100 ms has each new client wait 50 ms for its first answer."""
    for role, settings in clients(parse()).items():
        assert settings["reconnect.backoff.ms"] == 20, role
    for role, settings in clients(parse(reconnect__backoff__ms=200)).items():
        assert settings["reconnect.backoff.ms"] == 200, role


def test_the_restore_consumer_takes_the_consumers_settings_under_its_own() -> None:
    config = parse(
        consumer__fetch__min__bytes=2, consumer__check__crcs=True, restore__fetch__min__bytes=3,
        consumer__auto__offset__reset="latest", consumer__isolation__level="read_uncommitted",
    )  # fmt: skip
    restore = config.restore_config()
    assert (restore["fetch.min.bytes"], restore["check.crcs"]) == (3, True)
    assert (restore["auto.offset.reset"], restore["isolation.level"]) == ("error", "read_committed")
    assert "group.instance.id" not in restore
    consumer = config.consumer_config("w-0")
    assert consumer["auto.offset.reset"] == "latest"
    assert consumer["isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize("owned", OWNED, ids=lambda owned: f"{owned.clients[0]}{owned.name}")
def test_a_setting_that_the_runtime_owns_is_refused_with_the_reason(owned) -> None:
    for prefix in owned.clients:
        name = prefix + owned.name
        settings = {"processing.guarantee": "exactly_once", name: "roundrobin"}
        (problem,) = problems(settings)
        assert problem.startswith(f"{name} cannot be set")
        assert owned.reason in problem
        if owned.value is not None:
            StreamsConfig.parse({**BASE, **settings, name: owned.value})


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("producer.acks", 0, "lost leader"),
        ("producer.acks", "1", "lost leader"),
        ("producer.request.required.acks", 0, "lost leader"),
        ("producer.enable.idempotence", False, "must not be reordered"),
        ("producer.queuing.strategy", "lifo", "must not be reordered"),
        ("consumer.topic.blacklist", "orders", "lost silently"),
        ("consumer.enable.auto.commit", True, "offsets are committed together"),
        ("consumer.enable.auto.offset.store", True, "offsets are committed together"),
        ("topic.unclean.leader.election.enable", "true", "lost with a leader"),
    ],
)
def test_what_breaks_either_guarantee_is_refused(
    guarantee: str, name: str, value: object, said: str
) -> None:
    (problem,) = problems({"processing.guarantee": guarantee, name: value})
    assert problem.startswith(f"{name} cannot be set")
    assert said in problem


@pytest.mark.parametrize(("name", "value"), [("acks", -1), ("acks", "all"), ("acks", "ALL")])
def test_another_word_for_what_the_runtime_does_is_accepted(name: str, value: object) -> None:
    StreamsConfig.parse({**BASE, f"producer.{name}": value})


def test_no_owned_setting_can_be_changed_by_an_alias_without_prefix() -> None:
    for owned in OWNED:
        # A setting of the name that begins with "topic." is a config of topics.
        if owned.name not in ("bootstrap.servers", "topic.blacklist"):
            assert problems({owned.name: "x"})


@pytest.mark.parametrize("name", ["cleanup.policy", "retention.ms", "message.timestamp.type"])
def test_topic_configs_that_the_topic_is_made_of_are_refused(name: str) -> None:
    (problem,) = problems({f"topic.{name}": "x"})
    assert problem.startswith(f"topic.{name} cannot be set:")


def test_topic_configs_are_text() -> None:
    config = parse(topic__segment__bytes=1024, topic__max__message__bytes="2048")
    assert config.topic_configs == {"segment.bytes": "1024", "max.message.bytes": "2048"}


def test_a_commit_interval_that_outlasts_the_transaction_is_refused() -> None:
    exactly_once = {"processing.guarantee": "exactly_once", "commit.interval.ms": 30_000}
    (problem,) = problems(exactly_once)
    assert "producer.transaction.timeout.ms to 32000 or more" in problem
    enough = {**exactly_once, "producer.transaction.timeout.ms": timedelta(seconds=32)}
    assert StreamsConfig.parse({**BASE, **enough}).transaction_timeout_ms == 32_000
    parse(commit__interval__ms=30_000)


def test_heartbeats_are_frequent_and_fit_into_the_session() -> None:
    def heartbeat_ms(**settings: object) -> object:
        return parse(**settings).consumer_config("w")["heartbeat.interval.ms"]

    assert heartbeat_ms() == 200
    assert heartbeat_ms(consumer__session__timeout__ms=timedelta(milliseconds=300)) == 100
    assert heartbeat_ms(consumer__heartbeat__interval__ms=3000) == 3000
    assert "heartbeat.interval.ms" not in parse().restore_config()


def test_a_heartbeat_that_outlasts_the_session_is_refused() -> None:
    session = {"consumer.session.timeout.ms": 2000}
    (problem,) = problems({**session, "consumer.heartbeat.interval.ms": 2000})
    assert problem.startswith("consumer.heartbeat.interval.ms 2000 must be shorter than")
    (problem,) = problems({"consumer.session.timeout.ms": "soon"})
    assert problem.startswith("consumer.session.timeout.ms and")


def test_passwords_stay_out_of_the_repr_and_of_errors() -> None:
    secret = "hunter2"
    assert secret not in repr(parse(sasl__password=secret, producer__ssl__key__pem=secret))
    assert all(secret not in p for p in problems({"sasl.password": secret, "poll.ms": -1}))


def test_each_failed_record_is_reported_and_under_exactly_once_each_record() -> None:
    assert parse().producer_config(None)["delivery.report.only.error"] is True
    exactly_once = parse(processing__guarantee="exactly_once")
    assert exactly_once.producer_config("t")["delivery.report.only.error"] is False


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_input_is_read_committed_under_both_guarantees(guarantee: str) -> None:
    config = parse(processing__guarantee=guarantee)
    assert config.consumer_config("w")["isolation.level"] == "read_committed"
    assert config.reads_committed


def test_at_least_once_may_read_what_was_aborted_if_it_says_so() -> None:
    assert not parse(consumer__isolation__level="read_uncommitted").reads_committed
    with pytest.raises(ConfigError, match=r"isolation\.level"):
        parse(
            processing__guarantee="exactly_once_v2", consumer__isolation__level="read_uncommitted"
        )


def test_a_producer_accepts_records_as_large_as_the_topics_do() -> None:
    config = parse()
    assert config.producer_config(None, message_max_bytes=5_000_000)["message.max.bytes"] == 5e6
    assert "message.max.bytes" not in config.producer_config(None)


def silent(settings: dict[str, object]) -> dict[str, object]:
    """No broker is there, which is not what the test is about."""
    return {**settings, "log_level": 0}


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("more", [{}, {"producer.retry.backoff.ms": 3000, "ssl.key.password": "x"}])
def test_librdkafka_accepts_what_is_produced(guarantee: str, more: dict[str, object]) -> None:
    config = StreamsConfig.parse({**BASE, "processing.guarantee": guarantee, **more})
    Consumer(silent(config.consumer_config("w-0"))).close()
    Consumer(silent(config.restore_config())).close()
    Producer(silent(config.producer_config("shop-w-0", message_max_bytes=10_000_000)))
    Producer(silent(config.producer_config(None)))
    AdminClient(silent(config.admin_config()))


@pytest.mark.slow
def test_every_client_accepts_the_callbacks() -> None:
    callbacks = dict.fromkeys(("error_cb", "stats_cb", "throttle_cb"), lambda _: None)
    oauth = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: ("token", 4_000_000_000.0),
    }
    config = StreamsConfig.parse({**BASE, **callbacks, **oauth})
    Consumer(silent(config.consumer_config("w-0"))).close()
    Producer(silent(config.producer_config(None)))
    AdminClient(silent(config.admin_config()))


def library_names(tmp_path: Path) -> dict[str, set[str]]:
    """What the loaded librdkafka itself lists, by ``C``, ``P`` or ``*`` for both."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    paths = {line.split()[-1] for line in lines if "librdkafka" in line}
    if not paths:
        pytest.skip("librdkafka is linked in where its own list cannot be asked for")
    library, libc = ctypes.CDLL(paths.pop()), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(str(tmp_path / "list").encode(), b"w"))
    library.rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    names: dict[str, set[str]] = {"C": set(), "P": set(), "*": set()}
    for line in (tmp_path / "list").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 5 and cells[1] in names and "see dedicated API" not in line:
            names[cells[1]].add(cells[0])
    return names


def test_the_known_client_settings_are_those_of_the_installed_library(tmp_path: Path) -> None:
    names = library_names(tmp_path)
    callbacks = {"error_cb", "stats_cb", "throttle_cb", "oauth_cb", "logger"}
    useless = {"builtin.features", "enabled_events", "internal.termination.signal"}
    assert names["C"] == CONSUMER
    assert names["P"] == PRODUCER
    assert (SHARED - callbacks) | TUNING == names["*"] - useless
    assert not SHARED & TUNING


def test_the_documentation_lists_the_settings_as_they_are() -> None:
    written = Path(__file__).parents[3] / "docs" / "configuration.md"
    assert written.read_text() == configuration(), (
        "run python -m tests.support.generated_pages configuration > docs/configuration.md"
    )


def test_every_default_is_a_legal_value() -> None:
    for own in table():
        if own.default_words != "required" and own.default is not None:
            assert own.kind.parse(own.default) == own.default, own.name


NAMES = sorted([*(own.name for own in table()), *NOT_SUPPORTED, *SHARED, *CONSUMER, *PRODUCER])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.timedeltas()


@given(
    st.dictionaries(
        st.sampled_from(NAMES) | st.text() | st.sampled_from(NAMES).map("producer.".__add__),
        VALUES | st.lists(st.integers()) | st.binary(),
    )
)
def test_whatever_is_given_ends_in_settings_or_in_a_config_error(
    settings: dict[str, object],
) -> None:
    with contextlib.suppress(ConfigError):
        config = StreamsConfig.parse({**BASE, **settings})
        assert config.admin_config()["bootstrap.servers"]


@pytest.mark.parametrize("given", ["app.toml", Path("app.toml"), None, [("application.id", "a")]])
def test_settings_that_are_no_mapping_are_refused(given: Any) -> None:
    def make_driver(settings: Any) -> None:
        TopologyTestDriver(key_count(), settings)

    makers = [StreamsConfig.parse, lambda settings: KafkaStreams(key_count(), settings)]
    if given is not None:  # the driver has settings of its own
        makers.append(make_driver)
    for make in makers:
        with pytest.raises(ConfigError, match="settings must be a mapping of names to values"):
            make(given)


def test_the_name_of_a_dead_letter_topic_is_refused_as_that_of_a_topic() -> None:
    (problem,) = problems({"errors.dead.letter.queue.topic.name": "a b"})
    assert problem.endswith("'a b' is not; it names a topic")
    (problem,) = problems({"application.id": "a b"})
    assert problem.endswith("'a b' is not; topics and groups are named after it")
