"""What brings rows from elsewhere into topics, each of them once (see docs/sources.md)."""

from __future__ import annotations

from headrace.streams.sources.feed import Feed
from headrace.streams.sources.files import Files
from headrace.streams.sources.query import Query
from headrace.streams.sources.source import Batch, Row, Source, SourceError, replayable

__all__ = ["Batch", "Feed", "Files", "Query", "Row", "Source", "SourceError", "replayable"]
