"""What is wrong with local state reaches the user as one of the runtime's errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.state.directory import StateDirectory
from headrace.streams import KafkaStreams
from headrace.streams.errors import IdentityError, LocalStateError
from headrace.topology import StreamsBuilder, serdes
from tests.support.topics import Topics


def application(topics: Topics, state_dir: Path) -> KafkaStreams:
    builder = StreamsBuilder()
    stream = builder.stream(topics.create("in"), key=serdes.string, value=serdes.string)
    stream.group_by_key().count(store="counts")
    return KafkaStreams(
        builder.build(),
        {
            "application.id": topics.name("app"),
            "bootstrap.servers": topics.bootstrap,
            "state.dir": str(state_dir),
            "worker.id": "w",
        },
    )


def test_an_identity_that_is_in_use_stops_the_application(topics: Topics, tmp_path: Path) -> None:
    """The error names the process that has it."""
    app = application(topics, tmp_path)
    held = StateDirectory(tmp_path, app.config.application_id).acquire_identity("w")
    with pytest.raises(IdentityError, match=r"'w' is in use by process \d+"):
        app.run()
    held.release()


def test_a_state_directory_that_cannot_be_made_stops_the_application(
    topics: Topics, tmp_path: Path
) -> None:
    """A file stands where the directory should be."""
    (tmp_path / "state").write_text("")
    with pytest.raises(LocalStateError, match=r"state\.dir"):
        application(topics, tmp_path / "state").run()
