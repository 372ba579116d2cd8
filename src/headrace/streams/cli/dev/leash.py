"""What `headrace dev` has started ends with it, also where it is killed.

    python -m headrace.streams.cli.dev.leash FILE run my_app:app …   a command of `headrace`
    python -m headrace.streams.cli.dev.leash FILE --tidy SETTINGS [BROKER]

FILE is the end of a pipe whose other end `headrace dev` alone has open and never writes to: it ends
when that process does, however it ends. A command is told to end by SIGTERM then, and killed when
it takes long. With ``--tidy`` what no command has is put away: the directory with the settings, and
the broker, where `headrace dev` has started it or was about to.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

STOP_S = 40.0
"""More than an application may take to stop, unless it says otherwise."""


def _await_end(file: int) -> None:
    while os.read(file, 64):
        pass


def _follow(file: int) -> None:
    _await_end(file)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _tidy(settings: Path, brokers: list[str]) -> None:
    shutil.rmtree(settings, ignore_errors=True)
    if brokers:
        from headrace.streams.devbroker.cluster import DevBroker

        DevBroker(brokers[0]).stop()


def main() -> None:
    """Be a command on a leash, or what tidies up."""
    file, arguments = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(file, False)
    if arguments[0] == "--tidy":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal may go first
        _await_end(file)
        _tidy(Path(arguments[1]), arguments[2:])
        return
    threading.Thread(target=_follow, args=(file,), name="headrace-leash", daemon=True).start()
    sys.argv = ["headrace", *arguments]
    runpy.run_module("headrace", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
