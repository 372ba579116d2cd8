"""Notices that a file of a project was saved, by looking at times and sizes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

ENDINGS = (".py", ".toml", ".avsc")
FILES_MAX = 5_000
_NOT_THE_PROJECT_S = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


class Changes:
    """See the module.

    Args:
        roots: the folders to look into, and files.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = list(dict.fromkeys(root.absolute() for root in roots))
        self._seen = self._look()

    def __len__(self) -> int:
        return len(self._seen)

    def since(self) -> list[Path]:
        """The files that were saved, made or removed since the last call."""
        now = self._look()
        before, self._seen = self._seen, now
        return sorted(p for p in before.keys() | now.keys() if before.get(p) != now.get(p))

    def _look(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for path in self._files():
            try:
                stat = path.stat()
            except OSError:
                continue  # an editor is just putting another one in its place
            found[path] = (stat.st_mtime_ns, stat.st_size)
            if len(found) == FILES_MAX:
                break
        return found

    def _files(self) -> Iterator[Path]:
        for root in self._roots:
            if root.is_file():
                yield root
            for folder, folders, files in os.walk(root):
                folders[:] = [f for f in folders if _is_the_project_s(Path(folder, f))]
                yield from (Path(folder, f) for f in sorted(files) if f.endswith(ENDINGS))


def _is_the_project_s(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in _NOT_THE_PROJECT_S:
        return False
    return not (folder / "pyvenv.cfg").exists()
