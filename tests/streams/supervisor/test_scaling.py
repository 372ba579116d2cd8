"""The supervisor gets more workers, and fewer, while it runs."""

from __future__ import annotations

import pytest

from headrace.streams.supervisor.exit_codes import ExitCode
from headrace.streams.supervisor.supervisor import WORKERS_MAX, CommandRefusedError
from tests.streams.supervisor.test_supervisor import INT, KILL, TERM, Scene


def scene(workers: int) -> Scene:
    made = Scene(workers=workers)
    made.all_running()
    return made


def asked(scene: Scene, workers: int) -> str:
    answer = scene.supervisor.submit(lambda supervisor: supervisor.scale(workers))
    assert not answer.done()
    scene.turn()
    return answer.result(0)


def test_more_workers_start_beside_those_that_run() -> None:
    one = scene(1)
    said = asked(one, 3)
    assert said == "2 workers start; there are 3 workers from now on, 1 before"
    assert one.indices == [0, 1, 2]
    assert one.process(0).stops == one.process(0).leaves == 0


def test_the_last_ones_leave_the_group_and_are_forgotten_when_they_have() -> None:
    three = scene(3)
    three.process(2).obeys = False
    said = asked(three, 1)
    assert (
        said == "2 workers close and give their tasks away; there is 1 worker from now on, 3 before"
    )
    assert [three.process(n).leaves for n in range(3)] == [0, 1, 1]
    three.turn()
    assert [status.index for status in three.shown] == [0, 2]
    three.process(2).code = 0
    three.turn()
    assert [status.index for status in three.shown] == [0]
    assert three.process(2).closed
    assert len(three.started) == 3


def test_one_worker_is_told_of_as_one() -> None:
    two = scene(2)
    assert asked(two, 3) == "1 worker starts; there are 3 workers from now on, 2 before"
    assert asked(two, 2) == (
        "1 worker closes and gives its tasks away; there are 2 workers from now on, 3 before"
    )
    assert asked(scene(1), 1) == "there is 1 worker already"


def test_as_many_as_there_are_changes_nothing() -> None:
    two = scene(2)
    assert asked(two, 2) == "there are 2 workers already"
    assert two.indices == [0, 1]


def test_a_worker_that_comes_while_one_leaves_has_another_number() -> None:
    """Both have state and an identity, by their number."""
    two = scene(2)
    two.process(1).obeys = False
    asked(two, 1)
    asked(two, 2)
    assert two.indices == [0, 1, 2]
    two.process(1).code = 0
    two.turn()
    asked(two, 3)
    assert two.indices == [0, 1, 2, 1]


def test_one_that_does_not_leave_in_time_is_killed_and_the_others_go_on() -> None:
    two = scene(2)
    two.process(1).obeys = False
    asked(two, 1)
    two.turn(after_s=4.9)
    assert two.process(1).code is None
    assert not two.turn(after_s=0.2)
    assert two.process(1).code == -KILL
    assert not two.turn()
    assert [status.index for status in two.shown] == [0]
    assert len(two.log.named("worker_killed")) == 1
    two.supervisor.signalled(TERM)
    assert two.outcome() is ExitCode.STOPPED


def test_one_that_crashes_while_it_leaves_is_not_started_again() -> None:
    two = scene(2)
    two.process(1).obeys = False
    asked(two, 1)
    two.process(1).code = 1
    two.turn()
    two.turn(after_s=60)
    assert two.indices == [0, 1]
    assert [status.index for status in two.shown] == [0]


def test_one_that_waits_for_its_restart_is_forgotten_at_once() -> None:
    two = scene(2)
    two.process(1).code = 1
    two.turn()
    asked(two, 1)
    two.turn(after_s=60)
    assert two.indices == [0, 1]
    assert [status.index for status in two.shown] == [0]


@pytest.mark.parametrize("workers", [0, -1, WORKERS_MAX + 1])
def test_what_cannot_be_is_refused(workers: int) -> None:
    two = scene(2)
    with pytest.raises(CommandRefusedError, match="1 to 1000"):
        asked(two, workers)
    assert [status.index for status in two.shown] == [0, 1]


def test_nothing_changes_while_all_are_stopped() -> None:
    two = scene(2)
    two.process(0).obeys = two.process(1).obeys = False
    two.supervisor.signalled(INT)
    two.turn()
    with pytest.raises(CommandRefusedError, match="being stopped"):
        asked(two, 3)
    assert two.indices == [0, 1]


def test_a_stop_waits_for_those_that_leave_and_tells_them_no_second_time() -> None:
    two = scene(2)
    two.process(0).obeys = two.process(1).obeys = False
    asked(two, 1)
    two.supervisor.signalled(TERM)
    two.turn()
    assert (two.process(0).stops, two.process(1).stops) == (1, 0)
    two.process(0).code = 0
    assert not two.turn()
    two.process(1).code = 0
    assert two.outcome() is ExitCode.STOPPED


def test_a_level_reaches_all_workers_and_those_that_come_later() -> None:
    levels: list[str] = []
    two = scene(2)
    two.supervisor.set_log_level = levels.append
    answer = two.supervisor.submit(lambda supervisor: supervisor.change_log_level("debug"))
    two.turn()
    assert answer.result(0) == "events of level debug and above are logged"
    asked(two, 3)
    assert levels == ["debug"]
    assert [two.process(n).levels for n in range(3)] == [["debug"]] * 3
