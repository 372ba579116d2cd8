"""Word count: how often has each word occurred in all sentences of a topic so far?

    headrace topics create sentences word-counts --partitions 4
    headrace run examples.word_count:app --workers 2

It reads the text of `sentences`, with any keys, and writes each word and its count so far, as
Java's Long, to `word-counts`. Crashed workers are restarted. Ctrl-C or SIGTERM stops them; the
next start continues there. `python -m examples.word_count` is one worker, with options.
"""

from __future__ import annotations

import logging

import click

from headrace import KafkaStreams, StreamsBuilder, StreamsError, Topology, serdes


def word_count(sentences: str = "sentences", word_counts: str = "word-counts") -> Topology:
    """Build the topology; nothing runs yet."""
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


SETTINGS = {
    "application.id": "word-count",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}


def app() -> KafkaStreams:
    """Return the application for `headrace run`; `--set NAME=VALUE` changes a setting."""
    return KafkaStreams(word_count(), SETTINGS)


@click.command()
@click.option("--bootstrap-servers", default=SETTINGS["bootstrap.servers"], show_default=True)
@click.option("--application-id", default=SETTINGS["application.id"], show_default=True)
@click.option("--sentences", default="sentences", show_default=True, help="Topic to read.")
@click.option("--word-counts", default="word-counts", show_default=True, help="Topic to write.")
@click.option("--guarantee", default=SETTINGS["processing.guarantee"], show_default=True)
@click.option("--state-dir", help="Directory of local state.  [default: see docs/configuration.md]")
def main(
    bootstrap_servers: str,
    application_id: str,
    sentences: str,
    word_counts: str,
    guarantee: str,
    state_dir: str | None,
) -> None:
    """Count words until Ctrl-C."""
    logging.basicConfig(level=logging.INFO)
    settings = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "processing.guarantee": guarantee,
        "state.dir": state_dir,
    }
    try:
        KafkaStreams(word_count(sentences, word_counts), settings).run()
    except StreamsError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
