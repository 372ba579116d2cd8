"""The map of the packages on the architecture page."""

from __future__ import annotations

from tests.support.layout_picture import PICTURE, drawn, packages_of


def test_the_map_shows_the_packages_that_there_are() -> None:
    again = "draw it again: python -m tests.support.layout_picture"
    assert PICTURE.read_text() == drawn(), again


def test_layout_stand_in_their_order_below_the_folder_that_they_are_in() -> None:
    assert packages_of("spark_bridge")[-1] == "cli"
    streams = packages_of("streams")
    assert streams.index("tasks") < streams.index("worker") < streams.index("cli")
