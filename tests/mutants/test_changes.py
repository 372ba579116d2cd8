"""The list of changes stays usable while the code moves on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.changes import PACKAGE, ROOT, Change, all_changes
from tests.mutants.trial import Bench, Verdict, in_shares

CHANGES = list(all_changes())


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_the_text_of_a_change_stands_once_in_its_file(change: Change) -> None:
    assert (ROOT / PACKAGE / change.file).read_text().count(change.find) == 1
    assert change.replace != change.find


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_the_tests_of_a_change_exist(change: Change) -> None:
    for test in change.tests:
        path, _, function = test.partition("::")
        assert (ROOT / path).exists(), test
        assert f"def {function.partition('[')[0]}" in (ROOT / path).read_text() or not function


def test_each_change_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(c.name for c in CHANGES).items() if count > 1] == []


def test_shares_leave_no_change_out() -> None:
    shares = in_shares(CHANGES, 3)
    assert sorted(c.name for share in shares for c in share) == sorted(c.name for c in CHANGES)


@pytest.mark.slow
def test_a_change_is_tried_in_a_copy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timeout_s=120)
    test = "tests/streams/plan/test_numbers.py"
    file, bound = "streams/plan/progress.py", "MAX_BYTES = 4095"
    noticed = Change("a", "", file, bound, "MAX_BYTES = 1 << 20", (test,))
    same = Change("b", "", file, bound, "MAX_BYTES = (1 << 12) - 1", (test,))
    gone = Change("c", "", file, "no such text", "", (test,))
    assert bench.try_change(noticed).verdict is Verdict.NOTICED
    assert bench.try_change(same).verdict is Verdict.SURVIVED
    assert bench.try_change(gone).verdict is Verdict.UNUSABLE
    assert bound in (tmp_path / PACKAGE / file).read_text()
