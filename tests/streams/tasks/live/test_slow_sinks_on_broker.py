"""A table that takes rows slowly gets all of them: in batches that it takes in time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import structlog

from headrace import PostgresSink
from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.postgres import PostgresServer
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

ROWS = 3_000
TRIGGER = """
CREATE TABLE slow (n bigint);
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_sleep(0.001); RETURN new; END $$;
CREATE TRIGGER waits BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION wait();
"""


@pytest.fixture
def url() -> Iterator[str]:
    server = PostgresServer()
    yield server.url
    server.close()


def test_a_trigger_for_each_row_makes_batches_smaller(
    topics: Topics, tmp_path: Path, url: str
) -> None:
    """All rows together take several times as long as a statement may."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TRIGGER)
        source = topics.create("in")
        kafka.write(topics.bootstrap, source, [(None, b"%d" % n) for n in range(ROWS)])
        builder = StreamsBuilder()
        sink = PostgresSink(
            url, "slow", {"n": int}, row=lambda _, n: {"n": n}, timeout=timedelta(seconds=0.8)
        )
        builder.stream(source, value=serdes.json).to_sink(sink, name="slow")
        settings = settings_of(topics, tmp_path, commit_interval_ms=500)
        with structlog.testing.capture_logs() as events, live(builder.build(), settings) as app:
            rows = 0

            def is_done() -> bool:
                nonlocal rows
                ((rows,),) = connection.execute("SELECT count(*) FROM slow").fetchall()
                return rows >= ROWS

            app.wait(is_done, what="all rows")
        found = connection.execute("SELECT n FROM slow ORDER BY n").fetchall()
    assert [n for (n,) in found] == list(range(ROWS))
    lowered = [event for event in events if event["event"] == "batch_size_lowered"]
    assert lowered
    assert (lowered[0]["sink"], lowered[0]["unit"]) == ("slow", "rows")
    assert not [event for event in events if event["event"] == "sink_unavailable"]
