"""The order of the files of tests: several processes share them and should end together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

File = list[pytest.Item]

MEASURED_S = {
    "tests/chaos/test_checker_on_broker.py": 90,
    "tests/examples/test_demo_support.py": 25,
    "tests/examples/test_on_kafka.py": 25,
    "tests/examples/test_word_count.py": 60,
    "tests/mutants/test_changes.py": 30,
    "tests/reference/test_random_topologies.py": 150,
    "tests/reference/test_restart_equals_no_restart.py": 75,
    "tests/reference/test_what_is_found.py": 5,
    "tests/simulation/test_found_bugs.py": 60,
    "tests/simulation/test_planted_bugs.py": 10,
    "tests/simulation/test_seeds.py": 180,
    "tests/simulation/test_several.py": 45,
    "tests/simulation/test_standing_still.py": 35,
    "tests/simulation/test_steps.py": 70,
    "tests/simulation/test_strikes.py": 60,
    "tests/spark_bridge/handover/live/test_handover_on_broker.py": 115,
    "tests/spark_bridge/handover/live/test_retention_on_broker.py": 70,
    "tests/spark_bridge/live/test_cli_on_broker.py": 70,
    "tests/spark_bridge/program/test_classes_of_a_script.py": 30,
    "tests/streams/cli/dev/live/test_dev_on_broker.py": 60,
    "tests/streams/cli/live/test_run_on_broker.py": 60,
    "tests/streams/cli/live/test_skip_on_broker.py": 60,
    "tests/streams/cli/test_run_cli.py": 120,
    "tests/streams/contact/live/test_broker_contact.py": 120,
    "tests/streams/control/live/test_scale_on_broker.py": 50,
    "tests/streams/devbroker/live/test_devbroker.py": 90,
    "tests/streams/devbroker/live/test_secure_broker.py": 20,
    "tests/streams/kafka/live/test_slow_broker.py": 70,
    "tests/streams/live/test_backlog_on_broker.py": 30,
    "tests/streams/live/test_canary_on_broker.py": 80,
    "tests/streams/live/test_crashes_on_broker.py": 110,
    "tests/streams/live/test_errors_on_broker.py": 50,
    "tests/streams/live/test_global_tables_on_broker.py": 80,
    "tests/streams/live/test_joining_on_broker.py": 30,
    "tests/streams/live/test_processors_on_broker.py": 45,
    "tests/streams/live/test_slow_work_on_broker.py": 55,
    "tests/streams/live/test_source_changelog_on_broker.py": 120,
    "tests/streams/live/test_stop_without_brokers.py": 100,
    "tests/streams/live/test_tables_on_broker.py": 40,
    "tests/streams/live/test_takeover_on_broker.py": 60,
    "tests/streams/tasks/live/test_restore_on_broker.py": 40,
    "tests/streams/testing/test_driver_properties.py": 65,
    "tests/streams/uncaught/live/test_uncaught_on_broker.py": 30,
    "tests/streams_web/live/test_health_on_broker.py": 60,
    "tests/streams_web/live/test_queries_on_broker.py": 40,
    "tests/streams_web/live/test_watch_on_broker.py": 40,
    "tests/streams_web/test_scrape_of_many.py": 25,
    "tests/test_demo.py": 70,
    "tests/test_packaging.py": 40,
    "tests/test_readme.py": 55,
    "tests/topology/compile/test_compiler_properties.py": 40,
    "tests/topology/compile/test_guarded_code.py": 35,
    "tests/topology/operators/joins/test_foreign_key_join.py": 20,
    "tests/topology/operators/joins/test_stream_stream_join.py": 30,
    "tests/topology/operators/test_cogroup.py": 25,
    "tests/topology/operators/test_table_group_by.py": 25,
    "tests/topology/operators/windows/test_suppress.py": 40,
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
