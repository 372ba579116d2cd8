"""The command `headrace transactions`: hanging transactions of an application, and their end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import click

from headrace.state.directory import StateDirectory
from headrace.streams.admin.hanging import Undecided, end_transactions, find_undecided
from headrace.streams.admin.reset import local_errors, locked_state, refuse_members
from headrace.streams.app import KafkaStreams
from headrace.streams.cli.known_topics import Known
from headrace.streams.cli.options import (
    Consent,
    cli_errors,
    columns,
    consent_options,
    load,
    settings_option,
    show,
    state_dir_option,
    target_argument,
)
from headrace.streams.errors import ConfigError

_SETTLED_S = 5.0
"""Seconds to wait for abort markers: brokers report an abort before all markers are written."""
_RECHECK_S = 0.1

topic_option = click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC",
    help="A further topic to check, such as a topic that is named by a function; may be repeated.",
)  # fmt: skip


@click.group()
def transactions() -> None:
    """Find and abort hanging transactions of an application."""


@transactions.command("list")
@target_argument
@topic_option
@settings_option
def list_open(target: str, topics: tuple[str, ...], settings: dict[str, Any]) -> None:
    """Print open transactions that block an application.

    A running application always has open transactions, and other producers may have open
    transactions in its topics. Transactions of a killed worker are aborted automatically, by
    default within a minute, see producer.transaction.timeout.ms. Transactions that stay open for
    longer are hanging.
    """
    with cli_errors():
        _TransactionSearch(load(target, settings), topics).show()


@transactions.command()
@target_argument
@topic_option
@click.option("--worker", "workers", multiple=True, metavar="ID",
              help="Worker to abort, the `worker` in its log; may be repeated.  "
              "[default: all workers known in state.dir of this host]")  # fmt: skip
@consent_options
@state_dir_option
@settings_option
def abort(
    target: str,
    topics: tuple[str, ...],
    workers: tuple[str, ...],
    consent: Consent,
    settings: dict[str, Any],
) -> None:
    """Abort open transactions of a stopped application.

    Each worker's identity joins a further transaction, which writes a record to each blocked
    partition of the application and is aborted. Readers of committed records do not see these
    records. If something is aborted, the local state of the tasks on this host is removed,
    because it may contain aborted changes, and restored at the next start.
    """
    with cli_errors():
        app = load(target, settings)
        config = app.config
        if not config.exactly_once:
            raise ConfigError(
                "the application has no transactions, because processing.guarantee is at_least_once"
            )
        search = _TransactionSearch(app, topics, is_written=True)
        found = search.show()
        if found.is_empty:
            return
        with local_errors():
            directory = StateDirectory(config.state_dir, config.application_id)
            names = workers or _known_workers(directory)
            tasks = sorted(path for path in directory.task_paths() if path.exists())
        click.echo(f"To be aborted: open transactions of {', '.join(names)}")
        click.echo("Local state to remove on this host:")
        click.echo("\n".join(f"  {path}" for path in tasks) or "  none")
        group = config.application_id
        if not consent.is_given(lambda: refuse_members(group, search.cluster.members(group))):
            return
        with locked_state(config.state_dir, config.application_id) as held:
            left = _end(search, names)
            for one in held if left.has_progressed(found) else ():
                if one.path in tasks:
                    one.remove()
        if not left.is_empty:
            search.show()
            raise click.ClickException(
                "transactions are still open, of a worker on another host or of another "
                "application. Set --worker to the `worker` in that host's log."
            )
        click.echo(
            "Done. The application can be started. On other hosts remove "
            f"{config.state_dir / config.application_id / 'tasks'} before the start, because it "
            "may contain aborted changes."
        )


class _TransactionSearch:
    """Search for open transactions in the application's topics.

    Args:
        topics: further topics to check.
        is_written: whether to omit topics that the application only reads.
    """

    def __init__(
        self, app: KafkaStreams, topics: Iterable[str], *, is_written: bool = False
    ) -> None:
        self.app = app
        known = Known.by(app)
        self.cluster = known.admin()
        own = {**known.own, **dict.fromkeys(topics, "writes")}
        self._own = {name: does for name, does in own.items() if not is_written or does != "reads"}

    def find(self) -> Undecided:
        inputs = {topic for plan in self.app.plans for topic in plan.topics.all_sources}
        group = self.app.config.application_id
        return find_undecided(self.cluster, group, self._own, inputs=inputs)

    def show(self) -> Undecided:
        found = self.find()
        if found.is_empty:
            click.echo("No transaction is open.")
            return found
        numbers = ("stable end", "end")
        table = columns("partition", *numbers, "the application", numbers=numbers)
        for tp, (stable, end) in found.partitions.items():
            table.add_row(str(tp), str(stable), str(end), self._own[tp.topic])
        for tp in found.offsets:
            table.add_row(str(tp), "", "", "commits its offset")
        show(table)
        return found


def _known_workers(directory: StateDirectory) -> list[str]:
    names = directory.identities()
    if not names:
        raise ConfigError(
            f"no worker of this host is known in {directory.root}. Set --worker to the `worker` "
            "in the log."
        )
    return names


def _end(search: _TransactionSearch, names: Iterable[str]) -> Undecided:
    """End the open transactions of workers; return the remaining open transactions."""
    config, left = search.app.config, search.find()
    for name in names:
        end_transactions(
            config.producer_config(f"{config.application_id}-{name}"),
            left,
            member=config.restore_config(),
            timeout_s=config.task_timeout_ms / 1000,
        )
        give_up_at = time.monotonic() + _SETTLED_S
        while not (left := search.find()).is_empty and time.monotonic() < give_up_at:
            time.sleep(_RECHECK_S)
        if left.is_empty:
            break
    return left
