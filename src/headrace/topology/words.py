"""Arguments that take one word of a fixed set: another one is refused when it is given."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from headrace.topology.errors import TopologyError


def require_word(argument: str, given: object, words: Sequence[str]) -> None:
    """Refuse what is none of the words, with the one that was perhaps meant.

    Raises:
        TopologyError: it is another.

    >>> require_word("emit", "on_close", ["on_window_update", "on_window_close"])
    Traceback (most recent call last):
    headrace.topology.errors.TopologyError: emit must be 'on_window_update' or 'on_window_close', \
not 'on_close' (did you mean 'on_window_close'?)
    """
    if isinstance(given, str) and given in words:
        return
    head, last = words[:-1], words[-1]
    listed = f"{', '.join(map(repr, head))} or {last!r}"
    meant = ""
    if isinstance(given, str):
        nearest = _JAVAS.get(given.lower()) or given.lower().replace("-", "_")
        known = {word.lower(): word for word in words}
        found = difflib.get_close_matches(nearest, known, n=1)
        meant = f" (did you mean {known[found[0]]!r}?)" if found else ""
    raise TopologyError(f"{argument} must be {listed}, not {given!r}{meant}")


_JAVAS = {"newest": "latest", "end": "latest", "oldest": "earliest", "beginning": "earliest"}
"""What other clients call the same."""
