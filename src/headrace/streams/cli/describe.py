"""The command `headrace describe`: a topology as text, as generated code or as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from headrace.streams.cli.options import load, said_errors, settings_option, target_argument
from headrace.streams.plan.key_sample import folds_as_run
from headrace.streams.plan.plan import optimized

if TYPE_CHECKING:
    from headrace.streams.app import KafkaStreams


@click.command()
@target_argument
@click.option("--code", is_flag=True, help="The Python source that runs.")
@click.option("--mermaid", is_flag=True, help="A flowchart for Markdown pages.")
@click.option("--svg", is_flag=True, help="A picture, to be kept in a file.")
@settings_option
def describe(
    target: str, *, code: bool, mermaid: bool, svg: bool, settings: dict[str, Any]
) -> None:
    """Print the sub-topologies of an application, their steps, topics and stores.

    The text is the one that Kafka Streams prints for the same topology. Below it stands for each
    fold of a grouped stream whether partial results go to its repartition topic, or why not. With
    --code, print the source that each sub-topology becomes. All is as the application's settings
    have it, and those given here over them. No broker is asked.
    """
    if code + mermaid + svg > 1:
        raise click.UsageError("--code, --mermaid and --svg are forms of one thing: choose one")
    with said_errors():
        app = load(target, settings, needs_cluster=False)
        topology = optimized(app.topology, app.config)
        if code:
            for plan in app.plans:
                click.echo(f"# Sub-topology {plan.id}\n{plan.program.source_code}")
        elif mermaid:
            click.echo(topology.to_mermaid(), nl=False)
        elif svg:
            click.echo(topology.to_svg())
        else:
            click.echo(topology.describe().rstrip())
            for line in _partial_results(app):
                click.echo(line)


def _partial_results(app: KafkaStreams) -> Iterator[str]:
    """Yield for each aggregation of a grouped stream whether it is pre-aggregated, or why not."""
    seen = [
        one
        for one in folds_as_run(app.topology, app.config)
        if one.topic is not None or one.is_declared
    ]
    if seen:
        yield "\nPartial results:"
    for one in seen:
        written = f"written to {one.topic} in place of single records"
        said = f"none, as {one.reason}" if one.combining is None else written
        yield f"  {one.fold.word} into {one.store}: {said}"
