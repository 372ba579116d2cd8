"""The command `headrace mirror offsets`."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.streams.cli.mirroring.sides import names_of, settings_of_sides, sides_options
from headrace.streams.cli.options import confirm, said_errors


@click.command()
@click.argument("group")
@sides_options
@click.option("--back", is_flag=True, help="From the target back to the source.")
@click.option(
    "--last-known",
    is_flag=True,
    help="The source is gone: take what the mirror has noted of the group (--groups).",
)
@click.option("--dry-run", is_flag=True, help="Say what would be set, and end.")
@click.option("--yes", is_flag=True, help="Do it without a question.")
def offsets(
    group: str,
    source_file: Path | None,
    target_file: Path | None,
    named: str | None,
    name: str | None,
    given: tuple[str, ...],
    back: bool,
    last_known: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move a stopped group: the next record that it reads is the next one at the target, too.

    --from, --to and --name are those of the mirror, with --back too. What would be set is printed
    first. The group must have no members on either cluster.
    """
    names = names_of(source_file, target_file, named)
    assert source_file is not None
    assert target_file is not None
    if back and last_known:
        raise click.UsageError("--last-known is for a source that is gone, and --back goes there")
    from headrace.streams.kafka.broker_contact import reach
    from headrace.streams.mirror.mirror import config_of, side_of, sides
    from headrace.streams.mirror.move import Mover

    mirror = name or "-to-".join(names)
    with said_errors():
        settings = settings_of_sides(source_file, target_file, given)
        configs = config_of(mirror, settings[0]), config_of(mirror, settings[1])
        for config in configs[1:] if last_known else configs:
            reach(config.admin_config())
        timeout_s = configs[1].task_timeout_ms / 1000
        if last_known:
            mover = Mover(
                mirror,
                None,
                side_of(configs[1], names[1], timeout_s=timeout_s),
                source_name=names[0],
                back=back,
            )
        else:
            both = sides(configs, names, timeout_s=timeout_s)
            mover = Mover(mirror, *both, source_name=names[0], back=back)
        plan = mover.plan(group)
        click.echo("\n".join(plan.lines()))
        if dry_run:
            click.echo("Nothing was set (--dry-run).")
            return
        plan.offsets()
        if not yes:
            confirm()
        mover.carry_out(plan)
        click.echo(f"Done. The group {group} goes on at {plan.target}.")
