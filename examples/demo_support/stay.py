"""Keep the word count running after the demo, with its dashboard and a repeated text."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence

from examples.word_count import word_count
from headrace import KafkaStreams

LINES = 200
EVERY_S = 1.0


def stay(
    settings: Mapping[str, object],
    topics: tuple[str, str],
    write: Callable[[Sequence[str]], None],
    lines: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Continue to count, with a dashboard, until Ctrl-C.

    Args:
        settings: of the application.
        topics: that of sentences, and that of counts.
        write: writes sentences.
        lines: the text that is written repeatedly, so that the dashboard shows activity.
        say: called with the address.
    """
    with KafkaStreams(word_count(*topics), settings) as app:
        app.start()
        with app.serve(port=0, queries=True) as server:
            say(f"\nIt stays at work, with {LINES / EVERY_S:.0f} lines a second. The page:")
            say(f"  {server.url}/")
            say(f"  curl {server.url}/api/stores/counts/the")
            say("Ctrl-C ends it.")
            try:
                for begin in itertools.cycle(range(0, len(lines), LINES)):
                    write(lines[begin : begin + LINES])
                    time.sleep(EVERY_S)
            except KeyboardInterrupt:
                say("Ending.")
