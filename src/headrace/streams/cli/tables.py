"""Tables on terminals, and the same as JSON: what several commands print."""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Table

_WIDE = 1 << 20

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def columns(*names: str, numbers: Iterable[str] = ()) -> Table:
    """A table without lines; numbers stand on the right."""
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    return table


def show(table: Table) -> None:
    """Print it as wide as it is, so that it can be piped."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        # That has no width; rich takes it to have 80 columns, and would cut the rest off.
        console = Console(highlight=False, soft_wrap=True, width=_WIDE)
    console.print(table)
