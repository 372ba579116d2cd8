"""Which task a partition stands for, so that a second worker gets some of each sub-topology."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.contact.access_errors import GroupDeniedError
from headrace.streams.deployed.deployed import DeployedTopology, topology_group
from headrace.streams.deployed.shares import UNSHARED, Shares
from headrace.streams.errors import MisconfiguredTopicError
from headrace.streams.plan.plan import plan_application
from headrace.streams.seams.clients import CommittedOffset, Offsets, TopicPartition
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.testing.memory_worker import EventLog
from tests.support.topologies import key_count

Leads = Mapping[str, int]


def places(leads: Leads) -> list[TopicPartition]:
    """All of them, by topic and number: as a client takes those that move to who joins."""
    return [TopicPartition(topic, p) for topic in sorted(leads) for p in range(leads[topic])]


def of_each(given: Iterable[TopicPartition], leads: Leads) -> list[int]:
    """How many tasks of each sub-topology stand behind partitions."""
    found = Counter(place.topic for place in Shares.of(leads).tasks(given, leads))
    return [found[topic] for topic in sorted(leads)]


@pytest.mark.parametrize(
    "leads",
    [
        {"in": 4, "words": 4},
        {"in": 1, "words": 1},
        {"in": 3, "words": 8, "z": 5},
        {"a": 6, "b": 6, "c": 6, "d": 1},
    ],
    ids=str,
)
def test_each_task_has_one_partition(leads: Leads) -> None:
    given = places(leads)
    assert sorted(Shares.of(leads).tasks(given, leads)) == sorted(given)


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_the_first_half_has_as_much_of_each_as_the_second(count: int) -> None:
    """It is what moves to a worker that joins one."""
    leads = {"in": count, "words": count}
    given = places(leads)
    assert of_each(given[:count], leads) == of_each(given[count:], leads) == [count // 2] * 2


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 13])
def test_each_second_one_has_as_much_of_each_as_the_others(count: int) -> None:
    """They are what two workers get that begin at once."""
    leads = {"in": count, "words": count}
    given = places(leads)
    for half in (given[::2], given[1::2]):
        few, many = sorted(of_each(half, leads))
        assert many - few <= 2, "at most one task too many"
        assert few >= count // 2 - 1


def test_partitions_that_came_later_stand_for_their_own_tasks() -> None:
    grown = {"in": 6, "words": 4}
    later = [TopicPartition("in", p) for p in (4, 5)]
    assert Shares.of({"in": 4, "words": 4}).tasks(later, grown) == later


def test_new_topics_share_among_themselves_alone() -> None:
    """Workers of the version before go on, and know nothing of them."""
    before, now = {"in": 4, "words": 4}, {"in": 4, "words": 4, "joined": 4, "more": 4}
    shares = Shares.of(before)
    assert shares.extended(now).extended(now) == shares.extended(now)
    given = places(before)
    assert shares.extended(now).tasks(given, now) == shares.tasks(given, before)
    assert sorted(shares.extended(now).tasks(places(now), now)) == sorted(places(now))


def test_what_stands_for_a_task_of_another_version_stands_for_nothing() -> None:
    shares = Shares.of({"in": 4, "words": 4})
    left = shares.tasks(places({"in": 4, "words": 4}), {"words"})
    assert sorted(left) == places({"words": 4})


# -- all workers go by the same ---------------------------------------------------------------


@dataclass
class Brokers:
    """The notes of an application, and who is in its group."""

    notes: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    counts: Leads = field(default_factory=dict)
    live: bool = False
    denied: bool = False
    writes: int = 0

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        assert (group, decided) == (topology_group("app"), False)
        if self.denied:
            raise GroupDeniedError("no right")
        return dict(self.notes)

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        assert group == topology_group("app")
        self.writes += 1
        self.notes.update(offsets)

    def has_members(self, group: str) -> bool:
        assert group == "app"
        return self.live

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        found = [name for name in names if name in self.counts]
        return {name: TopicFacts(name, self.counts[name], "id") for name in found}


def starting(brokers: Any) -> DeployedTopology:
    config = StreamsConfig.parse({"application.id": "app", "bootstrap.servers": "b:1"})
    started = DeployedTopology(config, plan_application(key_count(), config), brokers, EventLog())
    started.check()
    return started


def agreed(brokers: Any, leads: Leads) -> Shares:
    return starting(brokers).agree(brokers, leads)


TWO: Leads = {"in": 4, "words": 4}


def test_the_first_one_writes_what_the_others_go_by() -> None:
    brokers = Brokers()
    assert agreed(brokers, TWO) == Shares.of(TWO)
    brokers.live = True
    grown = {"in": 6, "words": 4}
    assert agreed(brokers, grown) == Shares.of(TWO)
    assert brokers.writes == 1, "it was written already"


def test_it_is_still_there_when_the_description_is_written_again() -> None:
    brokers = Brokers()
    first = starting(brokers)
    first.agree(brokers, TWO)
    assert first.keep()
    assert starting(brokers).keep()
    brokers.live = True
    assert agreed(brokers, {**TWO, "in": 5}) == Shares.of(TWO)


def test_who_finds_somebody_reads_again_what_that_one_has_written() -> None:
    """It came in between, and it wrote before it joined."""
    brokers = Brokers()
    late = starting(brokers)
    agreed(brokers, {"in": 2, "words": 2})
    brokers.live = True
    assert late.agree(brokers, TWO) == Shares.of({"in": 2, "words": 2})


def test_workers_that_know_nothing_of_shares_are_left_their_own_tasks() -> None:
    brokers = Brokers()
    assert starting(brokers).keep(), "as an older release does"
    brokers.live = True
    assert agreed(brokers, TWO) == UNSHARED
    brokers.live = False
    assert agreed(brokers, TWO) == Shares.of(TWO)


def test_a_version_with_more_topics_shares_the_old_ones_as_before() -> None:
    more = {**TWO, "a": 4, "z": 4}
    brokers = Brokers(counts=more)
    agreed(brokers, TWO)
    brokers.live = True
    assert agreed(brokers, more) == Shares.of(TWO).extended(more)
    assert agreed(brokers, TWO) == Shares.of(TWO).extended(more), "written for the next one"


def test_a_version_with_fewer_topics_shares_those_of_before() -> None:
    brokers = Brokers(counts=TWO)
    agreed(brokers, TWO)
    brokers.live = True
    assert agreed(brokers, {"in": 4}) == Shares.of(TWO)


def test_topics_that_are_gone_are_shared_no_more_unless_somebody_goes_by_them() -> None:
    brokers = Brokers()
    agreed(brokers, TWO)
    brokers.live = True
    with pytest.raises(MisconfiguredTopicError, match=r"of in, words, and some .* stop all"):
        agreed(brokers, {"in": 4})
    brokers.live = False
    assert agreed(brokers, {"in": 4}) == Shares.of({"in": 4})


def test_without_the_right_to_the_notes_nothing_is_shared() -> None:
    assert agreed(Brokers(denied=True), TWO) == UNSHARED


def test_what_cannot_be_written_is_not_gone_by() -> None:
    brokers = Brokers()
    many = {hashlib.sha256(bytes([n])).hexdigest(): 4 for n in range(200)}
    assert agreed(brokers, many) == UNSHARED
    assert brokers.writes == 0
    agreed(brokers, TWO)
    brokers.live = True
    assert agreed(brokers, {**TWO, **many}) == Shares.of(TWO)
