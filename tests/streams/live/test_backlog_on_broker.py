"""How far counting is behind splitting while there is a backlog is bounded, as brokers see it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import TopicPartition
from tests.streams.live.test_crashes_on_broker import Scenario
from tests.support.patience import PATIENCE_S
from tests.support.processes import running, wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

LIMIT = 1_000
"""repartition.lag.max.records; of each partition."""
WORDS = 4
"""In each sentence."""
SENTENCES = 10_000
PARTITIONS = 4


class Looks:
    """How far an application has come, as the brokers know it."""

    def __init__(self, scenario: Scenario) -> None:
        self._admin = GroupAdmin({"bootstrap.servers": scenario.bootstrap}, timeout_s=PATIENCE_S)
        self._group = scenario.application_id
        topic = f"{scenario.application_id}-by-word-repartition"
        self._words = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        self._counted: dict[TopicPartition, int] = {}
        self.step = 0
        """The most that was counted of a partition between two looks: a commit, or more of them."""

    def lag(self) -> tuple[int, int]:
        """The final words of one partition that are not counted, where there are most; all counted.

        What is counted between the two questions makes it smaller, never larger.
        """
        ends = self._admin.stable_offsets(self._words)
        found = self._admin.committed_offsets(self._group, self._words)
        counted = {place: committed.offset for place, committed in found.items()}
        steps = (counted.get(p, 0) - self._counted.get(p, 0) for p in self._words)
        self.step, self._counted = max(self.step, *steps), counted
        return max(ends[p] - counted.get(p, 0) for p in self._words), sum(counted.values())


@pytest.mark.parametrize("workers", [1, 2])
def test_counting_keeps_up_with_a_backlog_that_is_split(
    workers: int, topics: Topics, tmp_path: Path
) -> None:
    scenario = Scenario(topics, tmp_path, partitions=PARTITIONS, repartition=True, worker_id=None)
    scenario.settings |= {
        "repartition.lag.max.records": LIMIT,
        "commit.interval.ms": 100,
        "topology.optimization": "none",
    }
    with ExitStack() as stack:
        logs = [tmp_path / f"{n}.log" for n in range(workers)]
        apps = [stack.enter_context(running(scenario.plan(), log)) for log in logs]
        wait_until(lambda: all("task_started" in app.text() for app in apps), what="all read")
        # Who looks is connected before there is a backlog, which is worked off within seconds.
        looks = Looks(scenario)
        lags = [looks.lag()]
        for app in apps:
            app.pause()
        scenario.write(SENTENCES * WORDS)
        for app in apps:
            app.resume()
        while lags[-1][1] < SENTENCES * WORDS:
            assert all(app.running for app in apps), [app.text()[-4000:] for app in apps]
            lags.append(looks.lag())
        wait_until(scenario.is_complete, what="all counts")
        for app in apps:
            app.stop()
    most = max(lag for lag, _ in lags)
    print(f"{len(lags)} looks: up to {most} words behind, {looks.step} in a commit")
    assert most > LIMIT // 2, "nothing had to wait: the bound was not tried"
    # Words that are counted and not committed come on top here: no more than wait where another
    # worker counts them, else what is counted until a commit is due, whose words are told a moment
    # before their being counted is. Without a bound it is 12,000 and more.
    bound = 2 * LIMIT + workers * WORDS * LIMIT // 4
    assert most <= bound + looks.step, "the bound that is promised"
    scenario.check_exact()
