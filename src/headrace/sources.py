"""Sources: rows of files and databases written to topics exactly once (docs/sources.md)."""

from __future__ import annotations

from headrace.streams.connectors.feed import Feed
from headrace.streams.connectors.files import Files
from headrace.streams.connectors.query import Query
from headrace.streams.connectors.source import Batch, Row, Source, SourceError, replayable

__all__ = ["Batch", "Feed", "Files", "Query", "Row", "Source", "SourceError", "replayable"]
