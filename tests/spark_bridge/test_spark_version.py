"""A Spark that is too old is refused before anything else, whoever has started it."""

from __future__ import annotations

import importlib.metadata

import pytest

from headrace.spark_bridge import SparkMissingError, backfill
from headrace.spark_bridge.session import require_session, require_spark
from tests.support.topologies import word_count


class Session:
    """Of a Spark of any version; it can do nothing else."""

    def __init__(self, version: str) -> None:
        self.version = version


@pytest.mark.parametrize("version", ["3.5.4", "4.0.0", "4.0.4"])
def test_an_old_pyspark_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(SparkMissingError, match=rf"{version}, and .* requires 4\.1 or newer"):
        require_spark()


def test_an_old_session_is_refused_before_brokers_are_asked() -> None:
    settings = {"application.id": "a", "bootstrap.servers": "nowhere.invalid:1"}
    with pytest.raises(
        SparkMissingError, match=r"spark= is version 4\.0\.1, .* requires 4\.1 or newer"
    ):
        backfill(word_count(), settings, spark=Session("4.0.1"))


@pytest.mark.parametrize("version", ["4.1.0", "4.2.0.dev1", "4.10.0", "5.0.0"])
def test_newer_ones_are_taken(version: str) -> None:
    require_session(Session(version))
