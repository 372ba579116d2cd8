"""The order of the files of tests: several processes share them and should end together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

File = list[pytest.Item]


def in_turns(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Let files that wait for a broker and files that compute take turns, the longest first.

    Then no core is idle while processes wait, and no long file is left for the end.
    """
    files: dict[str, File] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    groups: tuple[list[File], list[File]] = ([], [])
    for file in sorted(files.values(), key=_length, reverse=True):
        groups[_is_any(file, "broker")].append(file)
    turns = [(rank / len(group), file) for group in groups for rank, file in enumerate(group)]
    return [item for _, file in sorted(turns, key=lambda turn: turn[0]) for item in file]


def _length(file: File) -> tuple[bool, int]:
    """How long a file may take: what is marked as slow, and how many tests there are."""
    return _is_any(file, "slow"), len(file)


def _is_any(file: File, mark: str) -> bool:
    return any(item.get_closest_marker(mark) for item in file)
