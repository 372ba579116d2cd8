"""The rows of the table that errors of the clients are read by, one at a time."""

from __future__ import annotations

from typing import get_args

import pytest
from confluent_kafka import KafkaError

from headrace.streams.kafka.reactions import (
    _SETTINGS,
    Call,
    Reaction,
    reaction_to,
    wrong_setting,
)
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of

STALE = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
)
PASSING = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.NOT_COORDINATOR)


@pytest.mark.parametrize("code", STALE)
@pytest.mark.parametrize("call", ["offsets", "commit"])
def test_a_stale_membership_aborts_and_waits_for_the_groups_word(code: int, call: Call) -> None:
    assert reaction_to(KafkaError(code), call) is Reaction.MIGRATED


def test_a_member_that_was_given_up_hears_it_from_a_poll_and_not_from_a_commit() -> None:
    error = KafkaError(KafkaError.FENCED_INSTANCE_ID)
    assert reaction_to(error, "offsets") is Reaction.MIGRATED
    assert reaction_to(error, "consumer") is Reaction.REJOIN


@pytest.mark.parametrize("code", PASSING)
def test_only_a_commit_is_not_called_again_after_what_passes(code: int) -> None:
    """Its outcome is unknown, and a new producer decides it."""
    assert reaction_to(KafkaError(code), "commit") is Reaction.REPLACE
    for call in ("init", "offsets", "abort", "query", "consumer"):
        assert reaction_to(KafkaError(code), call) is Reaction.RETRY


@pytest.mark.parametrize("call", ["init", "send", "offsets", "commit", "abort"])
def test_a_fenced_producer_is_fenced_whatever_it_is_asked(call: Call) -> None:
    for code in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
        assert reaction_to(KafkaError(code), call) is Reaction.FENCED


def test_the_marks_of_an_error_decide_where_its_code_does_not() -> None:
    code = KafkaError._MSG_TIMED_OUT
    fatal = KafkaError(code, "", True)
    abortable = KafkaError(code, "", False, False, True)
    retriable = KafkaError(code, "", False, True)
    assert reaction_to(fatal, "send") is Reaction.REPLACE
    assert reaction_to(fatal, "consumer") is Reaction.STOP
    assert reaction_to(abortable, "commit") is Reaction.ABORT
    assert reaction_to(retriable, "commit") is Reaction.REPLACE
    assert reaction_to(retriable, "offsets") is Reaction.RETRY
    assert reaction_to(KafkaError(code), "offsets") is Reaction.STOP


def test_what_a_person_must_put_right_is_not_tried_again() -> None:
    denied = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    for call in ("offsets", "commit", "consumer", "query"):
        assert reaction_to(denied, call) is Reaction.DENIED
    assert reaction_to(KafkaError(KafkaError.INVALID_RECORD), "send") is Reaction.REFUSED


@pytest.mark.parametrize("call", get_args(Call))
@pytest.mark.parametrize("code", _SETTINGS)
def test_what_the_same_settings_meet_again_is_not_an_outage(code: int, call: Call) -> None:
    """The client marks the first of them as fatal, and others as retriable."""
    for marks in ((False, False), (True, False), (False, True)):
        assert reaction_to(KafkaError(code, "", *marks), call) is Reaction.MISCONFIGURED
    assert exit_code_of(wrong_setting(KafkaError(code), "here")) is ExitCode.CONFIGURATION
