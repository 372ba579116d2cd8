"""Kafka's jars, downloaded once per user and version with Maven, or with Ivy from pyspark."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.streams.devbroker.errors import JarsUnavailableError
from headrace.streams.devbroker.java import Java

_PASSWORD = "changeit"  # noqa: S105 - Java's own default; the content is public
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2


def trust_options(directory: Path) -> list[str]:
    """Write a trust store; return Java's options for it, none if Python trusts no authority.

    Java installed by the system trusts the system's authorities, including a company's proxy; Java
    from a wheel only has its own list. So the authorities that Python trusts are written to a Java
    key store (format JKS, version 2: certificates only).
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    path = directory / "trust.jks"
    path.write_bytes(_jks(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def _jks(certificates: list[bytes]) -> bytes:
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _utf(f"ca-{number}")
        body += struct.pack(">Q", 0) + _utf("X.509")
        body += struct.pack(">I", len(certificate)) + certificate
    seal = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(seal, usedforsecurity=False).digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


KAFKA_VERSION = "4.3.1"
_LOG4J_VERSION = "2.25.4"
_COPY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FETCH_TIMEOUT_S = 900
_TAIL_LINES = 15

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Library:
    """Jars that are downloaded together.

    Args:
        directory: directory in the cache, without the version.
        artifacts: group, name and version of each requested jar, whose dependencies are included.
    """

    title: str
    directory: str
    version: str
    megabytes: int
    artifacts: tuple[tuple[str, str, str], ...]


KAFKA = Library(
    "Kafka",
    "kafka",
    KAFKA_VERSION,
    45,
    (
        ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        # Not a dependency of the first artifact, but Kafka cannot log without it.
        ("org.apache.logging.log4j", "log4j-slf4j-impl", _LOG4J_VERSION),
    ),
)


def jars_of(library: Library, java: Java, *, report: Report) -> Path:
    """Return the directory of a library's jars, downloading them if it is missing.

    A download is renamed when it is complete, under a lock, so that neither an interruption nor a
    second process leaves an incomplete set.
    """
    target = cache_home() / "headrace" / f"{library.directory}-{library.version}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(f"{target.name}.lock")):
        if not target.is_dir():
            _fetch(library, java, target, report=report)
    return target


def cache_home() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification requires that relative paths are ignored.
    return Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"


@contextmanager
def locked(path: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(library: Library, java: Java, target: Path, *, report: Report) -> None:
    failures: list[str] = []
    what, size = f"{library.title} {library.version}", f"some {library.megabytes} MB"
    for name, command in _tools(library, java):
        report(f"Fetching {what} with {name} ({size}, once per user)")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as work:
            libraries = Path(work, "lib")
            failure = _run(library, command(Path(work)), java, Path(work), libraries)
            if failure is None:
                libraries.rename(target)
                return
        failures.append(f"{name}: {failure}")
    raise JarsUnavailableError(_advice(library, failures, target))


def _tools(library: Library, java: Java) -> list[tuple[str, Callable[[Path], list[str]]]]:
    tools: list[tuple[str, Callable[[Path], list[str]]]] = []
    if mvn := shutil.which("mvn"):
        tools.append(("Maven", lambda work: _maven_command(library, mvn, work)))
    if ivy := _ivy_jar():
        tools.append(("Ivy", lambda work: _ivy_command(library, java, ivy, work)))
    return tools


def _maven_command(library: Library, mvn: str, work: Path) -> list[str]:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, name, version in library.artifacts
    )
    pom = work / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>headrace</groupId>"
        "<artifactId>dev-broker</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
    options = ["--batch-mode", "--quiet", "--strict-checksums", "--file", str(pom)]
    goal_options = [f"-DoutputDirectory={work / 'lib'}", "-DincludeScope=runtime"]
    return [mvn, *options, _COPY_PLUGIN, *goal_options]


def _ivy_jar() -> Path | None:
    """Return the Ivy jar of an installed pyspark, without importing pyspark."""
    spec = importlib.util.find_spec("pyspark")
    roots = (spec.submodule_search_locations or []) if spec else []
    found = [jar for root in roots for jar in sorted(Path(root, "jars").glob("ivy-*.jar"))]
    return found[-1] if found else None


def _ivy_command(library: Library, java: Java, ivy: Path, work: Path) -> list[str]:
    dependencies = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->default"/>'
        for group, name, version in library.artifacts
    )
    module = work / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0"><info organisation="headrace" module="dev-broker"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>\n"
    )
    pattern = work / "lib" / "[artifact]-[revision](-[classifier]).[ext]"
    options = ["-warn", "-confs", "default", "-cache", str(work / "cache")]
    launcher = [str(java.executable), *_trust_options(java, work), "-jar", str(ivy)]
    return [*launcher, *options, "-ivy", str(module), "-retrieve", str(pattern)]


def _trust_options(java: Java, work: Path) -> list[str]:
    return trust_options(work) if java.from_wheel else []


def _run(
    library: Library, command: list[str], java: Java, work: Path, libraries: Path
) -> str | None:
    """Run a tool; return None if it delivered the jars, else the reason and its last output."""
    options = " ".join([os.environ.get("MAVEN_OPTS", ""), *_trust_options(java, work)]).strip()
    environment = os.environ | {"JAVA_HOME": str(java.home), "MAVEN_OPTS": options}
    try:
        result = subprocess.run(
            command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return f"{command[0]} does not start: {error}"
    except subprocess.TimeoutExpired:
        return f"it did not end within {_FETCH_TIMEOUT_S} seconds"
    jars = [f"{name}-{version}.jar" for _, name, version in library.artifacts]
    missing = [name for name in jars if not libraries.joinpath(name).is_file()]
    if result.returncode == 0 and not missing:
        return None
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    tail = "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
    lack = f", without {', '.join(missing)}" if missing else ""
    return f"it ended with status {result.returncode}{lack}. The end of its output:\n{tail}"


def _advice(library: Library, failures: list[str], target: Path) -> str:
    artifacts = ", ".join(":".join(artifact) for artifact in library.artifacts)
    by_hand = f"or copy {artifacts} and their dependencies to {target}"
    if not failures:
        return (
            f"{library.title} {library.version} is not in the cache and cannot be fetched: no mvn "
            "on PATH and no pyspark in this Python.\n"
            f"Install Maven; or: pip install 'headrace[broker]'; {by_hand}"
        )
    return (
        f"{library.title} {library.version} could not be fetched.\n"
        + "\n".join(failures)
        + "\nCheck the network (mirrors and proxies: Maven's settings.xml) and start again; "
        + by_hand
    )
