"""Query word counts over HTTP while they are counted.

    headrace run examples.word_count:app --workers 2 --http 9464 --queries
    python -m examples.ask_counts the rose

It prints the present counts, then each committed change of the first word, until Ctrl-C. After a
lost connection it continues after the last change that it received.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import click

STORE = "/api/stores/counts"


def counts(url: str, words: Sequence[str]) -> dict[str, int]:
    """Return the count of each word so far, without words that never occurred."""
    asked = json.dumps({"keys": list(words)}).encode()
    with urlopen(f"{url}{STORE}/get", asked, timeout=10) as answer:
        rows = json.load(answer)["rows"]
    return {row["key"]: row["value"] for row in rows if row is not None}


def changes(url: str, word: str) -> Iterator[dict[str, Any]]:
    """Yield the present count of a word, and then each change."""
    last: dict[str, str] = {}
    while True:
        asked = Request(f"{url}{STORE}/{quote(word, safe='')}/changes?snapshot=true", headers=last)
        with suppress(ConnectionError, TimeoutError), urlopen(asked, timeout=30) as events:
            for line in events:
                field, _, text = line.decode().rstrip("\n").partition(": ")
                if field == "id":
                    last = {"Last-Event-ID": text}
                elif field == "data" and text.startswith('{"key"'):
                    yield json.loads(text)


@click.command()
@click.option("--url", default="http://localhost:9464", show_default=True)
@click.argument("words", nargs=-1, required=True)
def main(url: str, words: tuple[str, ...]) -> None:
    """Query the counts of WORDS, and follow the count of the first."""
    for word, count in counts(url, words).items():
        click.echo(f"{word}: {count}")
    for change in changes(url, words[0]):
        click.echo(f"{change['key']}: {change['value']}")


if __name__ == "__main__":
    main()
