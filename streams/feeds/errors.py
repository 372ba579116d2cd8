"""What whoever wants to follow changes may be refused with, beside the errors of queries."""

from __future__ import annotations

from headrace.streams.queries.errors import NotReadableError, QueryError


class NoChangelogError(QueryError):
    """The store keeps no changelog, so nobody can be told of its changes; have it keep one."""


class TooManyFollowersError(NotReadableError):
    """So many follow changes here already; ask again later."""
