"""A run that is told to stop answers those who wait, and says nothing of errors."""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.supervisor.exit_codes import ExitCode
from headrace.streams_web.stores.local import WAITING_MAX
from tests.support.processes import wait_until
from tests.support.supervised import Counted
from tests.support.topics import Topics

pytestmark = pytest.mark.slow
SAID = {"error": "this host stops. Retry in a moment, or query another host"}


def test_who_waits_when_a_run_is_told_to_stop_is_answered(topics: Topics, tmp_path: Path) -> None:
    app = Counted(topics, tmp_path, partitions=2)
    with app.running(1, "--http=0", "--queries") as run:
        app.write(50)
        run.wait_running(1)
        app.wait_counted(run)
        url = run.wait_for("web_started")[0]["url"]
        late = f"{url}/api/stores/counts/count?min_position=0:9999999&wait="
        answers: list[tuple[int, Any]] = []

        def ask(wait: str) -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(late + wait, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)

        def waits() -> None:
            """Until it was let in, as others take a place for a moment, and told of the stop."""
            answer = ask("30s")
            while not is_told.is_set() and answer[1] != SAID:
                answer = ask("30s")
            answers.append(answer)

        is_told = threading.Event()
        asking = [threading.Thread(target=waits) for _ in range(WAITING_MAX)]
        for thread in asking:
            thread.start()
        wait_until(
            lambda: "queries wait for positions" in ask("0ms")[1]["error"],
            what="all of them wait",
        )
        listening = urllib.request.urlopen(f"{url}/api/stores/counts/changes", timeout=60)
        is_told.set()
        run.signal(signal.SIGTERM)
        for thread in asking:
            thread.join(60)
        with listening:
            assert b"the server of the changes stops" in listening.read()
        assert run.wait() == ExitCode.STOPPED
        assert answers == [(503, SAID)] * WAITING_MAX
        assert "Traceback" not in run.text()
        assert "ASGI" not in run.text()
