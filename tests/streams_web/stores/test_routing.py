"""Stores over several hosts: a question goes to whoever has what it is about."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import Materialized, StreamsBuilder, TimeWindows, Topology, connect, serdes
from headrace.streams.errors import FatalClientError
from headrace.streams.queries import locator, queries, replicas, scan
from headrace.streams_web.stores import local, routing
from headrace.streams_web.stores.store_query import FORWARDED_BY, StoreQuery
from tests.support.hosts import Host, Hosts
from tests.support.processes import wait_until

KEYS = [f"k{n:02d}" for n in range(40)]


def topology() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    grouped = words.group_by_key()
    grouped.count(store="counts").to_stream().to("out")
    windows = grouped.windowed_by(TimeWindows(size=timedelta(seconds=10), grace=timedelta(days=1)))
    windows.count(store="windows").to_stream().to("windows-out")
    by_value = words.group_by(lambda _, value: value, key=serdes.string, name="by-value")
    by_value.count(store="placed").to_stream().to("placed-out")
    builder.global_table("names", key=serdes.string, value=serdes.string, store="names")
    held = Materialized("held", kind="memory")
    builder.table("held", key=serdes.string, value=serdes.string, store=held)
    return builder.build()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is read at once, and what the group says is asked for at once."""
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)
    monkeypatch.setattr(replicas, "UPDATE_EVERY_S", 0.0)
    monkeypatch.setattr(queries, "REPORTS_MAX_AGE_S", 0.0)
    monkeypatch.setattr(locator, "PAUSE_S", 0.0)
    monkeypatch.setattr(routing, "PAUSE_S", 0.0)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path, topology(), [{0, 3}, {1}, {2}])
    hosts.send("words", *((key, f"v{key}") for key in KEYS))
    yield hosts
    hosts.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """For tests that change nothing that others look at."""
    hosts = Hosts(tmp_path_factory.mktemp("shared"), topology(), [{0, 3}, {1}, {2}])
    hosts.send("words", *((key, f"v{key}") for key in KEYS))
    yield hosts
    hosts.close()


def rows_of(found: Any) -> list[str]:
    return [row["key"] for row in found["rows"]]


def test_a_key_is_answered_by_the_host_that_has_it_whoever_is_asked(shared: Hosts) -> None:
    owners = {p: host.endpoint for host in shared.hosts for p in host.tasks}
    seen = set()
    for key in KEYS[:12]:
        for host in shared.hosts:
            code, found = host.get(f"/counts/{key}")
            assert (code, found["key"], found["value"]) == (200, key, 1)
            (position,) = found["positions"]
            assert position["partition"] == found["partition"]
            assert position["host"] == owners[found["partition"]]
            seen.add(position["host"])
    assert len(seen) == 3


def test_a_key_that_others_put_elsewhere_is_found(three: Hosts) -> None:
    """Whoever writes to a source may have another partitioner."""
    three.driver.input("words").send("astray", "", partition=1)
    three.driver.commit()
    for host in three.hosts:
        assert host.get("/counts/astray")[1]["partition"] == 1
        found = host.get("/counts/get", {"keys": ["astray", "k01", "none"]})[1]["rows"]
        assert [row and row["value"] for row in found] == [1, 1, None]
        code, found = host.get("/counts/none")
        assert code == 404
        assert {position["partition"] for position in found["positions"]} == {0, 1, 2, 3}


def test_a_key_that_only_the_application_places_is_looked_for_in_one_partition(
    shared: Hosts,
) -> None:
    code, found = shared.hosts[0].get("/placed/none")
    assert code == 404
    assert len(found["positions"]) == 1
    assert shared.hosts[0].get("/placed/vk01")[1]["value"] == 1
    stores = shared.hosts[0].queries.stores
    assert {name: stores[name].is_placed for name in ("counts", "placed", "windows")} == {
        "counts": False, "placed": True, "windows": False
    }  # fmt: skip


def test_many_keys_are_joined_in_their_order(shared: Hosts) -> None:
    query = [*reversed(KEYS), "none", KEYS[0]]
    for host in shared.hosts:
        code, found = host.get("/counts/get", {"keys": query})
        assert code == 200
        assert [row and row["key"] for row in found["rows"]] == [*reversed(KEYS), None, KEYS[0]]
        assert [position["partition"] for position in found["positions"]] == [0, 1, 2, 3]
    assert shared.hosts[0].get("/windows/get", {"keys": ["k"]})[0] == 400


@pytest.mark.parametrize("reverse", [False, True])
def test_ranges_are_in_the_order_of_keys_over_hosts_and_pages(shared: Hosts, reverse: bool) -> None:
    for limit in (7, 34, 35, 36):
        pages, after = [], ""
        for turn in range(100):  # each page from another host
            host = shared.hosts[turn % 3]
            query = f"from=k03&to=k37&limit={limit}&reverse={str(reverse).lower()}{after}"
            code, found = host.get(f"/counts/range?{query}")
            assert code == 200
            pages.append(rows_of(found))
            assert {len(row) for row in found["rows"]} == {4}  # no more than in a row of one host
            if found["after"] is None:
                break
            after = f"&after={found['after']}"
        keys = [key for page in pages for key in page]
        assert keys == sorted(KEYS[3:38], reverse=reverse)
        assert all(len(page) == limit for page in pages[:-1])


def test_a_range_longer_than_a_piece_is_whole(
    shared: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.streams_web.stores.routing.PIECE_MIN", 1)
    found = shared.hosts[1].get("/counts/range?limit=40")[1]
    assert (rows_of(found), found["after"]) == (KEYS, None)
    found = shared.hosts[1].get("/counts/prefix?prefix=k1&limit=5")[1]
    assert (rows_of(found), found["after"] is None) == (KEYS[10:15], False)


def test_windows_and_counts_are_of_all_hosts(three: Hosts) -> None:
    three.send("words", *((key, "") for key in KEYS), timestamp=15_000)
    for host in three.hosts:
        found = host.get("/windows/k05")[1]
        assert [row["key"]["window"]["start_ms"] for row in found["rows"]] == [0, 10_000]
        found = host.get("/windows/k05?limit=1")[1]
        more = host.get(f"/windows/k05?limit=1&after={found['after']}")[1]
        assert [row["key"]["window"]["start_ms"] for row in more["rows"]] == [10_000]
        assert host.get("/windows/none")[1]["rows"] == []
        found = host.get("/windows/range?from=10000&limit=100")[1]
        assert {row["key"]["key"] for row in found["rows"]} == set(KEYS)
        found = host.get("/counts/count?exact=true")[1]
        assert (found["count"], found["exact"]) == (40, True)
        assert [position["partition"] for position in found["positions"]] == [0, 1, 2, 3]
        assert host.get("/counts/count")[1]["exact"] is False
        positions = host.get("/counts")[1]["positions"]
        assert [position["partition"] for position in positions] == [0, 1, 2, 3]
        assert len({position["host"] for position in positions}) == 3


def test_a_client_is_sent_to_the_host_that_has_the_key(shared: Hosts) -> None:
    first, *_ = shared.hosts
    there = {}
    for key in KEYS:
        query = http.client.HTTPConnection(first.endpoint, timeout=60)
        query.request("GET", f"/api/stores/counts/{key}?route=redirect")
        answer = query.getresponse()
        there[key] = (answer.status, answer.headers.get("location"))
        query.close()
    sent = {key: url for key, (code, url) in there.items() if code == 307}
    assert 0 < len(sent) < len(KEYS)
    assert {code for code, _ in there.values()} == {200, 307}
    for key, url in sent.items():
        assert not url.startswith(first.server.url)
        code, found = first.get(f"/counts/{key}?route=redirect")  # which follows
        assert (code, found["value"]) == (200, 1)
        assert url.startswith(f"http://{found['positions'][0]['host']}/")


def test_one_host_answers_alone_where_that_is_asked_for(shared: Hosts) -> None:
    codes = {}
    for key in KEYS:
        code, found = shared.hosts[1].get(f"/placed/v{key}?route=none")
        codes[code] = found
    assert codes.keys() == {200, 421}
    assert codes[421]["host"] in {shared.hosts[0].endpoint, shared.hosts[2].endpoint}
    assert f"is on host {codes[421]['host']}" in codes[421]["error"]
    assert shared.hosts[1].get("/counts/k01?route=anywhere")[0] == 400
    assert shared.hosts[1].get("/counts/k01?partitions=1")[0] == 400


def test_a_global_table_is_answered_anywhere(shared: Hosts) -> None:
    shared.send("names", ("a", "Ada"))
    for host in shared.hosts:
        assert host.get("/names/a")[1]["value"] == "Ada"
        assert host.get("/names/get", {"keys": ["a", "b"]})[1]["rows"][0]["value"] == "Ada"


def test_rows_in_the_memory_of_workers_are_found_at_their_hosts(shared: Hosts) -> None:
    shared.send("held", *((key, f"of {key}") for key in KEYS))
    for host in shared.hosts:
        code, found = host.get("/held/get", {"keys": [*KEYS, "none"]})
        assert code == 200
        assert [row and row["value"] for row in found["rows"]] == [*map("of {}".format, KEYS), None]
        assert len({position["host"] for position in found["positions"]}) == 3
        assert host.get("/held/k07")[1]["value"] == "of k07"
        found = host.get("/held/range?from=k03&limit=9")[1]
        assert [row["key"] for row in found["rows"]] == KEYS[3:12]
        more = host.get(f"/held/range?from=k03&limit=9&after={found['after']}")[1]
        assert [row["key"] for row in more["rows"]] == KEYS[12:21]
        assert host.get("/held/count?exact=true")[1]["count"] == 40
        assert [position["partition"] for position in host.get("/held")[1]["positions"]] == [
            0,
            1,
            2,
            3,
        ]
    assert {host.get("/held/k07?route=none")[0] for host in shared.hosts} == {200, 404}


def test_rows_in_memory_have_gone_with_their_task(three: Hosts) -> None:
    first, second, third = three.hosts
    three.send("held", *((key, "v") for key in KEYS))
    three.give(second, set())
    code, found = first.get("/held/get", {"keys": KEYS})
    assert code == 503
    assert "no host that serves stores has partition 1 now" in found["error"]
    assert first.get("/held/get?max_age=24h", {"keys": KEYS})[0] == 503
    three.give(third, {1, 2})
    wait_until(lambda: first.get("/held/get", {"keys": KEYS})[0] == 200, what="its new worker")
    found = first.get("/held/get", {"keys": KEYS})[1]
    assert {row["value"] for row in found["rows"]} == {"v"}


def test_a_task_that_has_moved_is_found_at_its_new_host(three: Hosts) -> None:
    first, second, third = three.hosts
    assert first.get("/counts/get", {"keys": KEYS})[0] == 200
    three.give(second, set())
    three.give(third, {1, 2})
    for host in three.hosts:  # they have heard otherwise not long ago
        code, found = host.get("/counts/get", {"keys": KEYS})
        assert code == 200
        assert all(row["value"] == 1 for row in found["rows"])
        assert {p["host"] for p in found["positions"] if p["partition"] == 1} == {third.endpoint}
        assert len(host.get("/counts/range")[1]["rows"]) == 40


def test_what_was_known_holds_while_the_group_is_rebalanced(three: Hosts) -> None:
    first = three.hosts[0]
    assert first.get("/counts/k01")[0] == 200
    three.group.state = "preparing rebalancing"
    first.queries.locator.description(at_most_s=0.0)
    assert [first.get(f"/counts/{key}")[0] for key in KEYS] == [200] * 40


def test_a_silent_host_is_named_with_what_it_has(three: Hosts) -> None:
    first, second, _ = three.hosts
    second.server.close()
    code, found = first.get("/counts/range")
    assert code == 503
    assert found["host"] == second.endpoint
    assert f"{second.endpoint} does not answer" in found["error"]
    assert "partition 1 of store 'counts' cannot be read" in found["error"]
    codes = {first.get(f"/placed/v{key}")[0] for key in KEYS}
    assert codes == {200, 503}  # what others have is answered
    code, found = first.get("/counts/range?partial=true")
    assert code == 200
    assert 0 < len(found["rows"]) < 40
    (missing,) = found["missing"]
    assert (missing["partitions"], missing["host"]) == ([1], second.endpoint)
    code, found = first.get("/placed/get?partial=true", {"keys": [f"v{key}" for key in KEYS]})
    nulls = [index for index, row in enumerate(found["rows"]) if row is None]
    assert (code, found["unanswered"]) == (200, nulls)
    found = first.get("/counts/count?exact=true&partial=true")[1]
    assert found["count"] < 40
    assert found["missing"]


def test_what_a_task_has_left_is_given_to_whoever_says_how_old_it_may_be(three: Hosts) -> None:
    """The files of all are here, so what is left of partition 1 is at the other hosts."""
    first, second, _ = three.hosts
    second.server.close()
    assert first.get("/counts/range")[0] == 503
    code, found = first.get("/counts/range?max_age=1h")
    assert (code, len(found["rows"])) == (200, 40)
    (left,) = (position for position in found["positions"] if position["partition"] == 1)
    assert left["host"] != second.endpoint
    assert left["state"] is None
    assert first.get("/counts/range?max_age=0ms")[0] == 503
    code, found = first.get("/counts/get?max_age=1h", {"keys": KEYS})
    assert [row["key"] for row in found["rows"]] == KEYS


def test_ones_own_write_is_waited_for_at_the_host_that_has_it(three: Hosts) -> None:
    first = three.hosts[0]
    positions = first.get("/counts")[1]["positions"]
    reached = ",".join(f"{position['partition']}:{position['offset']}" for position in positions)
    for path in ("/counts/k01", "/counts/range", "/counts/count"):
        assert first.get(f"{path}?min_position={reached}&max_age=1h")[0] == 200
    behind = ",".join(f"{position['partition']}:{position['offset'] + 1}" for position in positions)
    answers: list[int] = []
    late = f"/counts/range?min_position={behind}&wait=30s"
    request = threading.Thread(target=lambda: answers.append(first.get(late)[0]))
    request.start()
    assert first.get(f"/counts/range?min_position={behind}&wait=10ms")[0] == 503
    three.send("words", *((key, "") for key in KEYS))
    request.join(60)
    assert answers == [200]


@pytest.mark.parametrize("more", ["", "&max_age=1h"])
def test_a_host_that_stops_says_so_where_another_one_is_waited_for(
    three: Hosts, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = three.hosts[:2]
    position = next(one for one in first.get("/counts")[1]["positions"] if one["partition"] == 1)
    key = next(k for k in KEYS if first.get(f"/counts/{k}")[1]["partition"] == 1)
    waits, wait = threading.Event(), second.queries.wait

    def waited(*arguments: Any, **options: Any) -> None:
        waits.set()
        wait(*arguments, **options)

    monkeypatch.setattr(second.queries, "wait", waited)
    answers: list[Any] = []
    late = f"/counts/{key}?min_position=1:{position['offset'] + 1}&wait=30s{more}"
    request = threading.Thread(target=lambda: answers.append(first.get(late)))
    request.start()
    assert waits.wait(60)
    begun_s = time.monotonic()
    first.server.close()
    request.join(60)
    assert time.monotonic() - begun_s < 15
    assert answers == [
        (503, {"error": "this host stops. Retry in a moment, or query another host"})
    ]


def test_a_question_is_sent_on_once(shared: Hosts) -> None:
    """Two hosts that each take the other for the owner do not ask each other for ever."""
    first, second, _ = shared.hosts
    code, found = first.get("/counts/range?partitions=1&of=4", **{FORWARDED_BY: second.endpoint})
    assert code == 421
    assert (found["partition"], found["host"]) == (1, second.endpoint)
    assert first.get("/counts/range", **{FORWARDED_BY: second.endpoint})[0] == 200


def test_hosts_are_asked_with_the_token_that_was_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    hosts = Hosts(tmp_path / "state", topology(), [{0}, {1}], token_file=token)
    try:
        hosts.send("words", *((key, "") for key in KEYS))
        authorized = {"Authorization": "Bearer 0123456789abcdef"}
        code, found = hosts.hosts[0].get("/counts/range", **authorized)
        assert (code, len(found["rows"])) == (200, 40)
        assert hosts.hosts[0].get("/counts/range")[0] == 401
    finally:
        hosts.close()


def test_one_host_alone_asks_itself_as_ever(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, topology(), [{0, 1}])
    try:
        hosts.send("words", *((key, "") for key in KEYS))
        (host,) = hosts.hosts
        assert host.get("/counts/k01")[1]["positions"][0]["host"] == host.endpoint
        assert len(host.get("/counts/range")[1]["rows"]) == 40
        assert host.get("/counts/k01?route=redirect")[0] == 200
        assert host.get("/counts/k01?route=none")[0] == 200
    finally:
        hosts.close()


def test_brokers_that_do_not_answer_are_said(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, topology(), [{0}, {1}])
    try:
        hosts.send("words", *((key, "") for key in KEYS))
        hosts.group.failure = FatalClientError("no broker")
        host = hosts.hosts[0]
        code, found = host.get("/counts/k01")
        assert code == 503
        assert (
            "the group asked cannot be described: no broker. Use route=none to query this host only"
            in (found["error"])
        )
        assert host.get("/counts/range?route=none")[0] == 200
        hosts.group.failure = None
        assert host.get("/counts/k01")[0] == 200
        hosts.group.failure = FatalClientError("no broker")
        host.queries.locator.description(at_most_s=0.0)
        assert host.get("/counts/k01")[0] == 200  # by what was heard before
    finally:
        hosts.close()


def test_two_hosts_that_ask_each_other_at_once_leave_threads_to_answer(shared: Hosts) -> None:
    codes: list[int] = []

    def ask(host: Host) -> None:
        codes.append(host.get("/counts/range?limit=5")[0])

    threads = [threading.Thread(target=ask, args=(shared.hosts[n % 3],)) for n in range(45)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    wait_until(lambda: len(codes) == 45, what="all answers")
    assert codes == [200] * 45
    assert time.monotonic() - began_s < routing.ANSWER_S * 4


def test_a_position_that_the_store_never_comes_to_is_refused(shared: Hosts) -> None:
    for path in ("/counts/k01", "/counts/range", "/counts/count", "/counts"):
        for position, said in (
            ("99:1", "partition 99 of store 'counts' does not exist. Use 0 to 3"),
            ("words-99:1", "partition 99 of store 'counts' does not exist. Use 0 to 3"),
            ("wrds-0:1", "do not read topic 'wrds' themselves. Use a topic that they read: words"),
        ):
            code, found = shared.hosts[0].get(f"{path}?min_position={position}")
            assert code == 400, (path, position)
            assert said in found["error"]


def test_places_say_no_more_than_all_rows_follow(
    three: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever follows changes from an answer on is told what some of its rows lack."""
    host = three.hosts[0]

    def offsets(found: Any) -> dict[int, int]:
        return {position["partition"]: position["offset"] for position in found["positions"]}

    def and_more(name: str, of: type) -> None:
        before = getattr(of, name)

        def then(*arguments: Any, **more: Any) -> Any:
            if name == "piece":
                found = before(*arguments, **more)
                three.send("words", *((key, "") for key in KEYS))
                return found
            three.send("words", *((key, "") for key in KEYS))
            return before(*arguments, **more)

        monkeypatch.setattr(of, name, then)

    at_first = offsets(host.get("/counts")[1])
    with monkeypatch.context():
        and_more("not_before", StoreQuery)
        code, found = host.get("/counts/get", {"keys": [*KEYS, "none"]})
        assert {row["value"] for row in found["rows"] if row} == {1}
        assert offsets(found) == at_first
    monkeypatch.undo()
    monkeypatch.setattr(scan, "PIECE_ROWS", 3)
    then = offsets(host.get("/counts")[1])
    and_more("piece", scan.Scan)
    code, found = host.get("/counts/range?route=none")
    assert len({row["value"] for row in found["rows"]}) > 2
    assert (code, offsets(found)[0]) == (200, then[0])
    assert found["positions"][0]["max_offset"] > then[0]


def test_an_answer_names_each_partition_once_also_if_its_task_moves_meanwhile(
    three: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = three.hosts
    before = StoreQuery.not_before
    at_first = first.get("/counts")[1]["positions"]

    def then(*arguments: Any) -> Any:
        three.send("words", *((key, "") for key in KEYS))
        three.give(second, set())
        three.give(third, {1, 2})
        return before(*arguments)

    monkeypatch.setattr(StoreQuery, "not_before", then)
    code, found = first.get("/counts/get", {"keys": [*KEYS, "none"]})
    assert code == 200
    at_last = first.get("/counts")[1]["positions"]
    assert [(p["partition"], p["offset"], p["max_offset"]) for p in found["positions"]] == [
        (a["partition"], a["offset"], b["offset"]) for a, b in zip(at_first, at_last, strict=True)
    ]
    assert all(p["offset"] == p["max_offset"] for p in at_last)


def test_no_answer_is_earlier_than_the_newest_row_of_one_before(
    three: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was found at the second search stays, also at a host that is not as far yet."""
    first, second, third = three.hosts
    before = StoreQuery.not_before

    def then(*arguments: Any) -> Any:
        three.send("words", ("late", ""))
        return before(*arguments)

    monkeypatch.setattr(replicas, "UPDATE_EVERY_S", 600.0)
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 600.0)
    monkeypatch.setattr(local, "SURE_S", 0.0)
    assert third.get("/counts/late?route=none")[0] == 404
    monkeypatch.setattr(replicas, "UPDATE_EVERY_S", 0.0)
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)
    with connect(first.server.url) as application:
        counts = application.store("counts", key_type=str, value_type=int)
        with monkeypatch.context() as patch:
            patch.setattr(StoreQuery, "not_before", then)
            assert counts.get_many(["k01", "late"]) == [1, 1]
        three.give(first, set())
        three.give(second, set())
        three.give(third, {0, 1, 2, 3})
        assert counts.get("late") == 1


def test_pieces_of_a_range_count_for_how_new_its_rows_may_be(
    three: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, before = threading.Lock(), routing.FanOut.at
    first = three.hosts[0]

    def positions() -> dict[int, int]:
        found = first.get("/counts")[1]["positions"]
        return {position["partition"]: position["offset"] for position in found}

    at_first = positions()
    ends = {1: at_first}

    def at(*arguments: Any, **more: Any) -> Any:
        with lock:
            three.send("words", *((key, "") for key in KEYS))
            found = {p.partition: p.offset for p in first.queries.reader("counts").positions()}
            ends[len(ends) + 1] = {p: at for p, at in found.items() if p is not None}
            return before(*arguments, **more)

    monkeypatch.setattr("headrace.streams_web.stores.routing.PIECE_MIN", 1)
    monkeypatch.setattr(routing.FanOut, "at", at)
    code, found = first.get("/counts/range?limit=7")
    assert (code, len(found["rows"]), len(ends) > 4) == (200, 7, True)
    shown = {position["partition"]: position for position in found["positions"]}
    assert [*shown] == [0, 1, 2, 3]
    for row in found["rows"]:
        position = shown[row["partition"]]
        assert position["offset"] <= ends[row["value"]][row["partition"]] <= position["max_offset"]


def test_keys_that_are_looked_for_again_are_so_at_no_earlier_place(
    three: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task may have moved meanwhile to a host that has it from before."""
    repeated: list[StoreQuery] = []
    before = StoreQuery.not_before

    def then(query: StoreQuery, positions: Any) -> StoreQuery:
        repeated.append(before(query, positions))
        return repeated[-1]

    monkeypatch.setattr(StoreQuery, "not_before", then)
    host = three.hosts[0]
    positions = {p["partition"]: p["offset"] for p in host.get("/counts")[1]["positions"]}
    code, found = host.get("/counts/get", {"keys": [*KEYS, "none"]})
    assert (code, found["rows"][-1]) == (200, None)
    (again,) = repeated
    assert {one.partition: one.offset for one in again.min_positions()} == positions
    assert [str(one) for one in again.forwarded([3], 4).min_positions()] == [f"3:{positions[3]}"]
