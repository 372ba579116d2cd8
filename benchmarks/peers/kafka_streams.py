"""Kafka Streams as a peer: its jars, and the one small application, compiled once."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.peers.peer import CACHE_BYTES, COMMIT_MS, Order, Variant
from headrace.streams.devbroker.jars import KAFKA_VERSION, Library, Report, cache_home, jars_of
from headrace.streams.devbroker.java import Java, find_java

SOURCE = Path(__file__).with_name("java") / "StreamsPeer.java"
LIBRARY = Library(
    "Kafka Streams",
    "kafka-streams",
    KAFKA_VERSION,
    85,
    (("org.apache.kafka", "kafka-streams", KAFKA_VERSION),),
)
COMPILE_TIMEOUT_S = 300


class NoCompilerError(Exception):
    """There is a Java that runs programs, and none that compiles them."""


class KafkaStreamsPeer:
    """Starts the Java application.

    Args:
        report: is told what is fetched and compiled.

    Raises:
        JavaNotFoundError: there is no Java.
        JarsUnavailableError: the jars could not be fetched.
        NoCompilerError: there is no compiler.
    """

    def __init__(self, report: Report) -> None:
        self._java = find_java()
        self._jars = jars_of(LIBRARY, self._java, report=report)
        self._classes = _compiled(self._java, self._jars, report)

    def command(self, variant: Variant, order: Order) -> list[str]:
        """The command that runs one job until SIGTERM."""
        return [
            # As many would start it: the JVM's own choice of heap and collector.
            *(str(self._java.executable), "-cp", f"{self._classes}{os.pathsep}{self._jars}/*"),
            *("StreamsPeer", order.kind, order.bootstrap, order.run, order.source, order.output),
            *(str(order.state), variant.guarantee, str(COMMIT_MS)),
            *(str(CACHE_BYTES if variant.caches else 0), str(variant.workers)),
        ]


def _compiled(java: Java, jars: Path, report: Report) -> Path:
    """The directory of classes: one for each text of the program and version of Java."""
    text = SOURCE.read_bytes() + f"{java.version} {KAFKA_VERSION}".encode()
    target = cache_home() / "headrace" / f"streams-peer-{hashlib.sha256(text).hexdigest()[:12]}"
    if target.is_dir():
        return target
    compiler = java.home / "bin" / "javac"
    found = str(compiler) if compiler.is_file() else shutil.which("javac")
    if found is None:
        raise NoCompilerError(f"{java.home} has no javac; install a JDK to compare with Java")
    report("Compiling the Kafka Streams application (once)")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".compile-") as work:
        classes = Path(work, "classes")
        command = [found, "-cp", f"{jars}/*", "-d", str(classes), str(SOURCE)]
        subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)
        try:
            classes.rename(target)
        except OSError:
            # Somebody else has compiled the same meanwhile.
            if not target.is_dir():
                raise
    return target
