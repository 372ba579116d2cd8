"""Word count: how often did each word come, in all sentences of a topic so far?

    python -m examples.word_count --bootstrap-servers localhost:9092

Both topics must exist (`headrace topics create NAME`). Ctrl-C or SIGTERM ends the program; the next
start goes on where it ended, and so it does after a crash.
"""

from __future__ import annotations

import click

from streams import KafkaStreams, StreamsError, serdes
from topology import StreamsBuilder, Topology


def word_count(sentences: str = "sentences", word_counts: str = "word-counts") -> Topology:
    """Say what to compute; nothing runs yet."""
    builder = StreamsBuilder()
    (
        builder.stream(sentences, value=serdes.string)
        .flat_map_values(str.split)
        .group_by(lambda _, word: word, key=serdes.string, name="by-word")
        .count(store="counts")
        .to_stream()
        .to(word_counts)
    )
    return builder.build()


@click.command()
@click.option("--bootstrap-servers", default="localhost:9092", show_default=True)
@click.option("--application-id", default="word-count", show_default=True)
@click.option("--sentences", default="sentences", show_default=True, help="Topic to read.")
@click.option("--word-counts", default="word-counts", show_default=True, help="Topic to write.")
@click.option("--guarantee", default="exactly_once_v2", show_default=True)
@click.option("--state-dir", help="Where local state lives.  [default: see docs/configuration.md]")
def main(
    bootstrap_servers: str,
    application_id: str,
    sentences: str,
    word_counts: str,
    guarantee: str,
    state_dir: str | None,
) -> None:
    """Count words until Ctrl-C."""
    settings = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "processing.guarantee": guarantee,
        "state.dir": state_dir,
    }
    try:
        with KafkaStreams(word_count(sentences, word_counts), settings) as app:
            app.run()
    except StreamsError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
