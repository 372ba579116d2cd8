"""Count the words of 1.6 MB of English on a real Kafka, and kill the program on the way.

    make demo

Starts a separate Kafka, writes a text into a topic line by line, runs examples/word_count.py as
a process, kills it with SIGKILL in the middle, restarts it, and compares every count with a
plain recount. The exit status is 0 if all are equal, 1 if not, 130 after Ctrl-C. With `--stay`
(`make demo ARGS=--stay`) it then prints the address of its dashboard, and runs until Ctrl-C.
"""

from __future__ import annotations

import fcntl
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from examples.demo_support import story
from examples.demo_support.cluster import Cluster
from examples.demo_support.crash import CountingRun, Kill, Names
from examples.demo_support.process import AppProcess
from examples.demo_support.stay import stay
from examples.demo_support.text import Text, read_file, standard_library
from headrace import StreamsError
from headrace.streams.devbroker import DevBroker, DevBrokerError

PARTITIONS = 4
PREFIX = "demo"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Demo:
    """One run.

    Args:
        console: where to speak.
        cluster: where to run.
        names: of the application and its topics.
        directory: for the log and the local state.
    """

    console: Console
    cluster: Cluster
    names: Names
    directory: Path

    def run(self, text: Text) -> bool:
        """Write, count, kill, continue, compare; return whether every count is correct."""
        lines = len(text.lines)
        topics = [self.names.sentences, self.names.word_counts]
        self.cluster.create(topics, partitions=PARTITIONS)
        with _bar(self.console, "Lines written", lines) as show:
            self.cluster.write(self.names.sentences, text.lines, show)
        began_s = time.monotonic()
        kills = self._count(lines)
        took_s = time.monotonic() - began_s
        self.console.print(f"Counting took {took_s:.1f} s, all starts included.\n")
        counted, expected = self.cluster.counts(self.names.word_counts), text.counts()
        written = {kind: self.cluster.visible(t) for t, kind in self.names.written.items()}
        story.show_words(self.console, counted, expected)
        right = story.show_verdict(self.console, counted, expected)
        self.console.print()
        story.show_topics(self.console, written)
        story.explain(self.console, kills, text, written)
        return right

    def stay(self, text: Text) -> None:
        """Continue to count until Ctrl-C, with a dashboard."""
        stay(
            {
                "application.id": self.names.application,
                "bootstrap.servers": self.cluster.bootstrap,
                "processing.guarantee": "exactly_once_v2",
                "state.dir": str(self.directory / "state"),
            },
            (self.names.sentences, self.names.word_counts),
            lambda lines: self.cluster.write(self.names.sentences, lines, lambda _: None),
            text.lines,
            self.console.print,
        )

    def _count(self, lines: int) -> list[Kill]:
        log = self.directory / "word-count.log"
        log.unlink(missing_ok=True)
        options = {
            "bootstrap-servers": self.cluster.bootstrap,
            "application-id": self.names.application,
            "sentences": self.names.sentences,
            "word-counts": self.names.word_counts,
            "state-dir": str(self.directory / "state"),
        }
        self.console.print(f"The word count is examples/word_count.py; it logs to {log}")
        with _bar(self.console, "Lines committed", lines) as show:
            counting = CountingRun(
                self.cluster,
                self.names,
                lines,
                start=lambda: AppProcess(options, log),
                on_progress=show,
                on_event=self.console.print,
            )
            return counting.run()


@click.command()
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Count the words of this text instead.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".headrace", PREFIX),
    show_default=True,
    help="Where Kafka's data, logs and local state live.",
)
@click.option("--bootstrap-servers", help="Use this Kafka instead of starting one.")
@click.option("--name", help="application.id, and first part of the topics' names.")
@click.option("--stay", "stays", is_flag=True, help="Count on with a page, until Ctrl-C.")
def main(
    path: Path | None,
    directory: Path,
    bootstrap_servers: str | None,
    name: str | None,
    stays: bool,
) -> None:
    """Count words, kill the program on the way, and check every count."""
    console = Console(highlight=False)
    names = Names(name or f"{PREFIX}-{secrets.token_hex(3)}")
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        with _claimed(directory.absolute()) as home:
            text = read_file(path) if path else standard_library(home, report=console.print)
            size = f"{len(text.lines):,} lines, {text.size / 1e6:.1f} MB"
            console.print(f"The text is {text.origin}: {size}.")
            with _kafka(console, home, bootstrap_servers) as bootstrap:
                cluster = Cluster(bootstrap, names.application)
                with _swept(cluster, names, home):
                    demo = Demo(console, cluster, names, home)
                    right = demo.run(text)
                    if stays:
                        demo.stay(text)
    except KeyboardInterrupt:
        console.print("Interrupted. Everything that was started is stopped.")
        sys.exit(130)
    except (DevBrokerError, KafkaException, RuntimeError, StreamsError, TimeoutError) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if right else 1)


@contextmanager
def _claimed(home: Path) -> Iterator[Path]:
    """Prevent a second demo in the same directory."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(
                f"another demo runs in {home}; wait for it, or choose another --dir"
            ) from None
        yield home


@contextmanager
def _kafka(console: Console, home: Path, bootstrap: str | None) -> Iterator[str]:
    """Start a Kafka for this run, on a free port, unless a cluster is given."""
    if bootstrap is not None:
        yield bootstrap
        return
    broker = DevBroker(home / "broker", port=0, report=console.print)
    console.print(f"Starting Kafka in {broker.directory} ...")
    try:
        address = broker.start()
        console.print(f"Kafka runs at {address}.")
        _delete_leftovers(address)
        yield address
    finally:
        _leave_alone()
        if broker.stop():
            console.print("Stopped Kafka.")


def _delete_leftovers(bootstrap: str) -> None:
    """Delete the leftovers of a run that had no time to clean up."""
    cluster = Cluster(bootstrap, PREFIX)
    cluster.delete(PREFIX)
    cluster.close()


@contextmanager
def _swept(cluster: Cluster, names: Names, home: Path) -> Iterator[None]:
    """Remove the run's topics and local state at the end."""
    try:
        yield
    finally:
        _leave_alone()
        cluster.delete(names.application)
        cluster.close()
        shutil.rmtree(home / "state", ignore_errors=True)


@contextmanager
def _bar(console: Console, words: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that sets the progress of a bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(words, total=total)
        yield lambda done: progress.update(task, completed=done)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    _leave_alone()
    raise KeyboardInterrupt


def _leave_alone() -> None:
    """Ignore signals during the cleanup, each step of which has a timeout."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
