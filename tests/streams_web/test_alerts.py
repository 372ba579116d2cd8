"""Prometheus reads the rules and the configuration of the Compose file, and each alert fires."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import COMPOSE
from tests.streams_web.test_grafana import GRAFANA, RULES

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")

HEALTHY = {
    'up{job="headrace"}': "1x60",
    'headrace_task_input_lag_records{job="headrace",topic="orders"}': "50x60",
    'headrace_task_input_behind_seconds{job="headrace",topic="orders"}': "2x60",
    'headrace_task_running{job="headrace",task="0_0"}': "1x60",
    'headrace_worker_report_age_seconds{job="headrace",worker="0"}': "0.5x60",
    'headrace_worker_restarts_total{job="headrace",worker="0"}': "2x60",
    'headrace_worker_aborted_transactions_total{job="headrace",worker="0"}': "0x60",
    'headrace_worker_commit_latency_seconds_count{job="headrace",worker="0"}': "0+60x60",
    'headrace_node_dropped_records_total{job="headrace",node="sum",reason="late"}': "7x60",
}
"""Values of each series, minute by minute."""
WRONG = {
    "HeadraceNotLive": {"up": "0x60"},
    "HeadraceLagGrows": {"headrace_task_input_lag_records": "20000+100x60"},
    "HeadraceBehind": {"headrace_task_input_behind_seconds": "301x60"},
    "HeadraceTasksNotRunning": {"headrace_task_running": "0x60"},
    "HeadraceWorkerUnresponsive": {"headrace_worker_report_age_seconds": "61x60"},
    "HeadraceWorkerRestarts": {"headrace_worker_restarts_total": "0+1x60"},
    "HeadraceAborts": {"headrace_worker_aborted_transactions_total": "0+20x60"},
    "HeadraceDropped": {"headrace_node_dropped_records_total": "7+1x60"},
}
"""What is different when an alert fires."""


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def check_config(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Check the configuration of the Compose file, with the rules where it has them."""
    shutil.copytree(GRAFANA, directory / "dashboards")
    path = directory / "prometheus.yml"
    path.write_text(text.replace("/dashboards", str(directory / "dashboards")))
    return promtool("check", "config", str(path))


def test_prometheus_reads_its_configuration(tmp_path: Path) -> None:
    done = check_config(tmp_path, COMPOSE["configs"]["prometheus"]["content"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


def test_a_mistake_in_the_configuration_is_found(tmp_path: Path) -> None:
    text = COMPOSE["configs"]["prometheus"]["content"]
    assert check_config(tmp_path, text.replace("refresh_interval", "refresh")).returncode != 0


def report_of(directory: Path, wrong: dict[str, str]) -> str:
    """Evaluate the rules for 50 minutes, and return what promtool reports if no alert may fire."""
    series = [
        {"series": name, "values": wrong.get(name.partition("{")[0], values)}
        for name, values in HEALTHY.items()
    ]
    expected: dict[str, Any] = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "50m",
        "exp_samples": [],
    }
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [expected]}]
    path = directory / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(GRAFANA / "alerts.yml")], "tests": tests}))
    done = promtool("test", "rules", str(path))
    return done.stdout + done.stderr


def test_no_alert_fires_for_a_healthy_application(tmp_path: Path) -> None:
    assert "SUCCESS" in report_of(tmp_path, {})


def firing(report: str) -> list[str]:
    return [one["alert"] for one in RULES if f'alertname="{one["alert"]}"' in report]


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES])
def test_an_alert_fires_alone(alert: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, WRONG[alert])
    assert "FAILED" in report
    assert firing(report) == [alert]


def test_the_first_dropped_records_are_reported(tmp_path: Path) -> None:
    """Their counter did not exist before."""
    report = report_of(tmp_path, {"headrace_node_dropped_records_total": "_x45 3x15"})
    assert firing(report) == ["HeadraceDropped"]
