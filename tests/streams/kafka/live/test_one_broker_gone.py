"""One node of three goes away, and comes back: its name is in the log, and no count is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.streams.devbroker import DevBroker
from tests.support.processes import wait_until
from tests.support.supervised import Counted
from tests.support.topics import Topics

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_node_that_does_not_answer_is_named_until_it_is_back(
    how: signal.Signals, tmp_path: Path
) -> None:
    with DevBroker(tmp_path / "three", nodes=3, port=0) as cluster:
        addresses = cluster.bootstrap.split(",")
        app = Counted(Topics(cluster.bootstrap), tmp_path)
        with app.running(2) as run:
            run.wait_running(2)
            app.write()
            app.wait_counted(run)
            if how is signal.SIGKILL:
                cluster.kill(3)
            else:
                cluster.pause(3)
            (named, *_) = run.wait_for("broker_not_reached")
            assert named["broker"] == addresses[2]
            app.write()
            cluster.start() if how is signal.SIGKILL else cluster.resume(3)
            (back, *_) = run.wait_for("broker_reached")
            assert back["broker"] == addresses[2]
            app.wait_counted(run)
            gone = {e["broker"] for e in run.events("broker_not_reached")}
            assert gone == {addresses[2]}
            assert not run.events("worker_crashed")
            run.signal(signal.SIGTERM)
            wait_until(lambda: run.process.poll() is not None, what="its end")
        app.check_exact()
