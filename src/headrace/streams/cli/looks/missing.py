"""What is said of topics that an application reads and that are not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.streams.errors import MissingTopicError
from headrace.streams.views.overview import Overview


def said_missing(found: Overview) -> Iterator[str]:
    """A line for each."""
    for name in found.missing:
        yet = " yet; the next start makes it" if name in found.unmade else ""
        yield f"There is no topic {name}{yet}."


def require_topics(lost: Iterable[str]) -> None:
    """Refuse to call well what could not be looked at, once the rest is shown.

    Raises:
        MissingTopicError: there is a topic that was not there.
    """
    names = tuple(lost)
    if names:
        raise MissingTopicError(
            f"topics that do not exist: {', '.join(names)}; their lag is unknown. Look whether "
            "bootstrap.servers names the right cluster, and whether the names are right",
            topics=names,
        )
