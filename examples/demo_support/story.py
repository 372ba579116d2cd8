"""The demo's final tables and explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text as Plain

from examples.demo_support.cluster import Visible
from examples.demo_support.crash import Kill
from examples.demo_support.text import Text

TOP = 10
_WRONG_SHOWN = 10


def differences(counted: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    """Return the words whose count is missing, superfluous or different from the expected count."""
    words = sorted(counted.keys() | expected.keys())
    return [word for word in words if counted.get(word) != expected.get(word)]


def show_words(console: Console, counted: Mapping[str, int], expected: Counter[str]) -> None:
    """Show the most frequent words, as counted and as recounted."""
    table = Table("word", title=f"The {TOP} most frequent words", title_justify="left")
    for column in ("Headrace", "recount", ""):
        table.add_column(column, justify="right")
    for word, count in Counter(counted).most_common(TOP):
        plain = expected[word]
        table.add_row(Plain(word), f"{count:,}", f"{plain:,}", "=" if count == plain else "WRONG")
    console.print(table)


def show_verdict(console: Console, counted: Mapping[str, int], expected: Counter[str]) -> bool:
    """Print whether every count is correct, and return it."""
    wrong = differences(counted, expected)
    if not wrong:
        console.print(
            f"[bold green]Every count is right:[/] {len(expected):,} different words, "
            f"{expected.total():,} in all, equal to a plain recount of the text."
        )
        return True
    console.print(f"[bold red]{len(wrong):,} of {len(expected):,} counts are wrong[/], such as:")
    for word in wrong[:_WRONG_SHOWN]:
        line = f"  {word}: counted {counted.get(word, 0):,}, recounted {expected[word]:,}"
        console.print(Plain(line))
    return False


def show_topics(console: Console, topics: Mapping[str, Visible]) -> None:
    """Show how many records of each kind were committed, and how many were aborted."""
    table = Table("records", title="What the word count wrote", title_justify="left")
    for column in ("committed", "aborted"):
        table.add_column(column, justify="right")
    for kind, visible in topics.items():
        table.add_row(kind, f"{visible.committed:,}", f"{visible.aborted:,}")
    console.print(table)


def explain(
    console: Console, kills: Sequence[Kill], text: Text, topics: Mapping[str, Visible]
) -> None:
    """Explain the events of the run in plain words."""
    hit = next((kill for kill in kills if kill.open_records), None)
    if hit is None:
        console.print(
            "\nNo kill came while a transaction was open, so this run says nothing about crashes. "
            "The text is too short for it: take a longer one.",
            style="yellow",
        )
        return
    console.print("\nWhat happened", style="bold")
    aborted = sum(visible.aborted for visible in topics.values())
    steps = Table.grid(padding=(0, 1))
    for step in _steps(hit, len(text.lines), text.counts().total(), aborted):
        steps.add_row("-", Plain(step))
    console.print(steps)


def _steps(kill: Kill, lines: int, words: int, aborted: int) -> Iterator[str]:
    yield (
        "The word count commits several times a second: the counts, the output and the place up "
        "to which it has read become final together, in one Kafka transaction."
    )
    yield (
        f"SIGKILL gave process {kill.pid} no time for anything. It had read {kill.lines:,} of "
        f"{lines:,} lines, counted {kill.words:,} of {words:,} words, and had gone further: "
        f"{kill.open_records:,} records stood in a transaction that it did not finish."
    )
    yield (
        "The next process had that transaction aborted and began from the last commit: with the "
        "counts and the place of that moment. What came after it was done a second time."
    )
    yield (
        f"The {aborted:,} aborted records are still in the topics. Readers in read_committed pass "
        "over them, and so did the new process; a reader in read_uncommitted sees them, and would "
        "count too much. So each word counts once, although some were read twice."
    )
