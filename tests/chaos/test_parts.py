"""Runs in parts: what the next part is, and the summary of all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.options import Options, keep, parse
from tests.chaos.report import LeaderChange, PartSummary, leader_lines, read_parts, summary_lines
from tests.chaos.workers import events_between


def summary(part: int, **more: object) -> PartSummary:
    given: dict[str, object] = {
        "part": part,
        "seconds": 1_800.0,
        "passed": 30,
        "failed": 0,
        "failures": (),
        "records": 1_000,
        "struck": {"worker killed": 8},
        "in_transaction": {"worker killed": 7},
        "problems": {"lost": 0, "doubled": 0},
        "leaders": (),
        "crashed": (),
        "gave_up": 0,
        "lives": ({"processed": 5},),
    }
    return PartSummary(**given | more)  # type: ignore[arg-type]


def ended(options: Options) -> None:
    options.part_directory.mkdir(parents=True)
    summary(options.part).write(options.part_directory)


def test_each_part_goes_on_with_the_options_of_the_first(tmp_path: Path) -> None:
    arguments = ["--parts", "3", "--rate", "150", "--directory", str(tmp_path)]
    first = parse(arguments)
    keep(first, arguments)
    ended(first)
    second = parse(["--continue", str(tmp_path)])
    assert (second.part, second.parts, second.rate) == (2, 3, 150)
    assert (second.seed, second.caches) == (first.seed, first.caches)
    assert second.part_seed != first.part_seed
    assert not second.is_last
    ended(second)
    last = parse(["--continue", str(tmp_path), "--fault-seconds", "60"])
    assert (last.part, last.is_last, last.fault_s) == (3, True, 60)
    ended(last)
    with pytest.raises(SystemExit):
        parse(["--continue", str(tmp_path)])


def test_a_part_that_was_stopped_is_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--parts", "2", "--directory", str(tmp_path)]
    first = parse(arguments)
    keep(first, arguments)
    first.part_directory.mkdir()
    with pytest.raises(SystemExit):
        parse(["--continue", str(tmp_path)])
    assert "part 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--continue", str(tmp_path / "elsewhere")])


def test_the_summary_has_the_sum_of_all_parts(tmp_path: Path) -> None:
    leaders = (LeaderChange(10.0, "input x-0", 0.5, 3.0, True, "w1", ("1.0 s task_started",)),)
    failed = {"failed": 1, "failures": ("150 faults",), "crashed": ("w0: -6",)}
    given: list[dict[str, object]] = [{"leaders": leaders}, failed]
    for part, more in enumerate(given, 1):
        directory = tmp_path / f"part-{part}"
        directory.mkdir()
        summary(part, **more).write(directory)
    parts = read_parts(tmp_path)
    assert [part.part for part in parts] == [1, 2]
    assert parts[0].leaders == leaders
    lines = summary_lines(parts, ["lost", "doubled"])
    text = "\n".join(lines)
    assert "part 2: 1800 s, 8 faults, 1,000 records, 30 passed, 1 failed (150 faults)" in lines
    assert "all parts: 16 faults, 14 in a transaction, 2,000 records, 1.0 h" in lines
    assert "lost: 0, doubled: 0" in lines
    assert "nothing else struck: 1 times: median 3.00 s, p99 3.00 s, max 3.00 s" in text
    assert "workers ended by a library: 1" in lines
    assert lines[-1] == "60 passed, 1 failed"


def test_the_worst_leader_change_is_shown_with_what_its_worker_logged() -> None:
    slow = LeaderChange(10.0, "input x-0", 0.5, 12.0, True, "w1", ("1.0 s producer_replaced",))
    fast = LeaderChange(20.0, "output y-1", 0.1, 1.0, True)
    lines = leader_lines([fast, slow])
    assert "max 12.00 s" in lines[0]
    assert "12.0 s of w1, after input x-0" in lines[1]
    assert lines[2].strip() == "1.0 s producer_replaced"


def test_events_of_a_worker_are_found_by_their_time(tmp_path: Path) -> None:
    log = tmp_path / "w0.log"
    lines = [
        {"event": "early", "timestamp": "2026-01-31T09:00:00.000000Z"},
        {"event": "task_lost", "timestamp": "2026-01-31T09:00:02.500000Z", "reason": "fenced"},
        {"event": "late", "timestamp": "2026-01-31T09:00:20.000000Z"},
    ]
    log.write_text("Fatal Python error\n" + "\n".join(map(json.dumps, lines)) + "\n{")
    begin_ns = 1_769_850_001_000_000_000
    found = events_between(log, begin_ns, begin_ns + 10_000_000_000)
    assert found == ["1.5 s task_lost: fenced"]
