"""Topics that functions name: each is looked for before the first record goes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.topology.context.environment import Send
from headrace.topology.errors import NoTopicError, type_of
from headrace.topology.naming import is_legal_topic


def known_topics_alone(send: Send, find: Callable[[str], object]) -> Send:
    """Send to a topic only after it was found.

    A client would keep records for a topic that does not exist, and say so of none of them.

    Args:
        find: raises what is to be raised for a topic that does not exist.

    Raises:
        NoTopicError: a function returned something else than a name.
    """
    known: set[str] = set()

    def checked(topic: str, *record: Any) -> None:
        if topic not in known:
            if not isinstance(topic, str):
                raise NoTopicError(type_of(topic))
            if not is_legal_topic(topic):
                raise NoTopicError("a str that is not the name of a topic")
            find(topic)
            known.add(topic)
        send(topic, *record)

    return checked
