"""The order of the files of tests: several processes share them and should end together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

File = list[pytest.Item]

MEASURED_S = {
    "tests/chaos/test_checker.py": 75,
    "tests/chaos/test_checker_on_broker.py": 30,
    "tests/examples/test_on_kafka.py": 30,
    "tests/reference/test_random_topologies.py": 25,
    "tests/reference/test_restart_equals_no_restart.py": 15,
    "tests/runbooks/live/test_runbooks_on_broker.py": 120,
    "tests/simulation/test_planted_bugs.py": 25,
    "tests/simulation/test_seeds.py": 130,
    "tests/simulation/test_several.py": 70,
    "tests/simulation/test_steps.py": 75,
    "tests/simulation/test_strikes.py": 85,
    "tests/spark_bridge/handover/live/test_handover_on_broker.py": 105,
    "tests/spark_bridge/handover/live/test_retention_on_broker.py": 45,
    "tests/spark_bridge/live/test_cli_on_broker.py": 20,
    "tests/spark_bridge/test_equality.py": 35,
    "tests/streams/tasks/live/test_calls_on_broker.py": 25,
    "tests/streams/cli/live/test_dev_on_broker.py": 25,
    "tests/streams/cli/live/test_run_on_broker.py": 45,
    "tests/streams/cli/live/test_skip_on_broker.py": 65,
    "tests/streams/cli/live/test_transactions_on_broker.py": 25,
    "tests/streams/cli/test_run_cli.py": 25,
    "tests/streams/kafka/live/test_broker_contact.py": 115,
    "tests/streams/kafka/live/test_rights_on_broker.py": 30,
    "tests/streams/devbroker/live/test_devbroker.py": 30,
    "tests/streams/tasks/live/test_file_sinks_on_broker.py": 40,
    "tests/streams/tasks/live/test_sinks_on_broker.py": 40,
    "tests/streams/tasks/live/test_table_sinks_on_broker.py": 35,
    "tests/streams/kafka/live/test_asking_while_joining.py": 20,
    "tests/streams/kafka/live/test_port_look.py": 20,
    "tests/streams/kafka/live/test_slow_broker.py": 60,
    "tests/streams/live/test_bad_input_on_broker.py": 45,
    "tests/streams/live/test_commit_on_broker.py": 40,
    "tests/streams/live/test_crashes_on_broker.py": 85,
    "tests/streams/live/test_errors_on_broker.py": 20,
    "tests/streams/live/test_global_tables_on_broker.py": 40,
    "tests/streams/live/test_notebooks_on_broker.py": 30,
    "tests/streams/live/test_slow_work_on_broker.py": 15,
    "tests/streams/live/test_source_changelog_on_broker.py": 15,
    "tests/streams/live/test_stop_without_brokers.py": 75,
    "tests/streams/live/test_tables_on_broker.py": 15,
    "tests/streams/live/test_takeover_on_broker.py": 40,
    "tests/streams/mirror/live/test_mirror_faults_on_broker.py": 25,
    "tests/streams/mirror/live/test_mirror_on_broker.py": 65,
    "tests/streams/mirror/live/test_refusals_on_broker.py": 45,
    "tests/streams/client/test_hung_hosts.py": 25,
    "tests/streams/connectors/test_delta.py": 20,
    "tests/streams/connectors/test_duckdb.py": 25,
    "tests/streams/connectors/test_iceberg.py": 15,
    "tests/streams/connectors/test_postgres.py": 25,
    "tests/streams/tasks/live/test_restore_on_broker.py": 45,
    "tests/streams/worker/live/test_uncaught_on_broker.py": 20,
    "tests/streams/admin/live/test_offsets_on_broker.py": 45,
    "tests/streams/admin/live/test_reset_on_broker.py": 70,
    "tests/streams/worker/live/test_topic_watch_on_broker.py": 15,
    "tests/streams_web/live/test_health_on_broker.py": 20,
    "tests/streams_web/live/test_memory_queries_on_broker.py": 15,
    "tests/streams_web/live/test_watch_on_broker.py": 20,
    "tests/streams_web/stores/live/test_hosts_on_broker.py": 15,
    "tests/streams_web/test_live_page.py": 60,
    "tests/upgrade/live/test_released_state_on_broker.py": 90,
    "tests/test_readme.py": 40,
}
"""Of files that take long, on a busy machine: what matters is which of them is the longer one."""


def in_turns(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Let files that wait for a broker and files that compute take turns, the longest first.

    Then no core is idle while processes wait, and no long file is left for the end.
    """
    files: dict[str, File] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    groups: tuple[list[File], list[File]] = ([], [])
    for file in sorted(files.values(), key=_length, reverse=True):
        groups[_is_any(file, "broker")].append(file)
    turns = [(rank / len(group), file) for group in groups for rank, file in enumerate(group)]
    return [item for _, file in sorted(turns, key=lambda turn: turn[0]) for item in file]


def _length(file: File) -> float:
    """How many seconds a file may take: as measured, else guessed from what it holds."""
    name = file[0].nodeid.partition("::")[0]
    return MEASURED_S.get(name, 0.2 * len(file) + (10 if _is_any(file, "slow") else 0))


def _is_any(file: File, mark: str) -> bool:
    return any(item.get_closest_marker(mark) for item in file)
