"""Figures in the pages are those of the code."""

from __future__ import annotations

import re

import pytest

from headrace.streams.config import client_settings, dead_letter_headers
from headrace.streams.kafka import connectivity
from headrace.streams.metrics import hot_keys, node_times
from headrace.streams.queries import committed_rows, feeds, query_queue
from headrace.streams.tasks import home, tasks
from headrace.streams.worker import membership, shutdown, snapshot_collector
from headrace.streams.worker.restarts import RestartLimits
from headrace.streams_web.stores import store_query
from headrace.topology.dsl import kstream
from tests.mutants.changes import all_changes
from tests.reference import test_random_topologies
from tests.simulation import (
    test_leaving,
    test_more_seeds,
    test_seeds,
    test_several,
    test_steps,
    test_strikes,
    test_upgrades,
)
from tests.support.processes import ROOT
from tests.test_layout import FOLDER_MAX, TOUR_LINES_MAX

DOCS = ROOT / "docs"
_WORDS = {2: "two", 5: "five", 10: "ten", 60: "a minute", 600: "ten minutes"}
_ORDINALS = {3: "third", 4: "fourth", 5: "fifth", 6: "sixth", 7: "seventh"}
_LIMITS = RestartLimits()
FIGURES = (
    ("guarantees", f"stop at the {_ORDINALS[membership.FENCED_TIMES]} time within "),
    ("guarantees", f"within {_WORDS[round(membership.FENCED_WITHIN_S)]} |"),
    ("architecture", f"at most {FOLDER_MAX} modules"),
    ("architecture", f"together they have at most {TOUR_LINES_MAX:,} lines"),
    ("errors", f"{dead_letter_headers.CLASS_MAX:,} bytes for the class"),
    ("errors", f"{dead_letter_headers.MESSAGE_MAX:,} for the message"),
    ("errors", f"{dead_letter_headers.STACKTRACE_MAX:,} for the stack trace"),
    ("operations", f"crashed {_LIMITS.most + 1} times within {_WORDS[round(_LIMITS.within_s)]}"),
    ("operations", f"{_LIMITS.most} by default"),
    ("operations", f"{_WORDS[_LIMITS.most]} times within {_WORDS[round(_LIMITS.within_s)]}"),
    ("operations", f"the task's next owner waits {home.PATIENCE_S:g} s"),
    ("operations", f"After {connectivity.FIRST_WARNING_S:g} s, and then with longer"),
    ("operations", f"longer pauses up to {_WORDS[round(connectivity.LONGEST_PAUSE_S)]}"),
    ("operations", f"{connectivity.STOP_PATIENCE_S:g} s after the signal the last commit"),
    ("operations", f"wait {connectivity.TOOLS_WAIT_S:g} s if every broker refuses"),
    ("operations", f"every {_WORDS[round(shutdown.CHECK_INTERVAL_S)]} seconds, commit"),
    ("operations", f"After {tasks.WARN_AFTER_S:g} s it warns: `offsets_undecided`"),
    ("interactive-queries", f"{query_queue.KEYS_MAX} keys or {query_queue.ROWS_MAX} rows at most"),
    ("interactive-queries", f"or {query_queue.BYTES_MAX >> 10} KiB of them"),
    ("interactive-queries", f"and {query_queue.TURN_S * 1000:g} ms between two batches"),
    ("interactive-queries", f"if {query_queue.WAITING_MAX} queries are already waiting"),
    ("interactive-queries", f"100 by default and {store_query.PAGE_MAX:,} at most"),
    (
        "interactive-queries",
        f"{store_query.WAIT_S:g} s by default and {store_query.WAIT_MAX_S:g} s at most",
    ),
    (
        "interactive-queries",
        f"{feeds.FOLLOWERS_MAX} may listen to a process, {feeds.CATCHING_UP_MAX} of them",
    ),
    (
        "interactive-queries",
        f"moved to another host more than {_WORDS[round(committed_rows.AGE_MAX_S)]}",
    ),
    ("interactive-queries", f"of more than {hot_keys.KEY_BYTES_MAX:,} bytes are ignored"),
    (
        "monitoring",
        f"each `node.times.interval.ms`, {node_times.SAMPLE_INTERVAL_S * 1000:g} by default",
    ),
    ("monitoring", f"and each {snapshot_collector.EVERY_MOST_S:g} s if a report takes long"),
    ("async-io", f"it is {round(kstream.TIMEOUT.total_seconds())} seconds by default"),
    ("async-io", f"which is {client_settings.TRANSACTION_TIMEOUT_MS // 1000} seconds here"),
    (
        "how-we-test/index",
        f"| {test_seeds.IN_MEMORY}, {test_seeds.ON_ROCKSDB}; up to {test_more_seeds.LAST:,} in",
    ),
    ("how-we-test/index", f"(`steps.py`) | {test_steps.IN_MEMORY}, {test_steps.ON_ROCKSDB} |"),
    ("how-we-test/index", f"| {test_several.IN_MEMORY}, {test_several.ON_ROCKSDB} |"),
    ("how-we-test/index", f"(`strikes.py`) | {test_strikes.RANGE} |"),
    ("how-we-test/index", f"(`leaving_seeds.py`) | {test_leaving.SEEDS} |"),
    ("how-we-test/index", f"(`upgrades.py`) | {test_upgrades.SEEDS} |"),
    ("how-we-test/index", f"| {test_random_topologies.SEEDS} random topologies, up to "),
    ("how-we-test/index", f"topologies, up to {test_random_topologies.LAST:,} in "),
)
"""Sentences of pages with figures that the code has too, by page."""


def _cells(page: str) -> list[list[str]]:
    rows = (DOCS / f"{page}.md").read_text().splitlines()
    runs = [row.strip("| ").split("|") for row in rows if row.startswith("| `make chaos")]
    return [[cell.strip() for cell in row] for row in runs]


@pytest.mark.parametrize(("page", "sentence"), FIGURES)
def test_the_figures_of_a_page_are_those_of_the_code(page: str, sentence: str) -> None:
    text = " ".join((DOCS / f"{page}.md").read_text().split())
    assert sentence in text, f"docs/{page}.md has another figure"


def test_there_are_as_many_mutants_as_the_page_shows() -> None:
    page = " ".join((DOCS / "how-we-test" / "index.md").read_text().split())
    ((shown, listed),) = re.findall(r"Today the list has (\d+) changes: ([^;]+);", page)
    parts = re.findall(r"(\d+) in `", listed)
    assert len(parts) == 4
    assert sum(map(int, parts)) == int(shown)
    assert f"[{shown} defects](#mutants)" in page
    assert len(list(all_changes())) >= int(shown)


def test_a_chaos_run_has_the_same_result_on_both_pages() -> None:
    of_runs = {row[0].split(",")[0]: row[4] for row in _cells("how-we-test/chaos")}
    shown = _cells("guarantees")
    assert shown
    for command, _, found in shown:
        result = re.fullmatch(r"(\d+) passed, (\d+) failed", of_runs[command])
        assert result is not None, command
        assert f"{result[1]} checks passed and {result[2]} failed" in found
