"""README.md and the pages have few words for which there is a standard term.

The words are in tests/support/words.toml, with their number, which may only fall. A page that loses
some lowers it.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.support.processes import ROOT

LIST = tomllib.loads((ROOT / "tests" / "support" / "words.toml").read_text())
WORDS = {word["find"]: word["use"] for word in LIST["word"]}
RECORD = ROOT / "docs" / "changes-before-0.1.0.md"
"""Describes the past in the words of its time."""
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1", re.M | re.S)
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|^    .*$", re.M)


def prose(markdown: str) -> str:
    """Return a page without its code and the addresses of its links."""
    return _CODE.sub("", _FENCE.sub("", markdown))


def words_of(page: Path) -> Counter[str]:
    text = prose(page.read_text())
    return Counter({find: len(re.findall(find, text, re.I)) for find in WORDS})


def test_the_pages_have_no_more_of_these_words_than_recorded() -> None:
    found = {page.relative_to(ROOT).as_posix(): words_of(page) for page in PAGES if page != RECORD}
    total = sum(words.total() for words in found.values())
    where = "\n".join(
        f"{page}: {count} times {find}: write {WORDS[find]}"
        for page, words in found.items()
        for find, count in words.items()
        if count
    )
    assert total <= LIST["recorded"], where
    assert total == LIST["recorded"], f"record {total} in tests/support/words.toml"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It is no longer so.", 0),
        ("A client is no worker, and is made anew.", 2),
        ("Call `say()`, or [see](behind.md).", 0),
        ("```text\nnobody\n```\n\nNobody reads it.", 1),
        ("Look up a row.", 0),
    ],
)
def test_words_are_counted_outside_of_code(text: str, count: int) -> None:
    assert sum(len(re.findall(find, prose(text), re.I)) for find in WORDS) == count
