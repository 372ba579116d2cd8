"""The manifests are valid by the published schemas of Kubernetes and Compose."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.files import COMPOSE, DEPLOY, MANIFESTS

OLDEST, NEWEST = "1.30", "1.37"
RESOURCES = {name: m for name, m in MANIFESTS.items() if m["kind"] != "Kustomization"}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", sorted(RESOURCES))
def test_a_manifest_is_valid(name: str, version: str) -> None:
    assert kubernetes_validate.validate(RESOURCES[name], version, strict=True) == version


def test_a_misspelt_field_of_a_manifest_is_found() -> None:
    wrong: Any = copy.deepcopy(RESOURCES["statefulset.yaml"])
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_the_kustomization_has_every_manifest() -> None:
    assert sorted(MANIFESTS["kustomization.yaml"]["resources"]) == sorted(RESOURCES)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_builds_the_manifests() -> None:
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert built == {one["kind"]: one for one in RESOURCES.values()}


def check_compose(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    return subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)


def test_the_compose_file_is_valid() -> None:
    done = check_compose(DEPLOY / "compose/compose.yaml")
    assert done.returncode == 0, done.stdout


def test_a_misspelt_field_of_the_compose_file_is_found(tmp_path: Path) -> None:
    wrong = copy.deepcopy(dict(COMPOSE))
    wrong["services"]["word-count"]["stop_grace"] = "45s"
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(wrong))
    done = check_compose(tmp_path / "compose.yaml")
    assert done.returncode == 1
    assert "stop_grace" in done.stdout


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="needs docker compose",
)
def test_docker_compose_reads_the_compose_file() -> None:
    command = ["docker", "compose", "--file", str(DEPLOY / "compose/compose.yaml"), "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(COMPOSE["services"])
