"""Quix Streams as a peer, in a separate environment: it requires another Kafka client."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.peer import COMMIT_MS, RunSpec, Variant
from headrace.streams.devbroker.jars import cache_home

VERSION = "3.28.1"
PROGRAM = Path(__file__).with_name("quix_app.py")
KINDS = ("words", "sum", "stateless")
INSTALL_TIMEOUT_S = 600
TAIL = 400


class QuixUnavailableError(Exception):
    """Quix could not be installed."""


class QuixPeer:
    """Starts the application of Quix.

    Args:
        report: called with a message before the installation.

    Raises:
        QuixUnavailableError: Quix could not be installed.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._python = _environment(report) / "bin" / "python"

    def command(self, variant: Variant, spec: RunSpec) -> list[str]:
        """Return the command that runs one job until SIGTERM."""
        return [
            *(str(self._python), str(PROGRAM), spec.kind, spec.bootstrap, spec.run),
            *(spec.source, spec.output, str(spec.state)),
            *(variant.guarantee, str(COMMIT_MS / 1000)),
        ]


def _environment(report: Callable[[str], None]) -> Path:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    target = cache_home() / "headrace" / f"quix-{VERSION}-python-{version}"
    if (target / "installed").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    report(f"Installing Quix Streams {VERSION} into a separate environment (once per user)")
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    with tempfile.TemporaryFile("w+") as output:
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(target)],
            [*pip, f"quixstreams=={VERSION}"],
        ):
            try:
                subprocess.run(
                    command, check=True, stdout=output, stderr=output, timeout=INSTALL_TIMEOUT_S
                )
            except (subprocess.SubprocessError, OSError) as error:
                output.seek(0)
                raise QuixUnavailableError(f"{error}\n{output.read()[-TAIL:]}") from error
    (target / "installed").touch()
    return target
