from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes import IMPORT_PATH

_STARTS_SPARK = (
    "test_api_page_on_broker.py",
    "test_archive_faults_on_broker.py",
    "test_archives_on_broker.py",
    "test_backfill_on_broker.py",
    "test_canary_on_broker.py",
    "test_driver_memory.py",
    "test_empty_on_broker.py",
    "test_example_on_broker.py",
    "test_event_time_on_broker.py",
    "test_examples_equal_on_broker.py",
    "test_failed_records_on_broker.py",
    "test_handover_faults.py",
    "test_inputs_on_broker.py",
    "test_page_on_broker.py",
    "test_programs_equal_on_broker.py",
    "test_read_store_on_broker.py",
    "test_recipe_on_broker.py",
    "test_rights_on_broker.py",
    "test_script_on_broker.py",
    "test_session.py",
    "test_started_meanwhile_on_broker.py",
    "test_text_files.py",
    "test_tutorial_on_broker.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell the tests that start Spark from the others; they take minutes on a busy machine."""
    for item in items:
        if "spark_bridge" in item.path.parts and item.path.name in _STARTS_SPARK:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of a run; its workers can import the tests, too."""
    from headrace.spark_bridge import local_session

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (IMPORT_PATH, before)))
    try:
        session = local_session(app_name="tests", cores=2)
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    yield session
    session.stop()
