"""Who is not let in is told the setting to correct, as it was given."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from headrace.streams.config.config import with_files_read
from headrace.streams.kafka.clients import read_failure
from headrace.streams.kafka.connectivity import rejection_error
from headrace.streams.kafka.denials import denial

CANARY = "c4n4ry"
REFUSED = (
    "kafka:9092/bootstrap: SASL authentication error: Authentication failed during authentication "
    "due to invalid credentials with SASL mechanism PLAIN (after 1ms in state AUTH_REQ)"
)


@pytest.mark.parametrize("is_in_file", [True, False])
def test_a_password_that_came_from_a_file_is_corrected_there(
    tmp_path: Path, is_in_file: bool
) -> None:
    file = tmp_path / "password"
    file.write_text(CANARY)
    name, value = ("sasl.password.file", str(file)) if is_in_file else ("sasl.password", CANARY)
    config, problems = with_files_read({"sasl.username": "app", name: value})
    assert problems == []
    failure = read_failure(REFUSED)
    assert failure is not None
    config = pickle.loads(pickle.dumps(config))
    error = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED)
    for said in (str(rejection_error(failure, config)), str(denial(error, config))):
        assert said.endswith(f"correct sasl.mechanism, sasl.username and {name}")
        assert CANARY not in said
