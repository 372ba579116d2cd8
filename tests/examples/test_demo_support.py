"""The parts of the demo that decide what it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from examples.demo_support.story import differences
from examples.demo_support.text import read_file, standard_library


def test_every_kind_of_difference_is_found() -> None:
    """Too few, too many, missing, invented."""
    counted = {"right": 2, "few": 1, "many": 3, "invented": 1}
    expected = {"right": 2, "few": 2, "many": 2, "missing": 1}
    assert differences(counted, expected) == ["few", "invented", "many", "missing"]
    assert differences(counted, counted) == []


def test_the_standard_library_holds_a_megabyte_of_text(tmp_path: Path) -> None:
    """The second time it comes from the file that the first time wrote, and is the same."""
    said: list[str] = []
    first = standard_library(tmp_path, report=said.append)
    again = standard_library(tmp_path, report=said.append)
    assert first.size > 1_000_000
    assert all(line.strip() for line in first.lines)
    assert first.counts()["the"] > 1_000
    assert (again, len(said)) == (first, 1)


def test_the_lines_of_a_file_are_recounted_as_the_word_count_splits_them(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(" a b\tb \n\n\x0c\nc\n", encoding="utf-8")
    text = read_file(path)
    assert text.lines == ["a b\tb", "c"]
    assert text.counts() == Counter({"b": 2, "a": 1, "c": 1})
