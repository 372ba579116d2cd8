"""User sessions: what did each user look at, from the first click until half an hour without one?

It shows sessions that are emitted once, when they are over, and clicks that are late for them.

    headrace topics create clicks sessions late-clicks
    headrace run examples.user_sessions:app

It reads one topic and uses the records' own timestamps. Keys are text, values are JSON:

    clicks       user  {"page": "/tea"}

It writes two. A session is emitted at the first click, of any user, that is 35 minutes later:

    sessions     user  {"began": "2024-05-01T12:00:00Z", "seconds": 61, "pages": ["/tea", "/cup"]}
    late-clicks  user  {"page": "/tea"}
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from headrace import KafkaStreams, SessionWindows, StreamsBuilder, Topology, Windowed, serdes

HALF_AN_HOUR = SessionWindows(inactivity_gap=timedelta(minutes=30), grace=timedelta(minutes=5))
SETTINGS = {
    "application.id": "user-sessions",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}

Pages = tuple[str, ...]


@dataclass(frozen=True)
class Click:
    page: str


@dataclass(frozen=True)
class Session:
    began: datetime
    seconds: int
    pages: Pages


def session_of(user: Windowed[str], pages: Pages) -> tuple[str, Session]:
    began, ended = user.window.start, user.window.end
    return user.key, Session(began, (ended - began) // timedelta(seconds=1), pages)


def user_sessions(
    clicks: str = "clicks", sessions: str = "sessions", late_clicks: str = "late-clicks"
) -> Topology:
    """Build the topology; the arguments are topics."""
    builder = StreamsBuilder()
    (
        builder.stream(clicks, key=serdes.string, value=serdes.json_of(Click))
        .group_by_key()
        .windowed_by(HALF_AN_HOUR, emit="on_window_close", late=lambda late: late.to(late_clicks))
        .aggregate(
            lambda: Pages(),
            lambda _, click, pages: (*pages, click.page),
            lambda _, earlier, later: earlier + later,
            store="pages",
            value=serdes.json_of(Pages),
        )
        .to_stream()
        .map(session_of)
        .to(sessions, key=serdes.string, value=serdes.json_of(Session))
    )
    return builder.build()


def app() -> KafkaStreams:
    """Return the application for `headrace run`."""
    return KafkaStreams(user_sessions(), SETTINGS)
