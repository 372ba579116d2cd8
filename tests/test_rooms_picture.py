"""The map of the rooms on the page on architecture."""

from __future__ import annotations

from tests.support.rooms_picture import PICTURE, drawn, rooms_of


def test_the_map_shows_the_rooms_that_there_are() -> None:
    again = "draw it again: python -m tests.support.rooms_picture"
    assert PICTURE.read_text() == drawn(), again


def test_rooms_stand_in_their_order_below_the_folder_that_they_are_in() -> None:
    assert rooms_of("state") == ("events", "disk", "beside")
    streams = rooms_of("streams")
    assert streams.index("task") < streams.index("worker") < streams.index("cli")
