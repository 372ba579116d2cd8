"""How many examples a test of a property tries."""

from __future__ import annotations

from hypothesis import settings

QUICK = "quick"
"""The profile of `make test-quick`: a fifth of the examples, where all of them take seconds."""

_EVERY = 5


def examples(all_of_them: int) -> int:
    """So many, or as many as one waits for between two edits."""
    is_quick = settings.get_current_profile_name() == QUICK
    return all_of_them // _EVERY if is_quick else all_of_them
