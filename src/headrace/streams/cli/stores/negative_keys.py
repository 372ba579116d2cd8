"""Keys that begin with a minus are numbers, and no options."""

from __future__ import annotations

import re

import click

_NUMBER = re.compile(r"-[0-9.][0-9.eE+-]*")


class TakesNegativeKeys(click.Command):
    """A command whose arguments may be such keys; other options that are unknown are refused."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        given = args[: args.index("--")] if "--" in args else list(args)
        ctx.ignore_unknown_options = True
        left = super().parse_args(ctx, args)
        for name in ("key", "keys"):
            found = ctx.params.get(name) or ()
            for key in (found,) if isinstance(found, str) else found:
                is_option = key.startswith("-") and key != "-" and _NUMBER.fullmatch(key) is None
                if is_option and key in given:
                    raise click.NoSuchOption(
                        key, f"No such option: {key}; a key that begins so goes behind --", ctx=ctx
                    )
        return left
