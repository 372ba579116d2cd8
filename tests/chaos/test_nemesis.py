"""The parts of the chaos runs that can be wrong on their own, without a cluster of three nodes."""

from __future__ import annotations

import fcntl
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos import hosts, options
from tests.chaos.battlefield import Battlefield, Struck, Turns
from tests.chaos.cluster import coordinating_partition, java_hash
from tests.chaos.diary import Diary
from tests.chaos.load import Numbers, Orders
from tests.chaos.nemesis import Aim, Lane, Tally
from tests.chaos.report import Score, fault_table
from tests.chaos.status import Field, Status


@pytest.mark.parametrize(
    ("text", "value"),
    # From a Java shell; the third one overflows, the last one is the case without an absolute.
    [
        ("", 0),
        ("hello", 99162322),
        ("chaos-application", -1409634685),
        ("polygenelubricants", -(1 << 31)),
    ],
)
def test_groups_are_spread_by_javas_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_the_hash_without_an_absolute_value_goes_to_partition_0() -> None:
    assert coordinating_partition("polygenelubricants", 7) == 0


def test_a_status_survives_the_one_who_wrote_it(tmp_path: Path) -> None:
    with Status(tmp_path / "w") as writer:
        writer[Field.IN_TRANSACTION] = 1
        writer.add(Field.COMMITS, 3)
    with Status(tmp_path / "w") as reader:
        assert (reader[Field.IN_TRANSACTION], reader[Field.COMMITS]) == (1, 3)
        reader.clear()
        assert reader[Field.COMMITS] == 0


def test_state_that_a_worker_has_locked_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "0_0").mkdir()
    with (tmp_path / "0_0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with hosts.unowned_task(tmp_path, "0_0") as found:
            assert found is None
    with hosts.unowned_task(tmp_path, "0_0") as found:
        assert found == tmp_path / "0_0"


def test_state_is_lost_whole_and_leaves_no_trash(tmp_path: Path) -> None:
    tasks = hosts.task_directories(tmp_path / "state", "app")
    (tasks / "0_0" / "rocksdb").mkdir(parents=True)
    (tasks / "0_0" / "rocksdb" / "000012.sst").write_bytes(b"x")
    hosts.copy(tasks / "0_0", tmp_path / "copy")
    assert hosts.delete(tasks / "0_0") == "deleted"
    (tasks / "0_0").mkdir()
    hosts.put_back(tmp_path / "copy", tasks / "0_0")
    assert (tasks / "0_0" / "rocksdb" / "000012.sst").read_bytes() == b"x"
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"app"}


def test_corruption_changes_a_file(tmp_path: Path) -> None:
    for seed in range(20):
        path = tmp_path / f"{seed}" / "000012.sst"
        path.parent.mkdir()
        path.write_bytes(bytes(1_000))
        assert hosts.corrupt(path.parent, random.Random(seed)) is not None
        assert path.read_bytes() != bytes(1_000)


def test_orders_of_a_seed_are_the_same_and_numbered_once() -> None:
    def first(count: int) -> list[Any]:
        orders = Orders("seed", Numbers(), "x-", now_ms=lambda: 1_700_000_000_000)
        return [orders.next() for _ in range(count)]

    assert first(50) == first(50)
    assert len(set(first(500))) == 500
    topics = {record.topic for record in first(50)}
    assert topics == {"x-orders", "x-accounts", "x-payments"}
    assert len({record.timestamp for record in first(50)}) > 1, "nothing comes late"


def test_no_two_changes_of_accounts_have_the_same_timestamp() -> None:
    numbers = Numbers()
    writers = [
        Orders(seed, numbers, "x-", now_ms=lambda: 1_700_000_000_000)
        for seed in ("plain", "second")
    ]
    changes = [
        record.timestamp
        for _ in range(500)
        for record in (writer.next() for writer in writers)
        if record.topic == "x-accounts"
    ]
    assert len(changes) > 50
    assert len(set(changes)) == len(changes)


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Battlefield]:
    fleet = SimpleNamespace(slots=[])
    diary = Diary(tmp_path / "diary.jsonl")
    yield cast(
        Battlefield,
        SimpleNamespace(fleet=fleet, diary=diary, stop=threading.Event(), turns=Turns()),
    )
    diary.close()


def lane(at: Battlefield, tally: Tally, kinds: dict[str, Any], seed: int = 1) -> Lane:
    aim = Aim(each=3, seconds=60)
    return Lane("lane", kinds, at=at, tally=tally, aim=aim, seed=seed, pause_s=(0, 0))


def test_a_lane_goes_on_until_each_kind_has_hit_an_open_transaction_often_enough(
    field: Battlefield,
) -> None:
    def sometimes(_: object, choose: random.Random) -> Struck | None:
        draw = choose.random()
        return None if draw < 0.2 else Struck("w0", in_transaction=draw < 0.6)

    tally = Tally()
    lane(field, tally, {"always": lambda *_: Struck("w0", True), "sometimes": sometimes}).run()
    assert tally.mid_transaction == {"always": 3, "sometimes": 3}
    assert tally.total["always"] == 3
    assert tally.total["sometimes"] >= 3


def test_a_seed_strikes_the_same_faults_in_the_same_order(field: Battlefield) -> None:
    def struck(seed: int) -> list[tuple[str, float]]:
        found: list[tuple[str, float]] = []

        def kind(name: str) -> Any:
            def strike(_: object, choose: random.Random) -> Struck:
                found.append((name, choose.random()))
                return Struck("w0", True)

            return strike

        lane(field, Tally(), {name: kind(name) for name in "abcd"}, seed).run()
        return found

    assert struck(1) == struck(1)
    assert struck(1) != struck(2)


def test_a_fault_that_measures_is_alone() -> None:
    turns, stop, log = Turns(), threading.Event(), []

    def strike(name: str, seconds: float) -> None:
        with turns.together(stop):
            log.append(f"{name} begins")
            time.sleep(seconds)
            log.append(f"{name} ends")

    first = threading.Thread(target=strike, args=("first", 0.3))
    first.start()
    second = threading.Thread(target=strike, args=("second", 0.0))
    with turns.together(stop), turns.alone(seconds=60) as is_alone:
        assert is_alone
        assert log == ["first begins", "first ends"]
        second.start()
        time.sleep(0.2)
        assert len(log) == 2, "nothing begins meanwhile"
    second.join()
    first.join()
    assert log[2:] == ["second begins", "second ends"]


def test_who_waits_to_be_alone_is_not_waited_for_by_another() -> None:
    turns, stop = Turns(), threading.Event()
    inside, over = threading.Event(), threading.Event()

    def other() -> None:
        with turns.together(stop), turns.alone(seconds=60):
            inside.set()
            over.wait(60)

    with turns.together(stop):
        thread = threading.Thread(target=other)
        thread.start()
        while not turns._is_closed:
            time.sleep(0.01)
        with turns.alone(seconds=60) as is_alone:
            assert not is_alone
            assert not inside.is_set()
    assert inside.wait(60), "it is alone now"
    over.set()
    thread.join()


def test_a_fault_that_breaks_fails_the_run(field: Battlefield) -> None:
    def broken(_: object, __: random.Random) -> Struck:
        field.stop.set()
        raise RuntimeError("no such node")

    tally = Tally()
    lane(field, tally, {"broken": broken}).run()
    assert tally.errors == ["broken: RuntimeError: no such node"]


def test_the_last_line_counts_what_passed_and_what_failed() -> None:
    said: list[str] = []
    score = Score(said.append)
    score.judge(True, "all is there")
    score.judge(False, "nothing is twice", "3")
    assert score.last_line() == "1 passed, 1 failed"
    assert said == ["passed  all is there", "FAILED  nothing is twice: 3"]


def test_the_table_shows_each_kind_and_their_sum() -> None:
    tally = Tally()
    tally.add("leader killed", Struck("node 1", in_transaction=True))
    tally.add("leader killed", Struck("node 2", in_transaction=False))
    tally.recovered("leader killed", 2.5)
    table = fault_table(["leader killed", "worker killed"], tally)
    assert table[1].split() == ["leader", "killed", "2", "1", "2.50", "s", "2.50", "s"]
    assert table[2].split() == ["worker", "killed", "0", "0"]
    assert table[3].split() == ["all", "2", "1"]


def test_the_quick_run_differs_in_size_alone(tmp_path: Path) -> None:
    quick = options.parse(["--quick", "--seed", "5", "--directory", str(tmp_path)])
    long = options.parse(["--seed", "5", "--directory", str(tmp_path)])
    assert (quick.seed, quick.guarantee) == (long.seed, long.guarantee) == (5, "exactly_once_v2")
    assert (long.each, long.faults, long.records) == (8, 150, 1_000_000)
    assert (quick.complete, long.complete) == (False, True)
    assert quick.fault_s + quick.drain_s < 300
