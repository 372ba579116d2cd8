from __future__ import annotations

import pickle

import pytest

from headrace.state.spec import StoreSpec


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "naïve", "a\n", "x" * 250])
def test_names_that_no_topic_may_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        StoreSpec(name)


@pytest.mark.parametrize(
    "name", ["a", "KSTREAM-AGGREGATE-STATE-STORE-0000000003", "a.b_c-d", "..."]
)
def test_names_that_a_topic_may_have_are_taken(name: str) -> None:
    assert StoreSpec(name).name == name


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'floppy'"):
        StoreSpec("a", kind="floppy")  # type: ignore[arg-type]


def test_a_topic_setting_that_is_no_string_is_refused_with_the_string_to_write() -> None:
    with pytest.raises(TypeError, match="'1000'"):
        StoreSpec("a", topic_config={"retention.ms": 1000})  # type: ignore[dict-item]


def test_specs_are_equal_whatever_the_order_of_their_settings() -> None:
    one = StoreSpec("a", topic_config={"x": "1", "y": "2"})
    two = StoreSpec("a", topic_config={"y": "2", "x": "1"})
    assert one == two
    assert len({one, two}) == 1


def test_a_spec_does_not_change_with_the_settings_it_was_made_of() -> None:
    settings = {"x": "1"}
    spec = StoreSpec("a", topic_config=settings)
    settings["x"] = "2"
    assert dict(spec.topic_config) == {"x": "1"}
    assert "y" not in spec.topic_config


def test_a_spec_can_be_sent_to_another_process() -> None:
    spec = StoreSpec("a", kind="memory", topic_config={"x": "1"})
    assert pickle.loads(pickle.dumps(spec)) == spec
