"""The commands of runbooks, run as their pages have them, end the incident on a real broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import confluent_kafka.admin
import pytest

from headrace.streams.supervisor.exit_codes import ExitCode
from tests.deploy.files import commands_in
from tests.runbooks.test_runbooks import FOLDER
from tests.streams.worker.live.test_topic_watch_on_broker import delete
from tests.support import kafka, oracle
from tests.support.patience import PATIENCE_S
from tests.support.processes import IMPORT_PATH, wait_until
from tests.support.raw_transactions import hang
from tests.support.supervised import COMMAND, Counted, Run
from tests.support.topics import Topics

pytestmark = pytest.mark.slow


class Incident:
    """The application of the runbooks, and the commands of one page.

    In the commands, the app's input topic replaces `orders`.
    """

    def __init__(self, topics: Topics, home: Path, page: str, partitions: int = 2) -> None:
        self.app = Counted(topics, home, partitions=partitions)
        self.group = self.app.group
        self.worker = ""
        self._page, self._runs = page, 0

    def process(self, records: int) -> None:
        """Write records, count them, and stop cleanly."""
        self.app.write(records)
        with self.running() as run:
            self.app.wait_counted(run)
            run.signal(signal.SIGTERM)
            assert run.wait() == ExitCode.STOPPED
            (self.worker,) = run.identity(0)

    def start_expecting_failure(self, error: str) -> str:
        """Start the application; return the reason for which it fails."""
        with self.running() as run:
            code = run.wait()
            (failed,) = run.events("application_failed")
        assert failed["error"] == error
        # The page writes "Exit code" or "exit code".
        assert f"xit code {code}" in (FOLDER / self._page).read_text()
        return str(failed["reason"])

    def follow(self, name: str, *options: str, code: int = 0) -> str:
        """Run a command of the page, and return its output.

        Args:
            name: words of the command; the shortest command that has all of them is run.
            options: options to add.
            code: expected exit code.
        """
        wanted = set(name.split())
        words = min((w for w in commands_in(FOLDER / self._page) if wanted <= set(w)), key=len)
        done = subprocess.run(
            [*COMMAND[:-1], *(self.app.input if w == "orders" else w for w in words), *options],
            cwd=self.app.home,
            env={**os.environ, "PYTHONPATH": IMPORT_PATH},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == code, f"{words}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def running(self) -> AbstractContextManager[Run]:
        """Run the application; its process is gone afterwards."""
        self._runs += 1
        return self.app.running(1, log=f"log-{self._runs}")


def test_a_poison_record_is_skipped(topics: Topics, tmp_path: Path) -> None:
    incident = Incident(topics, tmp_path, "poison-record.md")
    app = incident.app
    producer = confluent_kafka.Producer({"bootstrap.servers": app.bootstrap})
    for key, value in ((b"a", b"x"), (b"b", b"x"), (b"c", b"poison"), (b"d", b"x")):
        producer.produce(app.input, value, key, partition=1)
    assert producer.flush(PATIENCE_S) == 0
    app.expected.update([b"a", b"b", b"d"])
    assert f"headrace skip {app.input} 1 2 --app" in incident.start_expecting_failure("RecordError")
    assert "poison" in incident.follow("topics tail")
    assert f"To be skipped: {app.input}-1 offset 2" in incident.follow("skip --dry-run")
    assert "Done. The application can be started." in incident.follow("skip", "--yes")
    incident.process(100)
    app.check_exact()


def test_a_changelog_that_is_gone_is_written_from_local_rows(
    topics: Topics, tmp_path: Path
) -> None:
    incident = Incident(topics, tmp_path, "changelog-gone.md")
    incident.process(200)
    changelog = f"{incident.group}-counts-changelog"
    delete(topics, changelog)
    assert changelog in incident.start_expecting_failure("ChangelogLostError")
    assert f"changelogs that are gone: {changelog}" in incident.follow("check", code=1)
    assert "  0_0: counts\n  0_1: counts" in incident.follow("changelog --dry-run")
    assert topics.partitions(changelog) == 0
    incident.follow("changelog", "--yes")
    incident.process(100)
    incident.app.check_exact()


@pytest.mark.parametrize("source", ["end", "file"])
def test_offsets_that_are_gone_are_set_again(source: str, topics: Topics, tmp_path: Path) -> None:
    incident = Incident(topics, tmp_path, "offsets-gone.md")
    app = incident.app
    incident.process(200)
    listed = incident.follow("offsets list")
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": app.bootstrap})
    admin.delete_consumer_groups([incident.group])[incident.group].result()
    incident.start_expecting_failure("StateWithoutOffsetsError")
    assert "none" in incident.follow("offsets list")
    incident.follow("check", code=1)
    if source == "end":
        incident.follow("offsets set --to", "--yes")
    else:
        rows = re.findall(rf"{app.input}-(\d) +(\d+)", listed)
        assert len(rows) == 2
        lines = [f"{app.input},{partition},{offset}\n" for partition, offset in rows]
        (tmp_path / "offsets.csv").write_text("".join(lines))
        incident.follow("offsets set --from-file", "--yes")
    incident.process(100)
    app.check_exact()


def test_a_hanging_transaction_is_aborted(topics: Topics, tmp_path: Path) -> None:
    incident = Incident(topics, tmp_path, "hanging-transaction.md", partitions=1)
    app = incident.app
    incident.process(100)
    hang(
        app.bootstrap,
        f"{incident.group}-{incident.worker}",
        app.output,
        group=incident.group,
        input_topic=app.input,
    )
    assert "commits its offset" in incident.follow("transactions list")
    assert "Done. The application can be started." in incident.follow("transactions abort", "--yes")
    assert incident.follow("transactions list") == "No transaction is open.\n"

    def results() -> list[kafka.Record]:
        """Return the results, without the record of the hanging producer's first transaction."""
        return [one for one in kafka.read(app.bootstrap, app.output) if one.value != b"before"]

    app.write(100)
    with incident.running() as run:
        wait_until(
            lambda: oracle.last_counts(results()) == app.expected or run.process.poll() is not None,
            what="all counts",
        )
    oracle.check_exact(results(), app.expected)
