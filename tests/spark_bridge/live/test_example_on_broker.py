"""examples/backfill.py, which compares what it did with a recount itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.backfill import main
from tests.support.processes import ROOT
from tests.support.topics import Topics


def test_the_example_of_a_backfill_proves_its_result(
    spark: Any, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = topics.name("example-")
    main(tmp_path, topics.bootstrap, spark, prefix)
    said = capsys.readouterr().out
    assert "history: 36,500 orders, 500 customers" in said
    assert "live: 100 orders" in said
    assert "state: the same as a recount of all 36,600 orders" in said


def test_it_is_short() -> None:
    lines = (ROOT / "examples/backfill.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) < 80
