"""A standalone cluster of Spark on this machine: a master and a worker in JVMs of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from headrace.spark_bridge.session import spark_java_home
from tests.support.processes import wait_until

_HOME = Path(pyspark.__file__).parent
_CLASSES = "org.apache.spark.deploy"


@contextmanager
def spark_cluster(directory: Path) -> Iterator[str]:
    """Start a cluster whose executors know this Python and nothing of the tests; yields its URL."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(spark_java_home(directory)),
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Path:
            log = directory / f"{name}.log"
            process = subprocess.Popen(
                [_HOME / "bin" / "spark-class", f"{_CLASSES}.{name}", *arguments],
                cwd=directory,
                env=environment,
                stdout=stack.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            return log

        ports = ("--port", "0", "--webui-port", "0")
        master = start("master.Master", "--host", "127.0.0.1", *ports)
        wait_until(lambda: _url(master) is not None, seconds=120, what="a master")
        url = _url(master)
        assert url is not None
        work = ("--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work"))
        worker = start("worker.Worker", "--host", "127.0.0.1", *ports, *work, url)
        joined = "Successfully registered with master"
        wait_until(lambda: joined in worker.read_text(), seconds=120, what="a worker")
        yield url


def _url(log: Path) -> str | None:
    found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
    return found and found[1]
