"""What a kind of store does not have is refused, with what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from headrace import (
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    Windowed,
    connect,
    connect_async,
    serdes,
)
from headrace.streams.client.stores import Connection
from headrace.streams.queries.errors import WrongQueryError
from tests.support.hosts import Hosts

DAY = timedelta(days=1)


@dataclass(frozen=True)
class User:
    id: int


def topology() -> Topology:
    builder = StreamsBuilder()
    users = serdes.json_of(User)
    grouped = builder.stream("visits", key=users, value=serdes.string).group_by_key()
    grouped.count(store="counts").to_stream().to("counts-out")
    windows = grouped.windowed_by(TimeWindows(size=timedelta(seconds=10), grace=DAY))
    windows.count(store="windows").to_stream().to("windows-out")
    sessions = grouped.windowed_by(SessionWindows(inactivity_gap=timedelta(seconds=10), grace=DAY))
    sessions.count(store="sessions").to_stream().to("sessions-out")
    return builder.build()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(tmp_path_factory.mktemp("hosts"), topology(), [{0}])
    made.send("visits", (User(1), "a"), (User(2), "b"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def application(hosts: Hosts) -> Iterator[Connection]:
    with connect(hosts.hosts[0].server.url) as made:
        yield made


@pytest.mark.parametrize("name", ["windows", "sessions"])
@pytest.mark.parametrize("key_type", [Any, User])
@pytest.mark.parametrize(
    "ask",
    [
        lambda store: [*store.range(None, None)],
        lambda store: [*store.range(User(1), None)],
        lambda store: [*store.range(None, User(1), reverse=True).pages],
        lambda store: [*store.prefix_scan(User(1))],
        lambda store: store.get(User(1)),
        lambda store: store.find(User(3)),
        lambda store: store[User(1)],
        lambda store: User(1) in store,
        lambda store: store.get_many([User(1)]),
    ],
)
def test_stores_with_windows_have_no_rows_of_plain_keys(
    application: Connection, name: str, key_type: Any, ask: Any
) -> None:
    said = f"store '{name}' has {name}. Use fetch"
    with pytest.raises(WrongQueryError, match=said) as refused:
        ask(application.store(name, key_type=key_type))
    assert ("find_sessions" in str(refused.value)) == (name == "sessions")


def test_what_they_have_is_answered(application: Connection) -> None:
    for name in ("windows", "sessions"):
        store = application.store(name, key_type=User, value_type=int)
        rows = [*store.all()]
        assert [row.key for row in rows] == [row.key for row in store.fetch_all()]
        assert all(isinstance(row.key, Windowed) for row in rows)
        assert [row.value for row in store.fetch(User(1))] == [1]
    sessions = application.store("sessions", key_type=User, value_type=int)
    assert [row.value for row in sessions.find_sessions(User(1), 0, 99)] == [1]
    ended = [*sessions.find_sessions_by_end(None, None)]
    assert [row.key for row in ended] == [row.key for row in sessions.all()]
    assert [row.key for row in sessions.find_sessions_by_end(0, None, limit=1)] == [ended[0].key]
    assert [*sessions.find_sessions_by_end(10_000, None)] == []
    counts = application.store("counts", key_type=User, value_type=int)
    assert [row.key for row in counts.range(None, None)] == [User(1), User(2)]


@pytest.mark.parametrize(
    ("name", "ask", "said"),
    [
        ("windows", lambda store: [*store.find_sessions(User(1), 0, 9)], "not sessions. Use f"),
        ("counts", lambda store: [*store.find_sessions(User(1), 0, 9)], "no windows. Use get"),
        ("counts", lambda store: [*store.fetch(User(1))], "no windows. Use get"),
        ("windows", lambda store: [*store.find_sessions_by_end(0, 9)], "not sessions. Use f"),
        ("counts", lambda store: [*store.find_sessions_by_end(0, 9)], "no windows. Use r"),
        ("counts", lambda store: [*store.fetch_all()], "no windows. Use range"),
        ("counts", lambda store: [*store.fetch_all(0, 9)], "no windows. Use range"),
    ],
)
def test_methods_of_windows_are_refused_by_others(
    application: Connection, name: str, ask: Any, said: str
) -> None:
    with pytest.raises(WrongQueryError, match=said):
        ask(application.store(name, key_type=User))


def test_those_who_await_are_refused_too(hosts: Hosts) -> None:
    async def ask() -> None:
        async with connect_async(hosts.hosts[0].server.url) as application:
            windows = application.store("windows", key_type=User)
            with pytest.raises(WrongQueryError, match="Use fetch_all"):
                [row async for row in windows.range(None, None)]
            assert len([row async for row in windows.all()]) == 2
            sessions = application.store("sessions", key_type=User)
            assert len([row async for row in sessions.find_sessions(User(1), 0, 99)]) == 1
            assert len([row async for row in sessions.find_sessions_by_end(0, 99)]) == 2

    asyncio.run(ask())


@pytest.mark.parametrize(
    "ask",
    [
        lambda counts: counts.range(None, None, limit=-1),
        lambda counts: counts.prefix_scan(User(1), limit=-1),
        lambda counts: counts.all(limit=-1),
    ],
)
def test_less_than_no_rows_are_refused(application: Connection, ask: Any) -> None:
    counts = application.store("counts", key_type=User)
    with pytest.raises(WrongQueryError, match=r"limit must be a maximum number of rows.*not -1"):
        next(ask(counts))
    assert [*counts.all(limit=0)] == []
