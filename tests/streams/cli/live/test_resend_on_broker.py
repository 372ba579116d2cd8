"""`headrace topics resend` on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from headrace import StreamsBuilder, serdes
from headrace.streams.cli.main import main
from headrace.topology.topology import Topology
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.topics import Topics


def resent(topics: Topics, letters: str, topic: str) -> Result:
    line = ["topics", "resend", letters, topic, "--bootstrap-servers", topics.bootstrap]
    return CliRunner().invoke(main, line)


def shop(orders: str, parsed: str, parse: Any) -> Topology:
    builder = StreamsBuilder()
    words = builder.stream(orders, key=serdes.string, value=serdes.string)
    by_size = words.group_by(lambda _, text: text[:1], key=serdes.string, name="by-first")
    checked = words.map_values(parse, name="parse")
    checked.to(parsed, value=serdes.json)
    by_size.aggregate(int, lambda _, text, n: n + int(text), store="sums", value=serdes.long)
    return builder.build()


def test_each_letter_is_sent_once_while_the_application_runs(
    topics: Topics, tmp_path: Path
) -> None:
    """Records that fail again are new letters, which only the next run sends."""
    orders, parsed = topics.create("orders", partitions=3), topics.create("parsed", partitions=3)
    letters = topics.create("letters", partitions=2)
    settings = {
        **settings_of(topics, tmp_path),
        "processing.exception.handler": "continue",
        "errors.dead.letter.queue.topic.name": letters,
    }
    repartition = f"{settings['application.id']}-by-first-repartition"
    kafka.write(topics.bootstrap, orders, [(b"a", b"1"), (b"b", b"{broken"), (b"c", b"2,5")])

    def count(topic: str) -> int:
        return len(kafka.read(topics.bootstrap, topic))

    with live(shop(orders, parsed, int), settings) as app:
        # Each of the two fails in the branch, and in the aggregation after the repartition topic.
        app.wait(lambda: count(letters) == 4, what="letters")

    def fixed(text: str) -> int:
        return int(text.replace(",", ""))

    with live(shop(orders, parsed, fixed), settings) as app:
        done = resent(topics, letters, orders)
        assert done.exit_code == 0, done.output
        assert f"Sent: {orders} (2 letters)" in done.output
        assert f"Not sent: 2 of {repartition}" in done.output
        # "{broken" fails in the branch again, and both in the aggregation.
        app.wait(lambda: count(parsed) == 2 and count(letters) == 7, what="second letters")
        assert count(orders) == 5
        again = [r for r in kafka.read(topics.bootstrap, orders) if r.offset > 0 or r.value != b"1"]
        by_key = {r.key: {one.partition for one in again if one.key == r.key} for r in again}
        assert all(len(partitions) == 1 for partitions in by_key.values())
        done = resent(topics, letters, orders)
        assert f"Sent: {orders} (1 letter)" in done.output
        done = resent(topics, letters, repartition)
        assert done.exit_code == 0, done.output
        assert f"Sent: {repartition} (" in done.output


def test_a_letter_topic_is_not_its_own_source(topics: Topics) -> None:
    letters = topics.create("letters")
    done = resent(topics, letters, letters)
    assert done.exit_code == 2
    assert "TOPIC must be the topic of the failed records" in done.output


def test_without_letters_nothing_is_sent(topics: Topics) -> None:
    letters, orders = topics.create("letters"), topics.create("orders")
    assert resent(topics, letters, orders).output.endswith(f"Sent: {orders} (0 letters)\n")
    kafka.write(topics.bootstrap, letters, [(b"k", b"no letter")])
    assert resent(topics, letters, orders).output.endswith("Not sent: 1 of no topic\n")
