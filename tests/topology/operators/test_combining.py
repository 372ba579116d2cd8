"""How long records go as they are where folding them saves nothing."""

from __future__ import annotations

from headrace.topology.operators.combining import Partials

LOOKED_AT, KEYS_OF_EACH = 500, 4


def partials() -> Partials:
    """Counts that nobody reads."""
    return Partials("sink", lambda *_: None, "topic", "count", lambda count: b"%d" % count)


def count(held: Partials, keys: int, each: int) -> None:
    """Count so many records of each key, as the generated code does."""
    for number in range(keys):
        key = b"%d" % number
        held[key] = [key, each, 0, None, 0]


def test_a_rest_is_ten_times_the_input_that_was_looked_at() -> None:
    """However many records the steps in front have made of each."""
    held = partials()
    count(held, LOOKED_AT * KEYS_OF_EACH, 1)
    held.memory_bytes(LOOKED_AT)
    assert not held.rests
    held.send()
    assert held.rests
    held.memory_bytes(10 * LOOKED_AT - 1)
    assert held.rests
    held.memory_bytes(1)
    assert not held.rests


def test_what_is_read_during_a_rest_does_not_make_the_next_one_longer() -> None:
    held = partials()
    for _ in range(2):
        count(held, LOOKED_AT * KEYS_OF_EACH, 1)
        held.memory_bytes(LOOKED_AT)
        held.send()
        held.memory_bytes(10 * LOOKED_AT)
        assert not held.rests


def test_keys_that_come_again_are_folded_on() -> None:
    held = partials()
    count(held, LOOKED_AT, 3)
    held.memory_bytes(LOOKED_AT)
    held.send()
    assert not held.rests
