"""Kafka Streams as a peer: its jars, and one small application, compiled once per version."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.jobs.job import PARAMETERS
from benchmarks.peers.peer import CACHE_BYTES, COMMIT_MS, RunSpec, Variant
from headrace.streams.devbroker.jars import Library, Report, cache_home, jars_of
from headrace.streams.devbroker.java import Java, find_java

SOURCE = Path(__file__).with_name("java") / "StreamsPeer.java"
COMPILE_TIMEOUT_S = 300


class NoCompilerError(Exception):
    """Java runs programs, but cannot compile them."""


class KafkaStreamsPeer:
    """Starts the Java application.

    Args:
        report: called with messages about downloads and compilation.
        version: version of Kafka Streams.
        settings: settings of Kafka Streams as name=value, after those of the variant.

    Raises:
        JavaNotFoundError: Java is missing.
        JarsUnavailableError: the jars could not be downloaded.
        NoCompilerError: the compiler is missing.
    """

    def __init__(self, report: Report, version: str, settings: Sequence[str] = ()) -> None:
        self._java = find_java()
        artifacts = (("org.apache.kafka", "kafka-streams", version),)
        library = Library("Kafka Streams", "kafka-streams", version, 85, artifacts)
        self._jars = jars_of(library, self._java, report=report)
        self._classes = _compiled(self._java, self._jars, version, report)
        self._settings = settings

    def command(self, variant: Variant, spec: RunSpec) -> list[str]:
        """Return the command that runs one job until SIGTERM."""
        return [
            # The JVM's own choice of heap and collector, as most users start it.
            *(str(self._java.executable), "-cp", f"{self._classes}{os.pathsep}{self._jars}/*"),
            *(f"-D{name}={value}" for name, value in PARAMETERS.items()),
            *("StreamsPeer", spec.kind, spec.bootstrap, spec.run, spec.source, spec.output),
            *(str(spec.state), variant.guarantee, str(COMMIT_MS)),
            *(str(CACHE_BYTES if variant.caches else 0), str(variant.workers)),
            *self._settings,
        ]


def _compiled(java: Java, jars: Path, version: str, report: Report) -> Path:
    """Return the directory of classes; source, Java and Kafka Streams determine its name."""
    text = SOURCE.read_bytes() + f"{java.version} {version}".encode()
    target = cache_home() / "headrace" / f"streams-peer-{hashlib.sha256(text).hexdigest()[:12]}"
    if target.is_dir():
        return target
    compiler = java.home / "bin" / "javac"
    found = str(compiler) if compiler.is_file() else shutil.which("javac")
    if found is None:
        raise NoCompilerError(f"javac is missing in {java.home}. Install a JDK.")
    report(f"Compiling the application for Kafka Streams {version} (once)")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".compile-") as work:
        classes = Path(work, "classes")
        command = [found, "-cp", f"{jars}/*", "-d", str(classes), str(SOURCE)]
        subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)
        try:
            classes.rename(target)
        except OSError:
            # Another process has compiled it in the meantime.
            if not target.is_dir():
                raise
    return target
