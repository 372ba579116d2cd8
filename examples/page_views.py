"""Page views by region: how many pages did each region look at, minute by minute?

It shows a join of a stream with a table, and a count in windows.

    headrace topics create page-views users views-by-region
    headrace run examples.page_views:app

It reads two topics. Keys are text, values are JSON, and a null value deletes the user:

    page-views       user      {"page": "/tea"}
    users            user      {"region": "Asia"}

It writes one. Counts rise until the minute and its grace period of a minute are over:

    views-by-region  region    {"minute": "2024-05-01T12:00:00Z", "views": 3}
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from headrace import KafkaStreams, StreamsBuilder, TimeWindows, Topology, Windowed, serdes

MINUTES = TimeWindows(size=timedelta(minutes=1), grace=timedelta(minutes=1))
SETTINGS = {
    "application.id": "page-views",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}


@dataclass(frozen=True)
class View:
    page: str


@dataclass(frozen=True)
class User:
    region: str


@dataclass(frozen=True)
class Views:
    minute: datetime
    views: int


def region_of(_: View, user: User | None) -> str:
    return "unknown" if user is None else user.region


def views_in(region: Windowed[str], views: int) -> tuple[str, Views]:
    return region.key, Views(region.window.start, views)


def page_views(
    page_views: str = "page-views", users: str = "users", views_by_region: str = "views-by-region"
) -> Topology:
    """Build the topology; the arguments are topics."""
    builder = StreamsBuilder()
    people = builder.table(users, key=serdes.string, value=serdes.json_of(User), store="users")
    (
        builder.stream(page_views, key=serdes.string, value=serdes.json_of(View))
        .left_join(people, region_of, name="region-of")
        .group_by(lambda _, region: region, key=serdes.string, value=serdes.string, name="region")
        .windowed_by(MINUTES)
        .count(store="views")
        .to_stream()
        .map(views_in)
        .to(views_by_region, key=serdes.string, value=serdes.json_of(Views))
    )
    return builder.build()


def app() -> KafkaStreams:
    """Return the application for `headrace run`."""
    return KafkaStreams(page_views(), SETTINGS)
