"""Chapters of the tutorial as blocks: files to save, commands to run, and their output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
CHAPTERS = (
    "first-application",
    "streams-and-tables",
    "windows-and-late-data",
    "production",
    "history",
)
_OFFLINE = ("headrace check revenue:app", "headrace describe", "headrace try", "pytest", "python")
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Args:
        kind: its language, such as `python` or `sh`.
        file: the file that it is saved as, or None.
        text: its lines.
    """

    kind: str
    file: str | None
    text: str


@dataclass(frozen=True)
class Command:
    """Lines of a shell, and the output that the page shows for the last one; None without any."""

    lines: tuple[str, ...]
    output: str | None

    @property
    def is_offline(self) -> bool:
        """Whether none of the lines needs a broker."""
        return all(
            line.startswith(_OFFLINE) and "--deployed" not in line and "year.py" not in line
            for line in self.lines
        )


def blocks(chapter: str) -> list[Block]:
    """Return the fenced blocks of a chapter in their order."""
    page = (TUTORIALS / f"{chapter}.md").read_text()
    return [Block(kind, file or None, text) for kind, file, text in _BLOCK.findall(page)]


def steps(chapter: str) -> list[Block | Command]:
    """Return the files and the commands of a chapter in their order."""
    found = blocks(chapter)
    following = [*found[1:], Block("end", None, "")]
    made: list[Block | Command] = []
    for block, after in zip(found, following, strict=True):
        if block.file is not None:
            made.append(block)
        elif block.kind == "sh":
            output = after.text if after.kind == "text" and after.file is None else None
            made.append(Command(tuple(block.text.splitlines()), output))
    return made


def files_before(chapter: str) -> list[Block]:
    """Return the files that a reader has when a chapter begins, the newest ones last."""
    earlier = CHAPTERS[: CHAPTERS.index(chapter)]
    return [block for each in earlier for block in blocks(each) if block.file is not None]


def save(block: Block, home: Path) -> None:
    """Save a block under its name."""
    assert block.file is not None
    path = home / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)


def comparable(output: str) -> list[str]:
    """Return the lines of an output without what differs between two runs: times and ids."""
    text = re.sub(r'("timestamp":)\d+', r"\1_", output)
    text = re.sub(r"(accept=)[0-9a-f]+", r"\1_", text)
    text = re.sub(r"\b\d+\.\d+s\b(?: \([\d:]+\))?", "_s", text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]
