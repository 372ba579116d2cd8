"""Entry point of the command `headrace`, which handles stop signals before it imports the rest."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from types import FrameType
from typing import Any

from headrace.streams.states import rare_collections

_LASTING = frozenset({"dev", "feed", "mirror"})
"""Commands that run until they are stopped. `run` has its own bounded log."""


def main() -> None:
    if sys.argv[1:2] == ["run"] or (sys.argv[1:2] == ["mirror"] and sys.argv[2:3] != ["offsets"]):
        _stop_cleanly_at_once()
    with rare_collections():
        from headrace.streams import logs
        from headrace.streams.cli.main import main as command

        with _unread_errors(sys.argv[1:]):
            logs.configure()  # to standard error, so that what a command prints can be piped
            command()


@contextmanager
def _unread_errors(arguments: Sequence[str]) -> Iterator[None]:
    """Prevent a long-running command from blocking on a standard error that nothing reads."""
    if arguments[:1] == ["run"] or not ({*arguments[:1]} & _LASTING or "--follow" in arguments):
        yield
        return
    from headrace.streams import logs

    written: Any = logs.bounded(sys.stderr)
    try:
        with redirect_stderr(written):
            yield
    finally:
        written.close()


def _stop_cleanly_at_once() -> None:
    """Exit on a signal until the command installs its own handlers: nothing must be closed yet."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as set by `nohup`
            signal.signal(number, stop)
