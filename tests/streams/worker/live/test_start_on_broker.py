"""How a worker starts: what it asks of brokers that no other question waits for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamsBuilder, serdes
from headrace.streams.kafka.group_offsets import MemberlessGroup
from tests.support.live import live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics


def test_hand_overs_and_what_is_deployed_are_looked_for_at_the_same_time(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a connection and a coordinator to be found; a start has both before anything else."""
    both = threading.Barrier(2, timeout=PATIENCE_S)
    asked: list[str] = []
    ask = MemberlessGroup.committed

    def met(self: MemberlessGroup, group: str, **options: Any) -> Any:
        asked.append(group)
        if len(asked) <= 2:
            both.wait()
        return ask(self, group, **options)

    monkeypatch.setattr(MemberlessGroup, "committed", met)
    builder = StreamsBuilder()
    builder.stream(topics.create("in"), value=serdes.string).to(topics.create("out"))
    settings = settings_of(topics, tmp_path)
    with live(builder.build(), settings):
        wait_until(lambda: len(asked) >= 2, what="both questions")
    name = settings["application.id"]
    assert sorted(asked[:2]) == [f"{name}.backfill", f"{name}.topology"]
