"""The group of commands `headrace topics`."""

from __future__ import annotations

import click

from headrace.streams.cli.topics.create import create, set_configs
from headrace.streams.cli.topics.listing import describe, list_topics
from headrace.streams.cli.topics.produce import produce
from headrace.streams.cli.topics.tail import tail


@click.group()
def topics() -> None:
    """Make topics, look into them, and write to them.

    With --app, what the application reads and writes them with is used, and its settings are.
    """


for _command in (create, set_configs, describe, list_topics, produce, tail):
    topics.add_command(_command)
