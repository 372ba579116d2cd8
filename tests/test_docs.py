"""The pages say what is so: links lead somewhere, tables match the code, nothing is left out."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import topology
from headrace.streams.kafka import reactions
from headrace.topology import (
    BranchedKStream,
    CogroupedKStream,
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    StreamsBuilder,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
    Topology,
)
from tests.support.processes import ROOT

DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "headrace"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
_LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)", re.S)


def _rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")]


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        if anchor:
            assert anchor in _anchors(linked), f"{target}#{anchor}"


def test_every_sink_that_a_page_names_exists() -> None:
    named = {name for page in PAGES for name in re.findall(r"\b[A-Z]\w+Sink\b", page.read_text())}
    of_others = {"PostgreSQLSink"}  # of Quix Streams
    assert {name for name in named - of_others if not hasattr(headrace, name)} == set()
    assert of_others < named


def test_the_page_on_guarantees_has_the_table_of_reactions() -> None:
    """It stands in streams/kafka/reactions.py, where it is read by who changes the code."""
    table = _rows(reactions.__doc__ or "")
    page = _rows((DOCS / "guarantees.md").read_text())
    begin = page.index(table[0])
    assert page[begin : begin + len(table)] == table, "copy the table to docs/guarantees.md"
    named = set(re.findall(r"`([A-Z]+)`", "\n".join(table)))
    assert named == {reaction.name for reaction in reactions.Reaction}
    for reaction in reactions.Reaction:
        assert f"| `{reaction.name}` | {reaction.value} |" in page


def test_every_test_that_a_page_names_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert named
    missing = [name for name in sorted(named) if f"def {name}(" not in tests]
    assert not missing


FACES = [
    StreamsBuilder, KStream, BranchedKStream, KGroupedStream, TimeWindowedKStream,
    SessionWindowedKStream, CogroupedKStream, TimeWindowedCogroupedKStream,
    SessionWindowedCogroupedKStream, KTable, KGroupedTable, Topology,
]  # fmt: skip


def _public(face: type) -> list[str]:
    methods = [name for name, _ in inspect.getmembers(face, inspect.isfunction)]
    return [name for name in methods if not name.startswith("_")]


@pytest.mark.parametrize("face", FACES)
def test_the_page_on_the_dsl_names_every_method(face: type) -> None:
    page = (DOCS / "dsl.md").read_text()
    assert _public(face)
    missing = [name for name in _public(face) if f"`{name}`" not in page]
    assert not missing


@pytest.mark.parametrize("face", FACES)
def test_an_executed_page_uses_every_method(face: type) -> None:
    code = "\n".join(
        block
        for page in DOCS.glob("*.md")
        for block in re.findall(r"^```py(?:con|thon)\n(.*?)^```$", page.read_text(), re.M | re.S)
        if block.startswith(">>> ")
    )
    missing = [name for name in _public(face) if f".{name}(" not in code]
    assert not missing


def _here(page: str) -> str:
    """What the tables of the page on compatibility say of this project: the last column."""
    return "\n".join(line.split("|")[-2] for line in _rows(page))


def test_every_name_that_the_page_on_compatibility_gives_exists() -> None:
    here = _here((DOCS / "compatibility.md").read_text())
    named = re.findall(r"`([A-Z]\w+)(?:\.([a-z]\w*))?`", here)
    assert len(named) > 100
    missing = [
        (owner, name)
        for owner, name in named
        if not hasattr(topology, owner) or (name and not hasattr(getattr(topology, owner), name))
    ]
    assert not missing


@pytest.mark.parametrize("face", FACES)
def test_the_page_on_compatibility_gives_every_method(face: type) -> None:
    here = _here((DOCS / "compatibility.md").read_text())
    assert not [name for name in _public(face) if f"`{face.__name__}.{name}`" not in here]


def test_every_setting_that_the_page_on_compatibility_gives_exists() -> None:
    page = (DOCS / "compatibility.md").read_text()
    known = (DOCS / "configuration.md").read_text()
    foreign = {"dsl.store.format", "single.store.self.join"}
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", page)) - foreign
    assert named
    assert not [name for name in sorted(named) if f"`{name}`" not in known]


def test_every_point_of_semantics_is_on_the_page_on_compatibility_and_in_a_test() -> None:
    """Thirty-seven of them; a test says "Trap 7" in its docstring where it holds one."""
    points = range(1, 38)
    page = (DOCS / "compatibility.md").read_text()
    assert re.findall(r"^\| (\d+) \| \S", page, re.M) == [str(point) for point in points]
    text = " ".join(
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)
    )
    lists = re.findall(r"[Tt]raps? ((?:\d+(?:, and |, | and )?)+)", re.sub(r"\s+", " ", text))
    tested = {int(number) for numbers in lists for number in re.findall(r"\d+", numbers)}
    assert sorted(tested) == list(points)


PRIVATE_WORDS = re.compile(
    r"\b(?:anew|void|in vain|whoever|somebody|nobody|beside|kin|seams?|twins?|hand-over|by itself"
    r"|one's own|go(?:es)? on|left out|lets? go|told|outside of Kafka|(?:partial|null) results?"
    r"|held back|stands?|stood|in front|folds?|folded|folding|mend(?:s|ed)?|put right|at once"
    r"|now and then|hears?|heard)\b",
    re.IGNORECASE,
)
"""Words for which there is a standard term, or that hide who does something."""
GENERATED = ("changes-before-0.1.0", "commands", "configuration", "metrics")
"""Pages that are a record, or are generated from the code."""


@pytest.mark.parametrize("page", sorted(p.stem for p in DOCS.glob("*.md")))
def test_pages_use_standard_terms(page: str) -> None:
    """Tables are not checked, because some are generated from the code."""
    if page in GENERATED:
        return
    prose = re.sub(r"^```.*?^```", "", (DOCS / f"{page}.md").read_text(), flags=re.M | re.S)
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose)
    lines = [line for line in prose.splitlines() if not line.startswith("|")]
    assert [line for line in lines if PRIVATE_WORDS.search(line)] == []


def test_every_word_of_the_glossary_is_in_the_code() -> None:
    page = (DOCS / "glossary.md").read_text()
    words = re.findall(r"`([^`]+)`", page)
    paths = [word for word in words if "/" in word]
    assert [
        path for path in paths if not any((top / path).exists() for top in (PACKAGE, ROOT))
    ] == []
    tops = ("state", "topology", "streams", "spark_bridge")
    code = "\n".join(path.read_text() for top in tops for path in (PACKAGE / top).rglob("*.py"))
    names = [word for word in words if "/" not in word]
    unknown = [n for n in names if not re.search(rf"(?<!\w){re.escape(n)}(?!\w)", code)]
    assert unknown == []
    explained = [row.split(" | ")[0] for row in _rows(page) if row != "| word | meaning |"]
    assert len(explained) == len(set(explained)), "a word has two meanings"
    assert len(explained) <= 30, "take a term of Kafka, Python or databases"


def test_nobody_is_sent_to_kafka_s_shell_tools_for_what_a_command_does() -> None:
    tools = re.compile(
        r"kafka-(topics|consumer-groups|console-\w+|configs|acls|transactions|[a-z-]+\.sh)\b"
    )
    sources = [*PAGES, *PACKAGE.rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    named = [
        path.relative_to(ROOT).as_posix() for path in sources if tools.search(path.read_text())
    ]
    assert named == []


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    missing = [page.name for page in DOCS.rglob("*.md") if f"{page.relative_to(DOCS)}" not in nav]
    assert not missing


def test_the_example_of_logs_runs() -> None:
    page = (DOCS / "operations.md").read_text().partition("\n## Logs\n")[2]
    code = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0]
    events = (
        "from headrace.state.log import get_logger\n"
        "__name__ = 'headrace.streams.app'\n"
        "get_logger().info('task_started', task='0_1')\n"
        "get_logger().warning('transaction_aborted', task='0_1')"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{events}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(" WARNING headrace.streams.app transaction_aborted task=0_1\n")
    assert "task_started" not in done.stderr


def test_the_example_of_an_uncaught_error_runs() -> None:
    page = (DOCS / "operations.md").read_text().partition("\n### When an error stops a worker\n")[2]
    code = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0]
    asked = (
        "service, ours = RuntimeError(), RuntimeError()\n"
        "service.__cause__ = ConnectionError()\n"
        "print(after(service).name, after(ours).name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{asked}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "REPLACE_WORKER SHUTDOWN_APPLICATION\n"
