"""Tables on terminals, and the same as JSON: what several commands print."""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def columns(*names: str, numbers: Iterable[str] = ()) -> Table:
    """A table without lines; numbers stand on the right."""
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    return table


def show(table: Table) -> None:
    """Print it as wide as it is, so that it can be piped."""
    Console(highlight=False, soft_wrap=True).print(table)
