"""Two clusters and mirrors between them, as processes of the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka

from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT


@dataclass(frozen=True)
class Clusters:
    """The files with the settings of two clusters, in a directory.

    Args:
        servers: the bootstrap servers by the names of the clusters.
    """

    directory: Path
    servers: Mapping[str, str]

    def __post_init__(self) -> None:
        for name, servers in self.servers.items():
            (self.directory / f"{name}.toml").write_text(f'"bootstrap.servers" = "{servers}"\n')

    def command(self, *words: str, source: str = "west", target: str = "east") -> list[str]:
        """The command line of `headrace mirror`; words that are no options come first."""
        ours = [f"--from={self.directory}/{source}.toml", f"--to={self.directory}/{target}.toml"]
        return [sys.executable, "-m", "headrace", "mirror", *words, *ours]

    def run(
        self, *words: str, source: str = "west", target: str = "east"
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end; one that does not end says what its threads were doing."""
        with subprocess.Popen(
            self.command(*words, source=source, target=target),
            cwd=ROOT,
            env=os.environ | {"PYTHONFAULTHANDLER": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                out, said = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)
                out, said = process.communicate(timeout=PATIENCE_S)
                raise AssertionError(f"{words} did not end: {out}\n{said}") from None
        return subprocess.CompletedProcess(process.args, process.returncode, out, said)

    @contextmanager
    def running(
        self, *words: str, source: str = "west", target: str = "east"
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Have the command run; it is killed at the end if it is still there."""
        log = self.directory / f"{source}-to-{target}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                self.command(*words, source=source, target=target),
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def log(self, source: str = "west", target: str = "east") -> str:
        """What the commands have said that were had running."""
        return (self.directory / f"{source}-to-{target}.log").read_text()

    def mirrored(self, *words: str, source: str = "west", target: str = "east") -> str:
        """Run the command to its good end; returns what it printed."""
        done = self.run(*words, source=source, target=target)
        assert done.returncode == 0, done.stderr
        return done.stdout


class Writer:
    """Writes transactions, of which some are aborted.

    Args:
        bootstrap: of the cluster.
        name: its transactional.id.
    """

    def __init__(self, bootstrap: str, name: str) -> None:
        self._client = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "linger.ms": 5,
                "compression.type": "lz4",
                "log_level": 2,
            }
        )
        self._client.init_transactions(PATIENCE_S)

    def write(
        self,
        topic: str,
        numbers: Iterable[int],
        *,
        partitions: int,
        commits: bool = True,
        timestamp: int = 1_700_000_000_000,
    ) -> None:
        """Write one transaction of numbered records, with keys, headers, and nulls."""
        self._client.begin_transaction()
        for n in numbers:
            headers = [("n", str(n).encode()), ("empty", None)] if n % 3 == 0 else None
            value = None if n % 10 == 9 else b"%d-" % n + bytes(n % 50)
            key = None if n % 7 == 6 else b"k%d" % n
            while True:
                try:
                    self._client.produce(
                        topic, value, key, n % partitions, timestamp=timestamp + n, headers=headers
                    )
                    break
                except BufferError:
                    self._client.poll(0.1)
        if commits:
            self._client.commit_transaction(PATIENCE_S)
        else:
            self._client.flush(PATIENCE_S)
            self._client.abort_transaction(PATIENCE_S)
