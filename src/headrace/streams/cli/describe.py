"""The command `headrace describe`: a topology as text, as generated code or as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from headrace.streams.cli.options import cli_errors, load, settings_option, target_argument
from headrace.streams.plan.key_sample import folds_as_run
from headrace.streams.plan.plan import optimized

if TYPE_CHECKING:
    from headrace.streams.app import KafkaStreams


@click.command()
@target_argument
@click.option("--code", is_flag=True, help="Print the generated Python source.")
@click.option("--mermaid", is_flag=True, help="Print a flowchart for Markdown pages.")
@click.option("--svg", is_flag=True, help="Print an SVG image.")
@settings_option
def describe(
    target: str, *, code: bool, mermaid: bool, svg: bool, settings: dict[str, Any]
) -> None:
    """Print the sub-topologies of an application with operators, topics and stores.

    The text is the same that Kafka Streams prints for the topology. Below, each aggregation of a
    grouped stream states whether partial aggregates are written to its repartition topic, or why
    not. The settings of the application and of this command apply. No broker is contacted.
    """
    if code + mermaid + svg > 1:
        raise click.UsageError("--code, --mermaid and --svg exclude each other.")
    with cli_errors():
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
        combining = f"none, as {one.reason}" if one.combining is None else written
        yield f"  {one.fold.word} into {one.store}: {combining}"
