"""A session is as long as one silence: who wakes and sends a heartbeat has all of it again.

What is left standing is a process of its own on a broker, and a simulated one. Each must keep its
place where it stands three times within a session's length, and lose it where it stands for longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.streams.simulation.world.kernel import SECOND
from tests.simulation.worlds import (
    SESSION_MS,
    Heard,
    RealWorld,
    SimulatedWorld,
    World,
    poll_for,
    until,
)
from tests.support.processes import running
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

SHORT_S = SESSION_MS / 1000 * 0.7
LONG_S = SESSION_MS / 1000 + 3
AWAKE_S = 0.8

Said = list[tuple[str, int]]
Stand = Callable[[float], None]


def what_the_other_hears(world: World, stand: Stand, *members: Heard) -> list[Said]:
    """Leave a member standing three times, then for long; the first of those named hears of it."""
    other = members[0]
    until(world, lambda: poll_for(world, 0.2, members) or len(other.has) == 1)  # type: ignore[func-returns-value]
    poll_for(world, 2, members)
    other.said.clear()
    for _ in range(3):
        stand(SHORT_S)
        poll_for(world, AWAKE_S, members)
    meanwhile = list(other.said)
    stand(LONG_S)
    return [meanwhile, other.said]


def on_the_simulation() -> list[Said]:
    world = SimulatedWorld()
    sleeper = Heard(world, world.consumer(group_instance_id="a"))
    other = Heard(world, world.consumer(group_instance_id="b"))

    def stand(seconds: float) -> None:
        sleeper.consumer.process.suspend(int(seconds * SECOND))
        poll_for(world, seconds, (other,))
        # It wakes a little later.
        world.sleep(0.001)

    return what_the_other_hears(world, stand, other, sleeper)


@pytest.fixture
def real(topics: Topics) -> Iterator[RealWorld]:
    world = RealWorld(topics)
    yield world
    for consumer in world.made:
        consumer.close()


@pytest.mark.long
def test_a_session_ends_after_one_long_silence_as_on_a_broker(
    real: RealWorld, tmp_path: Path
) -> None:
    other = Heard(real, real.consumer(group_instance_id="b"))
    plan = {"config": real.config(group_instance_id="a"), "topic": real.topic}
    with running(plan, tmp_path / "log", "tests.simulation.member") as sleeper:

        def stand(seconds: float) -> None:
            sleeper.pause()
            poll_for(real, seconds, (other,))
            sleeper.resume()

        seen = what_the_other_hears(real, stand, other)
    assert seen == on_the_simulation() == [[], [("assign", 1)]]


def test_short_silences_in_a_row_are_not_one_long_silence() -> None:
    assert on_the_simulation() == [[], [("assign", 1)]]
