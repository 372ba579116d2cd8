"""The list of changes: single ones, plausible, each in code that a promise rests on.

They are data: `changes/<area>.toml` has a table for each, with the file, the text that is replaced
(it stands there once), what takes its place, and the tests that ought to notice.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src/headrace")
LISTS = Path(__file__).parent / "changes"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the code.

    Args:
        name: its own among all, in words that say what goes wrong.
        area: the list that it is in.
        file: what is changed, from the root.
        find: the text that is replaced.
        replace: what takes its place.
        tests: what pytest is told to run.
        equivalent: why nothing can notice it, where that is so.
    """

    name: str
    area: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @classmethod
    def of(cls, area: str, table: dict[str, Any]) -> Change:
        return cls(
            name=table["name"],
            area=area,
            file=table["file"],
            find=_text(table["find"]),
            replace=_text(table["replace"]),
            tests=tuple(table["tests"]),
            equivalent=table.get("equivalent", ""),
        )

    def apply(self, root: Path) -> None:
        """Change the file of a copy of the project.

        Raises:
            ValueError: the text does not stand there, or more than once.
        """
        path = root / PACKAGE / self.file
        before = path.read_text()
        count = before.count(self.find)
        if count != 1:
            raise ValueError(f"{self.name}: its text stands {count} times in {self.file}")
        path.write_text(before.replace(self.find, self.replace))


def _text(text: str) -> str:
    # A text of several lines begins and ends on lines of its own in the list.
    return text.removeprefix("\n").removesuffix("\n")


def all_changes(lists: Path = LISTS) -> Iterator[Change]:
    """The changes of all lists, in their order."""
    for path in sorted(lists.glob("*.toml")):
        for table in tomllib.loads(path.read_text())["change"]:
            yield Change.of(path.stem, table)
