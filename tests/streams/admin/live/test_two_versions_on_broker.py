"""Two versions of a topology at once, on a real broker: exact, or refused before a record."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.errors import VersionConflictError
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics

PARTITIONS = 4
KEYS = 20
BATCH = 200
BATCHES = 6

Write = Callable[[StreamsBuilder, "Rolling"], Any]


class Rolling:
    """An application of which workers of two versions run at once."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.bootstrap = topics.bootstrap
        self.orders = topics.create("orders", partitions=PARTITIONS)
        self.products = topics.create("products", partitions=PARTITIONS)
        self.output = topics.create("output", partitions=PARTITIONS)
        self._directory = directory
        self._settings = settings_of(topics, directory) | {"consumer.session.timeout.ms": 6000}
        self.written = 0

    def version(self, write: Write) -> Topology:
        builder = StreamsBuilder()
        write(builder, self)
        return builder.build()

    def settings(self, worker: str, **more: Any) -> dict[str, Any]:
        own = {"worker.id": worker, "state.dir": str(self._directory / worker)}
        return self._settings | own | more

    @contextmanager
    def workers(self, write: Write, *names: str) -> Iterator[list[Live]]:
        with ExitStack() as stack:
            topology = self.version(write)
            started = [stack.enter_context(live(topology, self.settings(name))) for name in names]
            for one in started:
                one.wait_running()
            yield started

    def write(self, batches: int) -> None:
        for _ in range(batches):
            records = []
            for _ in range(BATCH):
                records.append((f"k{self.written % KEYS}".encode(), f"{self.written}".encode()))
                self.written += 1
            kafka.write(self.bootstrap, self.orders, records)
            time.sleep(0.1)

    def wait_written(self) -> Counter[bytes]:
        """The values in the output, once none has come for a while."""
        found: Counter[bytes] = Counter()
        still = 0
        while still < 3:
            time.sleep(0.5)
            before, found = (
                found,
                Counter(record.value or b"" for record in kafka.read(self.bootstrap, self.output)),
            )
            still = still + 1 if found == before and found.total() >= self.written else 0
        return found


def orders_alone(builder: StreamsBuilder, app: Rolling) -> None:
    builder.stream(app.orders, key=serdes.string, value=serdes.string).to(app.output)


def orders_and_products(builder: StreamsBuilder, app: Rolling) -> None:
    topics = [app.orders, app.products]
    builder.stream(topics, key=serdes.string, value=serdes.string).to(app.output)


def orders_with_products(builder: StreamsBuilder, app: Rolling) -> None:
    products = builder.table(app.products, key=serdes.string, value=serdes.string)
    orders = builder.stream(app.orders, key=serdes.string, value=serdes.string)
    orders.left_join(products, lambda order, _: order).to(app.output, value=serdes.string)


def counted(builder: StreamsBuilder, app: Rolling) -> None:
    orders = builder.stream(app.orders, key=serdes.string, value=serdes.string)
    counts = orders.group_by_key().count(store="counts").to_stream()
    counts.map_values(str).to(app.output, value=serdes.string)


def counted_elsewhere(builder: StreamsBuilder, app: Rolling) -> None:
    orders = builder.stream(app.orders, key=serdes.string, value=serdes.string)
    orders = orders.repartition(name="again")
    counts = orders.group_by_key().count(store="counts").to_stream()
    counts.map_values(str).to(app.output, value=serdes.string)


@pytest.fixture
def rolling(topics: Topics, tmp_path: Path) -> Rolling:
    return Rolling(topics, tmp_path)


def once_each(app: Rolling) -> Counter[bytes]:
    return Counter(f"{number}".encode() for number in range(app.written))


def counts_of_all(app: Rolling) -> Counter[bytes]:
    per_key = Counter(number % KEYS for number in range(app.written))
    return Counter(f"{n + 1}".encode() for total in per_key.values() for n in range(total))


EXACT = {
    "one more topic": (orders_alone, orders_and_products),
    "a table is joined": (orders_alone, orders_with_products),
}
REFUSED = {
    "one topic less": (orders_and_products, orders_alone, once_each),
    "a store is moved": (counted, counted_elsewhere, counts_of_all),
}


@pytest.mark.parametrize("case", EXACT)
def test_versions_that_keep_the_subscribed_topic_run_at_once(case: str, rolling: Rolling) -> None:
    one, other = EXACT[case]
    with ExitStack() as stack:
        with rolling.workers(one, "a", "b"):
            rolling.write(BATCHES)
            stack.enter_context(rolling.workers(other, "c", "d"))
            rolling.write(BATCHES)
        rolling.write(BATCHES)
        assert rolling.wait_written() == once_each(rolling)


@pytest.mark.parametrize("case", REFUSED)
def test_versions_that_would_share_partitions_are_refused(case: str, rolling: Rolling) -> None:
    one, other, expected = REFUSED[case]
    with rolling.workers(one, "a", "b"):
        rolling.write(BATCHES)
        refused = Live(rolling.version(other), rolling.settings("c"))
        error = refused.failure()
        assert isinstance(error, VersionConflictError), error
        assert error.members == ("a", "b")
        assert exit_code_of(error) is ExitCode.VERSIONS
        assert refused.processed == 0
        rolling.write(BATCHES)
    with rolling.workers(other, "c", "d"):  # as the message says
        rolling.write(BATCHES)
        assert rolling.wait_written() == expected(rolling)


def test_two_versions_that_start_at_the_same_moment_are_not_both_running(
    rolling: Rolling,
) -> None:
    """Neither is a member when the other one looks, before they join."""
    versions = (orders_and_products, orders_alone)
    both = [
        Live(rolling.version(write), rolling.settings(name))
        for name, write in zip("ab", versions, strict=True)
    ]
    errors: list[BaseException | None] = [None, None]

    def run(number: int) -> None:
        try:
            both[number].app.run()
        except BaseException as error:
            errors[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    rolling.write(BATCHES)
    wait_until(lambda: any(errors), what="one is refused")
    rolling.write(BATCHES)
    found = rolling.wait_written()
    for one in both:
        one.app.close()
    for thread in threads:
        thread.join()
    assert found == once_each(rolling)
    assert [type(error) for error in errors if error is not None] == [VersionConflictError]


def test_a_killed_worker_of_another_version_is_waited_for(rolling: Rolling) -> None:
    """The group takes it for a member until its session has ended."""
    with rolling.workers(orders_and_products, "a") as (first,):
        rolling.write(BATCHES)
        first.app.close(leave_group=False)
        with rolling.workers(orders_alone, "b"):
            rolling.write(BATCHES)
            assert rolling.wait_written() == once_each(rolling)


def test_a_worker_that_comes_back_with_another_subscription_gets_its_tasks(
    rolling: Rolling,
) -> None:
    """The group gives a static member its old assignment, of topics that it does not read."""

    def both_apart(builder: StreamsBuilder, app: Rolling) -> None:
        orders_alone(builder, app)
        builder.stream(app.products, key=serdes.string, value=serdes.string).to(app.output)

    with rolling.workers(both_apart, "a") as (first,):
        rolling.write(BATCHES)
        first.wait_processed(rolling.written)
        first.app.close(leave_group=False)
        with rolling.workers(orders_alone, "a"):
            rolling.write(BATCHES)
            assert rolling.wait_written() == once_each(rolling)
