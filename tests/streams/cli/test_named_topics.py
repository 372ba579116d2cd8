"""A topic that is named wrong is said with what is near, and with what the command allows."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main

APP = """
from datetime import timedelta

from headrace import JoinWindows, KafkaStreams, StreamsBuilder

builder = StreamsBuilder()
left, right = builder.stream("shop.orders"), builder.stream("shop.payments")
window = JoinWindows(time_difference=timedelta(seconds=1))
left.join(right, "{} {}".format, window, store="pairs").to("shop.pairs")
app = KafkaStreams(builder.build(), {"application.id": "s", "bootstrap.servers": "localhost:1"})
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    file = tmp_path / "shops.py"
    file.write_text(APP)
    return f"{file}:app"


def said(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, arguments)
    assert "Traceback" not in done.output
    return done.exit_code, done.output


def test_a_command_that_can_do_without_an_application_says_so(target: str) -> None:
    for command in ("tail", "describe"):
        code, text = said("topics", command, "shop.order", "--app", target)
        assert code == 2
        assert "Did you mean shop.orders? Without --app, any topic is allowed.\n" in text


def test_skip_which_needs_one_does_not(target: str) -> None:
    code, text = said("skip", "shop.order", "2", "5", "--app", target)
    assert code == 1
    assert text.endswith("Did you mean shop.orders?\n")


def test_a_step_stands_for_the_topics_that_begin_with_it(target: str) -> None:
    text = said("topics", "describe", "pairs", "--app", target)[1]
    assert "Did you mean pairs-other-join-store or pairs-this-join-store?" in text
