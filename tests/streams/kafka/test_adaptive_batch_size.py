"""A batch follows the rate at which it is taken."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headrace.streams.kafka.adaptive_batch_size import AdaptiveBatchSize
from headrace.streams.testing.memory_worker import EventLog

TARGET_S, LIMIT_S = 3.0, 9.0


def send(batch: AdaptiveBatchSize, seconds_of: Callable[[int], float], waiting: int) -> int:
    """Send one batch to a side that ends what takes too long; returns how much it took."""
    size = min(batch.size, waiting)
    seconds = seconds_of(size)
    if seconds <= LIMIT_S:
        batch.succeeded(size, seconds)
        return size
    batch.timed_out(size, LIMIT_S)
    return 0


@pytest.mark.parametrize("rate", [0.5, 7, 300, 20_000])
@pytest.mark.parametrize("first", [1, 500, 1_000_000])
def test_it_settles_at_what_the_target_allows(rate: float, first: int) -> None:
    batch = AdaptiveBatchSize(target_s=TARGET_S, size=first)
    for _ in range(60):
        send(batch, lambda size: size / rate, waiting=10_000_000)
    sizes = []
    for _ in range(20):
        assert send(batch, lambda size: size / rate, waiting=10_000_000), "nothing times out"
        sizes.append(batch.size)
    assert max(sizes) <= max(1, 1.5 * rate * TARGET_S)
    least_s = 0.6 * TARGET_S if first == 1 else 0.1 * TARGET_S  # others have timed out
    assert min(sizes) >= int(rate * least_s)


class Quota:
    """Kafka's produce quota: after each request a pause by the bytes of the last ten seconds."""

    def __init__(self, rate: float, request: int) -> None:
        self._rate, self._request = rate, request
        self._sent: list[tuple[float, int]] = []
        self._free_s = self.now_s = 0.0

    def send(self, size: int) -> tuple[float, int]:
        """Send one transaction; returns how long it took, and how much the broker took of it."""
        begun_s, left = self.now_s, size
        self.now_s += 0.1  # its commit
        while left:
            if self._free_s - begun_s > 3 * TARGET_S:
                self.now_s = begun_s + 3 * TARGET_S
                for _ in range(min(5, -(-left // self._request))):  # requests that are on their way
                    self._take(self._request)
                return 3 * TARGET_S, size - left
            self.now_s = max(self.now_s, self._free_s)
            self._take(min(left, self._request))
            left -= min(left, self._request)
        return self.now_s - begun_s, size

    def _take(self, size: int) -> None:
        at_s = max(self.now_s, self._free_s)
        self._sent = [(s, n) for s, n in self._sent if s > int(at_s) - 10] + [(at_s, size)]
        over = sum(n for _, n in self._sent) - 10 * self._rate
        self._free_s = at_s + max(0.0, over / self._rate)


@pytest.mark.parametrize("request_s", [0.1, 0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("rate", [10, 20, 50, 70, 100, 120, 170, 250, 400, 1_000, 3_000])
def test_a_quota_that_lets_bursts_pass_times_out_hardly_ever(rate: int, request_s: float) -> None:
    """Quick batches after a pause do not say how fast the next ones are taken."""
    batch, quota = (
        AdaptiveBatchSize(target_s=TARGET_S, size=200),
        Quota(rate, int(rate * request_s)),
    )
    taken = timed_out = 0
    while quota.now_s < 120:
        size = batch.size
        seconds, part = quota.send(size)
        if part < size:
            timed_out += 1
            batch.timed_out(size, seconds, taken=part)
        else:
            taken += size
            batch.succeeded(size, seconds)
    assert timed_out <= 3
    assert taken >= 0.85 * rate * quota.now_s


@pytest.mark.parametrize("each_s", [0.01, 2.0, 4.0, 7.0])
def test_a_side_that_takes_its_time_for_each_batch_gets_large_ones(each_s: float) -> None:
    """Smaller batches would not be quicker, and would be many more."""
    batch = AdaptiveBatchSize(target_s=TARGET_S, size=500)
    for _ in range(80):
        send(batch, lambda _: each_s, waiting=10_000_000)
    assert batch.size > 10_000


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fixed_s", [0.1, 0.5, 1.2, 2.5])
@pytest.mark.parametrize("rate", [20, 20_000])
def test_a_fixed_time_that_varies_does_not_keep_batches_small(
    fixed_s: float, rate: int, seed: int
) -> None:
    """A commit takes long where brokers are far or busy, whatever is in it."""
    choose = random.Random(seed)
    batch = AdaptiveBatchSize(target_s=TARGET_S, size=500)
    batch.timed_out(500, 10.0)
    batch.timed_out(batch.size, 10.0)
    taken, took_s = 0, 0.0
    for number in range(150):
        seconds = fixed_s * choose.uniform(0.7, 1.4) + batch.size / rate
        size = send(batch, lambda _, seconds=seconds: seconds, waiting=10_000_000)
        assert size, "nothing times out"
        if number >= 75:
            taken, took_s = taken + size, took_s + seconds
    assert taken / took_s >= 0.5 * rate * TARGET_S / (TARGET_S + 4 * fixed_s)


def test_a_batch_that_is_not_full_does_not_make_the_next_one_larger() -> None:
    batch = AdaptiveBatchSize(target_s=TARGET_S, size=500)
    batch.succeeded(499, 0.1)
    assert batch.size == 500
    batch.succeeded(500, 0.1)
    assert batch.size == 750


def test_a_pause_of_a_small_batch_divides_it_by_four_at_most() -> None:
    batch = AdaptiveBatchSize(target_s=TARGET_S, size=500)
    batch.succeeded(400, 300.0)
    assert batch.size == 100


def test_what_was_taken_until_the_time_out_says_the_rate() -> None:
    batch = AdaptiveBatchSize(target_s=TARGET_S, size=1_000_000)
    batch.timed_out(50_000, 10.0, taken=1_000)
    assert batch.size == 75, "for a quarter of the target: the rate may vary"


def test_nothing_that_was_sent_says_nothing() -> None:
    batch = AdaptiveBatchSize(target_s=TARGET_S, size=500)
    batch.timed_out(0, 60.0)
    batch.succeeded(0, 60.0)
    assert batch.size == 500


def test_a_batch_that_took_no_time_is_no_measure() -> None:
    batch = AdaptiveBatchSize(target_s=TARGET_S, size=500)
    batch.succeeded(500, 0.0)
    batch.succeeded(300, 60.0)
    assert batch.size == 75


def test_it_keeps_to_its_bounds() -> None:
    batch = AdaptiveBatchSize(target_s=TARGET_S, size=900, max_size=1_000)
    batch.succeeded(900, 0.1)
    assert batch.size == 1_000
    for _ in range(20):
        batch.timed_out(batch.size, 10.0)
    assert batch.size == 1


def test_the_log_says_the_rate_and_what_is_done_and_not_each_step() -> None:
    log = EventLog()
    batch = AdaptiveBatchSize(target_s=2.0, size=1_000, log=log, fields={"unit": "rows"})
    batch.timed_out(1_000, 10.0, taken=500)
    (event,) = log.events
    assert event["event"] == "batch_size_lowered"
    assert {name: event[name] for name in ("unit", "size", "before", "rate_per_s", "took_s")} == {
        "unit": "rows", "size": 25, "before": 1_000, "rate_per_s": 50.0, "took_s": 10.0,
    }  # fmt: skip
    batch.succeeded(batch.size, 0.3)  # to and fro
    batch.succeeded(batch.size, 0.8)
    assert len(log.events) == 1
    for _ in range(9):
        batch.succeeded(batch.size, 0.1)
    assert [event["event"] for event in log.events] == ["batch_size_lowered", "batch_size_raised"]
