"""The image of deploy/Dockerfile, built and run by an engine, or by steps in a clean root."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.deploy.files import Step, step, steps
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until

ENGINE = os.environ.get("HEADRACE_TEST_ENGINE", "docker")
"""The client of a container engine, with the options of docker."""
_COMMAND_TIMEOUT_S = 500
_PACKAGES = "python3,python3-pip,python-is-python3,ca-certificates"
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_METADATA_INSTRUCTIONS = ("EXPOSE", "STOPSIGNAL", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD")
"""Instructions that change no file."""


def has_engine() -> bool:
    """Whether a container engine answers."""
    if shutil.which(ENGINE) is None:
        return False
    return subprocess.run([ENGINE, "version"], capture_output=True, check=False).returncode == 0


def skip_reason() -> str | None:
    """Return why the image cannot be tested on this machine, or None."""
    tools = [t for t in ("mmdebstrap", "unshare", "nsenter") if shutil.which(t) is None]
    if has_engine() or (os.geteuid() == 0 and not tools):
        return None
    return f"needs a container engine, or root and mmdebstrap ({', '.join(tools) or 'not root'})"


class Container(ABC):
    """A container that runs in the background.

    Args:
        log: file of its output.
    """

    def __init__(self, log: Path) -> None:
        self.log = log

    @property
    @abstractmethod
    def pid(self) -> int:
        """Host PID of the container's process 1."""

    @abstractmethod
    def call(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the container."""

    @abstractmethod
    def stop(self, seconds: float) -> int:
        """Send SIGTERM to process 1, kill it after some time, and return the exit code."""

    @abstractmethod
    def discard(self) -> None:
        """Remove the container."""

    def text(self) -> str:
        """Return its output."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def is_running(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()


class Image(ABC):
    """An image, built from a directory with a Dockerfile."""

    @abstractmethod
    def call(
        self, argv: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run the image's program with these arguments until it exits."""

    @abstractmethod
    def start(
        self,
        environment: Mapping[str, str],
        volume: str,
        log: Path,
        program: Sequence[str] | None = None,
    ) -> Container:
        """Run the image's default command on a named volume, with another program if one is given.

        Other directories than the volume and /tmp are read-only.
        """

    @abstractmethod
    def discard(self) -> None:
        """Delete the image and its volumes."""


def build_image(context: Path, home: Path) -> Image:
    """Build the image of a directory; other files go to `home`."""
    return EngineImage(context) if has_engine() else RootImage(context, home)


class EngineImage(Image):
    """Image of a container engine; shares the network with this machine."""

    def __init__(self, context: Path) -> None:
        self.name = f"headrace-test:{secrets.token_hex(4)}"
        self._volumes = set[str]()
        _check([ENGINE, "build", "--network", "host", "--tag", self.name, str(context)])

    def call(
        self, argv: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return _run([ENGINE, "run", "--rm", *self._options(environment), self.name, *argv])

    def start(
        self,
        environment: Mapping[str, str],
        volume: str,
        log: Path,
        program: Sequence[str] | None = None,
    ) -> Container:
        self._volumes.add(volume)
        mount = f"{volume}:{step('VOLUME').text}"
        options = [*self._options(environment), "--volume", mount]
        command = [self.name]
        if program is not None:
            options += ["--entrypoint", program[0]]
            command += [*program[1:], *step("CMD").words]
        run = _check([ENGINE, "run", "--detach", "--read-only", *options, *command])
        return EngineContainer(run.stdout.split()[-1], log)

    def discard(self) -> None:
        for volume in self._volumes:
            _run([ENGINE, "volume", "rm", volume])
        _run([ENGINE, "rmi", self.name])

    @staticmethod
    def _options(environment: Mapping[str, str]) -> list[str]:
        given = [word for one in environment.items() for word in ("--env", "=".join(one))]
        return ["--network", "host", "--tmpfs", "/tmp", *given]


class EngineContainer(Container):
    """Container of an engine."""

    def __init__(self, name: str, log: Path) -> None:
        super().__init__(log)
        self._name = name

    @property
    def pid(self) -> int:
        found = _run([ENGINE, "inspect", "--format", "{{.State.Pid}}", self._name])
        return int(found.stdout or -1) or -1

    def call(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return _run([ENGINE, "exec", self._name, *argv])

    def stop(self, seconds: float) -> int:
        _check([ENGINE, "stop", "--time", str(int(seconds)), self._name])
        return int(_check([ENGINE, "wait", self._name]).stdout)

    def discard(self) -> None:
        self._save_log()
        _run([ENGINE, "rm", "--force", self._name])

    def text(self) -> str:
        self._save_log()
        return super().text()

    def _save_log(self) -> None:
        done = _run([ENGINE, "logs", self._name])
        if done.returncode == 0:
            self.log.write_text(done.stdout + done.stderr)


class RootImage(Image):
    """A Debian root in which the steps of the Dockerfile are executed, as an engine does it.

    Args:
        context: directory of the Dockerfile.
        home: where the root and the volumes go.
    """

    def __init__(self, context: Path, home: Path) -> None:
        self._context, self._home, self.root = context, home, home / "root"
        home.mkdir()
        self._steps = steps(context / "Dockerfile")
        self.environment = {"PATH": _PATH}
        self.user, self.directory = "0:0", "/"
        for one in self._steps:
            self._execute(one)

    def call(
        self, argv: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        command = [*self._words("ENTRYPOINT"), *argv]
        return _run(self._enter(command, environment, user=self.user, read_only=True))

    def start(
        self,
        environment: Mapping[str, str],
        volume: str,
        log: Path,
        program: Sequence[str] | None = None,
    ) -> Container:
        target = self._one("VOLUME").text
        source = self._home / "volumes" / volume
        if not source.exists():
            # A new volume begins as the directory of the image, with its owner.
            source.parent.mkdir(exist_ok=True)
            _check(["cp", "--archive", f"{self.root}{target}", str(source)])
        command = self._enter(
            [*(program or self._words("ENTRYPOINT")), *self._words("CMD")],
            environment,
            user=self.user,
            read_only=True,
            volume=(source, target),
        )
        with log.open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        return RootContainer(process, self, environment, log)

    def discard(self) -> None:
        shutil.rmtree(self._home)

    def with_environment(self, argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Return a command that runs another one with the image's variables and directory."""
        given = [f"{n}={text}" for n, text in {**self.environment, **environment}.items()]
        return ["env", "-i", "-C", self.directory, *given, *argv]

    def _one(self, name: str) -> Step:
        return [one for one in self._steps if one.name == name][-1]

    def _words(self, name: str) -> list[str]:
        one = self._one(name)
        return one.words if one.text.startswith("[") else ["/bin/sh", "-c", one.text]

    def _execute(self, one: Step) -> None:
        if one.name == "FROM":
            self._bootstrap(one.text)
        elif one.name == "RUN":
            argv = ["/bin/sh", "-c", one.text]
            _check(self._enter(argv, _settings_of_pip(), user=self.user, read_only=False))
        elif one.name == "WORKDIR":
            self.directory = one.text
            self._at(one.text).mkdir(parents=True, exist_ok=True)
        elif one.name == "COPY":
            *patterns, target = one.text.split()
            for found in sorted(f for pattern in patterns for f in self._context.glob(pattern)):
                shutil.copy(found, self._at(target))
        elif one.name == "USER":
            self.user = one.text
        elif one.name == "ENV":
            name, _, text = one.text.partition("=")
            self.environment[name] = text
        else:
            assert one.name in _METADATA_INSTRUCTIONS, f"unknown instruction {one.name}"

    def _at(self, path: str) -> Path:
        return Path(f"{self.root}{Path(self.directory, path)}")

    def _bootstrap(self, image: str) -> None:
        found = re.fullmatch(r"python:(\d+\.\d+)\.\d+-slim-(\w+)", image)
        assert found is not None, image
        python, release = found.groups()
        _check(
            ["mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(self.root)]
        )
        for marker in self.root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            marker.unlink()
        # So that packages come from where this machine gets its own.
        bundle = os.environ.get("SSL_CERT_FILE", _BUNDLE)
        for source, target in [
            (bundle, _BUNDLE),
            *((path, path) for path in ("/etc/pip.conf", "/etc/resolv.conf", "/etc/hosts")),
        ]:
            if Path(source).exists():
                shutil.copyfile(source, f"{self.root}{target}")
        argv = ["python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = _check(self._enter(argv, {}, user="0:0", read_only=False))
        assert done.stdout.strip() == python, f"{image} has another Python than {release}"

    def _enter(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        user: str,
        read_only: bool,
        volume: tuple[Path, str] | None = None,
    ) -> list[str]:
        """Return a command that runs another one as process 1 of the root."""
        root = str(self.root)
        lines = [
            f"mount --bind {root} {root}",
            f"mount -o remount,bind,ro {root}" if read_only else ":",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            f"mount -t tmpfs tmp {root}/tmp",
            f"mount --bind {volume[0]} {root}{volume[1]}" if volume else ":",
            f'exec chroot --userspec={user} {root} "$@"',
        ]
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        script = ["sh", "-ec", "\n".join(lines), "sh"]
        return [*unshare, *script, *self.with_environment(argv, environment)]


class RootContainer(Container):
    """Processes in a root, with a process namespace of their own."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        image: RootImage,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        super().__init__(log)
        self._process, self._image, self._environment = process, image, environment

    @property
    def pid(self) -> int:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        found = children.read_text().split() if self._process.poll() is None else []
        return int(found[0]) if found else -1

    def call(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        user, group = self._image.user.split(":")
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--root"]
        who = [f"--setuid={user}", f"--setgid={group}"]
        return _run([*enter, *who, "--", *self._image.with_environment(argv, self._environment)])

    def stop(self, seconds: float) -> int:
        pid = self.pid
        if pid > 0:
            os.kill(pid, signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.discard()
            return 128 + signal.SIGKILL

    def discard(self) -> None:
        pid = self.pid
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        wait_until(lambda: pid < 0 or not Path(f"/proc/{pid}").exists(), what="its end")


def _settings_of_pip() -> dict[str, str]:
    """Return pip's environment variables without paths, and the root's certificates."""
    own = {n: t for n, t in os.environ.items() if n.startswith("PIP_") and "/" not in t}
    return {**own, "PIP_CERT": _BUNDLE}


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=max(_COMMAND_TIMEOUT_S, PATIENCE_S),
    )


def _check(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    done = _run(command)
    assert done.returncode == 0, f"{command}:\n{(done.stdout + done.stderr)[-6000:]}"
    return done
