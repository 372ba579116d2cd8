"""The files of deploy/: manifests, commands, environments and the steps of the image."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from headrace.streams.cli.main import main
from tests.support.processes import ROOT

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "systemd/headrace@.service"
COMPOSE: Mapping[str, Any] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
MANIFESTS: Mapping[str, Any] = {
    path.name: yaml.safe_load(path.read_text()) for path in (DEPLOY / "kubernetes").glob("*.yaml")
}
POD: Mapping[str, Any] = MANIFESTS["statefulset.yaml"]["spec"]["template"]["spec"]
CONTAINER: Mapping[str, Any] = POD["containers"][0]


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a Dockerfile."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The list form of ENTRYPOINT, CMD and HEALTHCHECK."""
        found: list[str] = json.loads(self.text[self.text.index("[") :])
        return found


def steps(dockerfile: Path = DEPLOY / "Dockerfile") -> list[Step]:
    """Read the instructions; a backslash at the end of a line continues it."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.M).replace("\\\n", " ")
    return [Step(*line.split(None, 1)) for line in text.splitlines() if line.strip()]


def step(name: str) -> Step:
    """Return the only instruction of this name."""
    (found,) = (step for step in steps() if step.name == name)
    return found


def kubernetes_environment() -> dict[str, str]:
    """The variables of the container, as the pod word-count-0 has them."""
    pod = {"metadata.name": "word-count-0"}
    return {
        one["name"]: one["value"]
        if "value" in one
        else pod[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in CONTAINER["env"]
    }


def unit_lines(path: Path = UNIT) -> list[tuple[str, str]]:
    """The assignments of a unit file, in their order."""
    lines = path.read_text().splitlines()
    return [
        (name, text)
        for line in lines
        if "=" in line and line[0] not in "#["
        for name, _, text in [line.partition("=")]
    ]


def systemd_environment() -> dict[str, str]:
    """The variables of the unit, its environment file and the drop-in for the password."""
    assigned = [*unit_lines(), *unit_lines(DEPLOY / "systemd/password.conf")]
    own = dict(text.split("=", 1) for name, text in assigned if name == "Environment")
    return {**own, **dict(unit_lines(DEPLOY / "systemd/word_count.env"))}


def unit_command() -> list[str]:
    (start,) = (text for name, text in unit_lines() if name == "ExecStart")
    return start.replace("%i", "word_count").split()


def commands() -> Iterator[list[str]]:
    """Every `headrace` command of deploy/, without the program's name."""
    yield step("CMD").words
    yield list(CONTAINER["args"])
    yield unit_command()[1:]
    for service in COMPOSE["services"].values():
        if "command" in service and "entrypoint" not in service:
            yield list(service["command"])


def parse(words: list[str]) -> click.Context:
    """Parse a command line as click does, without running it; raises click.UsageError."""
    context = main.make_context("headrace", list(words))
    group: click.Command = main
    while isinstance(group, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = group.resolve_command(context, rest)
        assert command is not None
        context, group = command.make_context(name, rest, parent=context), command
    return context


def commands_in(page: Path) -> Iterator[list[str]]:
    """The `headrace` commands in the shell blocks of a page, without the program's name.

    What follows the name of the image is a command, too.
    """
    programs = ("headrace", unit_command()[0], CONTAINER["image"].rpartition("/")[2])
    for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            starts = [place for place, word in enumerate(words) if word in programs]
            if starts and words[starts[-1] + 1 :]:
                yield words[starts[-1] + 1 :]
