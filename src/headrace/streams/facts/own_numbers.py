"""Numbers that processors count themselves, of one worker."""

from __future__ import annotations

from headrace.streams.seams.clients import Log

NUMBERS_MAX = 1_000
"""So many are kept: a name that was made of a key would make one for each key."""


class OwnNumbers:
    """See the module; the worker's thread alone adds to them."""

    def __init__(self, log: Log) -> None:
        self.values: dict[tuple[str, str], float] = {}
        """By node and name."""
        self._log = log
        self._is_full = False

    def add(self, node: str, name: str, n: float) -> None:
        """Add to a number of a node."""
        key = (node, name)
        before = self.values.get(key)
        if before is not None:
            self.values[key] = before + n
        elif len(self.values) < NUMBERS_MAX:
            self.values[key] = n
        elif not self._is_full:
            self._is_full = True
            self._log.warning(
                "numbers_left_out",
                node=node,
                most=NUMBERS_MAX,
                advice="further names are not counted: name few things, and no keys or values",
            )
