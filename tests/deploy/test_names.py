"""Settings, options, exit codes, ports and paths in deploy/ are those of the package."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import yaml

from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.environment import settings_of
from headrace.streams.devbroker.jars import KAFKA_VERSION
from headrace.streams.errors import ConfigError
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.deploy.files import (
    COMPOSE,
    CONTAINER,
    DEPLOY,
    MANIFESTS,
    POD,
    commands,
    kubernetes_environment,
    parse,
    step,
    steps,
    systemd_environment,
    unit_command,
    unit_lines,
)
from tests.support.processes import ROOT

PORT = 9464
ENVIRONMENTS = {
    "image": dict(one.text.split("=", 1) for one in steps() if one.name == "ENV"),
    "kubernetes": kubernetes_environment(),
    "systemd": systemd_environment(),
    "compose": COMPOSE["services"]["word-count"]["environment"],
}
OPERATIONS = (ROOT / "docs/operations.md").read_text()
UNIT_OF = {"s": 1.0, "m": 60.0}


def settings(environment: dict[str, str], secrets: Path) -> StreamsConfig:
    given = dict(settings_of(environment))
    for name in given:
        if name.endswith(".file"):
            (secrets / name).write_text("secret")
            given[name] = str(secrets / name)
    return StreamsConfig.parse({"bootstrap.servers": "kafka:9092", **given, "application.id": "a"})


@pytest.mark.parametrize("place", ENVIRONMENTS)
def test_every_variable_is_a_setting(place: str, tmp_path: Path) -> None:
    assert settings(ENVIRONMENTS[place], tmp_path).application_id == "a"


def test_a_misspelt_variable_is_found() -> None:
    with pytest.raises(ConfigError, match="HEADRACE_STATE_DIR"):
        settings_of({"HEADRACE_STATEDIR": "/var/lib/headrace"})


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_is_one(words: list[str]) -> None:
    assert parse(words).params


def test_a_misspelt_option_is_found() -> None:
    with pytest.raises(click.UsageError, match="--htp"):
        parse(["run", "word_count:app", "--htp", "9464"])


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)([sm]?)", text)
    assert found is not None
    return int(found[1]) * UNIT_OF[found[2] or "s"]


def test_workers_get_longer_than_their_own_limit_to_stop(tmp_path: Path) -> None:
    (unit,) = (text for name, text in unit_lines() if name == "TimeoutStopSec")
    for given, environment in [
        (POD["terminationGracePeriodSeconds"], "kubernetes"),
        (seconds(unit), "systemd"),
        (seconds(COMPOSE["services"]["word-count"]["stop_grace_period"]), "compose"),
    ]:
        own = settings(ENVIRONMENTS[environment], tmp_path).shutdown_timeout_ms / 1000
        assert given > own


def test_tasks_wait_for_a_pod_that_is_restarted(tmp_path: Path) -> None:
    """As long as a stop may take: members of the group are removed after that."""
    config = settings(ENVIRONMENTS["kubernetes"], tmp_path)
    assert config.on_stop == "stay"
    assert config.session_timeout_ms == POD["terminationGracePeriodSeconds"] * 1000


def test_the_unit_restarts_crashes_alone() -> None:
    (prevented,) = (t.split() for name, t in unit_lines() if name == "RestartPreventExitStatus")
    assert f"RestartPreventExitStatus={' '.join(prevented)}`" in OPERATIONS
    restarted = set(ExitCode) - {ExitCode(int(code)) for code in prevented}
    # A second Ctrl-C, which ends with 130, is not sent by a service manager.
    assert restarted - {ExitCode.INTERRUPTED} == {
        ExitCode.STOPPED,
        ExitCode.CRASHED,
        ExitCode.CLIENT,
        ExitCode.RESTARTS,
        ExitCode.STOP_TIMEOUT,
    }


def test_the_probes_are_those_of_the_page_on_monitoring() -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    (block,) = re.findall(r"^```yaml\n(startupProbe:.*?)^```$", page, re.M | re.S)
    for name, probe in yaml.safe_load(block).items():
        own = {**CONTAINER[name]["httpGet"], "port": probe["httpGet"]["port"]}
        assert own == probe["httpGet"]
        assert CONTAINER[name].get("failureThreshold") == probe.get("failureThreshold")
    live = CONTAINER["livenessProbe"]["httpGet"]["path"]
    assert f"http://localhost:{PORT}{live}" in step("HEALTHCHECK").text


def test_every_port_is_the_same() -> None:
    ports = [port for words in commands() for port in re.findall(r"\d{4,5}", " ".join(words))]
    assert set(ports) == {str(PORT)}
    assert step("EXPOSE").text == str(PORT)
    assert CONTAINER["ports"] == [{"name": "http", "containerPort": PORT}]
    assert MANIFESTS["service.yaml"]["spec"]["ports"][0]["port"] == PORT
    scraped = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])["scrape_configs"]
    assert scraped[0]["dns_sd_configs"][0]["port"] == PORT


def test_state_is_on_a_volume() -> None:
    state = ENVIRONMENTS["image"]["HEADRACE_STATE_DIR"]
    assert step("VOLUME").text == state
    assert {"name": "state", "mountPath": state} in CONTAINER["volumeMounts"]
    assert COMPOSE["services"]["word-count"]["volumes"] == [f"state:{state}"]
    assert ENVIRONMENTS["kubernetes"]["HEADRACE_STATE_DIR"] == state
    assert ENVIRONMENTS["systemd"]["HEADRACE_STATE_DIR"] == state
    (directory,) = (text for name, text in unit_lines() if name == "StateDirectory")
    assert f"/var/lib/{directory}" == state


def test_no_process_is_root_and_every_user_is_the_same() -> None:
    user = step("USER").text
    assert user == f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
    assert f"--uid {user.split(':')[0]} " in steps()[1].text
    assert dict(unit_lines())["User"] == "headrace"


def test_files_of_the_secret_are_those_that_are_named() -> None:
    (mount,) = (m for m in CONTAINER["volumeMounts"] if m["name"] == "secrets")
    texts = [*CONTAINER["args"], *kubernetes_environment().values()]
    named = {f for text in texts for f in re.findall(rf"{mount['mountPath']}/([\w-]+)", text)}
    assert named == set(MANIFESTS["secret.yaml"]["stringData"])


def test_images_have_a_version_and_kafka_is_the_tested_one() -> None:
    images = [
        step("FROM").text,
        CONTAINER["image"],
        *(s["image"] for s in COMPOSE["services"].values()),
    ]
    for image in images:
        assert re.search(r":v?\d+\.\d+\.\d+", image), image
    assert COMPOSE["services"]["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"


def test_dashboard_and_alerts_are_those_of_the_package(tmp_path: Path) -> None:
    """The service copies them with Python; its other end is what the servers are told to read."""
    dashboards = COMPOSE["services"]["dashboards"]
    (code,) = dashboards["command"]
    exec(code.replace("/dashboards", str(tmp_path)), {})
    rules = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])["rule_files"]
    (provider,) = yaml.safe_load(COMPOSE["configs"]["dashboards"]["content"])["providers"]
    assert [(tmp_path / Path(rule).name).read_text() for rule in rules] == [
        (ROOT / "src/headrace/streams_web/grafana/alerts.yml").read_text()
    ]
    assert provider["options"]["path"] == "/dashboards"
    assert (tmp_path / "headrace.json").is_file()


def test_the_package_that_the_image_installs_has_the_server() -> None:
    assert "headrace[web]" in (DEPLOY / "requirements.txt").read_text().splitlines()
    assert unit_command()[0].endswith("/bin/headrace")
