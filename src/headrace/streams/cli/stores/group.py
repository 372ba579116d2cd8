"""The commands `headrace store`, all of them."""

from __future__ import annotations

from headrace.streams.cli.stores.commands import store
from headrace.streams.cli.stores.watch import watch

store.add_command(watch)

__all__ = ["store"]
