from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes import ROOT


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of a run; its workers can import the tests, too."""
    from spark_bridge import local_session

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before)))
    try:
        session = local_session(app_name="tests", cores=2)
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    yield session
    session.stop()
