"""Settings in the environment: one variable for each name, and none for anything else."""

from __future__ import annotations

import pytest

from headrace.streams.config.config import table
from headrace.streams.config.environment import _known, name_of, settings_of, variable_of
from headrace.streams.config.secrets import SECRET_NAMES
from headrace.streams.errors import ConfigError


def test_every_setting_has_a_variable_of_its_own_and_comes_back_from_it() -> None:
    names = {*_known(), "topic.min.insync.replicas", "topic.a-b_c.d"}
    assert {own.name for own in table()} < names
    assert {f"{name}.file" for name in SECRET_NAMES} < names
    assert {f"producer.{name}.file" for name in SECRET_NAMES} < names
    variables = {variable_of(name): name for name in names}
    assert len(variables) == len(names)
    assert {name_of(variable): name for variable, name in variables.items()} == {
        name: name for name in names
    }


def test_values_are_taken_as_they_are() -> None:
    given = {
        "HEADRACE_BOOTSTRAP_SERVERS": "a:1,b:2",
        "HEADRACE_CONSUMER_SESSION_TIMEOUT_MS": "6000",
        "HEADRACE_LOG__LEVEL": "3",
        "HEADRACE_TOPIC_SEGMENT_MS": "1",
        "HEADRACE_SASL_PASSWORD": " with blanks=and signs ",
        "HEADRACE_CONFIG": "of the command line",
        "HOME": "/root",
    }
    assert settings_of(given) == {
        "bootstrap.servers": "a:1,b:2",
        "consumer.session.timeout.ms": "6000",
        "log_level": "3",
        "topic.segment.ms": "1",
        "sasl.password": " with blanks=and signs ",
    }


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("HEADRACE_BOOTSTRAP_SERVER", "did you mean HEADRACE_BOOTSTRAP_SERVERS?"),
        ("HEADRACE_SASL_PASWORD_FILE", "did you mean HEADRACE_SASL_PASSWORD_FILE?"),
        ("HEADRACE_LOG_LEVEL", "did you mean HEADRACE_LOG__LEVEL?"),
        ("HEADRACE_ERROR__CB", "matches no setting"),
        ("HEADRACE_COLOUR", "headrace settings lists all"),
    ],
)
def test_what_is_for_no_setting_is_refused_with_the_nearest(variable: str, said: str) -> None:
    with pytest.raises(ConfigError, match=variable) as raised:
        settings_of({variable: "c4n4ry"})
    assert said in str(raised.value)
    assert "c4n4ry" not in str(raised.value)


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        settings_of({"HEADRACE_A": "1", "HEADRACE_B": "2"})
    assert len(raised.value.problems) == 2


def test_what_kubernetes_says_of_a_service_called_headrace_is_no_setting() -> None:
    given = {
        "HEADRACE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_SERVICE_PORT": "80",
        "HEADRACE_SERVICE_PORT_HTTP": "80",
        "HEADRACE_PORT": "tcp://10.0.0.1:80",
        "HEADRACE_PORT_80_TCP": "tcp://10.0.0.1:80",
        "HEADRACE_PORT_80_TCP_ADDR": "10.0.0.1",
        "HEADRACE_WEB_SERVICE_HOST": "10.0.0.1",
    }
    assert settings_of(given) == {}


def test_a_setting_of_java_s_is_left_to_who_says_what_to_write() -> None:
    assert settings_of({"HEADRACE_NUM_STANDBY_REPLICAS": "1"}) == {"num.standby.replicas": "1"}
