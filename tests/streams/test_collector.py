"""The cycle collector, where it would look in vain."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from headrace.streams.states import rare_collections

LOADING = """
import gc
looks = []
gc.callbacks.append(lambda phase, _: looks.append(phase))
before = gc.get_threshold()
from headrace import {names}
assert gc.get_threshold() == before
print(len(looks) // 2)
"""


@pytest.mark.parametrize("names", ["KafkaStreams", "StreamsBuilder, serdes"])
def test_modules_are_loaded_without_looking_at_what_stays(names: str) -> None:
    """A look per 700 new objects is a hundred looks."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADING.format(names=names)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ran.stdout) < 20


def test_an_error_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="meanwhile"), rare_collections():
        raise ValueError("meanwhile")
    assert gc.get_threshold() == before
