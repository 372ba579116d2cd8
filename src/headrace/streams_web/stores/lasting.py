"""How an answer says that it goes on for as long as the client listens."""

from __future__ import annotations

LASTS = "headrace.lasts"
"""Set in the scope of a request that has such an answer: its connection is left open."""
