"""What `describe` shows with settings is what runs under them."""

from __future__ import annotations

from typing import Any

import pytest

from examples.page_views import page_views
from examples.word_count import word_count
from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import plan_application
from headrace.topology import StreamsBuilder, Topology, TopologyError, serdes
from headrace.topology.serdes import avro

BARE = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "no caches": {"statestore.cache.max.bytes": 0},
    "null keys": {"null.key.policy": "drop"},
    "serdes": {"default.key.serde": "bytes", "default.value.serde": serdes.long},
    "handlers": {"processing.exception.handler": "continue"},
    "bytes": {"deserialization.exception.handler": "continue"},
    "times": {"default.timestamp.extractor": "wallclock_timestamp"},
    "optimised": {"topology.optimization": "all"},
}


def twice() -> Topology:
    """Two groups by one new key, whose topics the optimiser makes one, and a table."""
    builder = StreamsBuilder()
    keyed = builder.stream("in").select_key(lambda k, v: v)
    keyed.group_by_key().count(store="a").to_stream().to("a")
    keyed.group_by_key().reduce(max, store="b").to_stream().to("b")
    builder.table("rows", store="rows").to_stream().to("changes")
    return builder.build()


TOPOLOGIES = {"word count": word_count(), "page views": page_views(), "twice": twice()}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_code_that_is_shown_is_the_code_that_runs(name: str, settings: str) -> None:
    topology = TOPOLOGIES[name]
    config = StreamsConfig.parse(BARE | SETTINGS[settings])
    plans = plan_application(topology, config)
    shown = topology.describe(code=True, config=config)
    text = topology.describe(config=config)
    assert shown == text + "".join(f"{plan.program.source_code}\n" for plan in plans)
    assert text.count("Sub-topology: ") == len(plans)


def test_each_setting_shows() -> None:
    topology = twice()
    shown = {
        topology.describe(code=True, config=StreamsConfig.parse(BARE | SETTINGS[settings]))
        for settings in SETTINGS
        if settings != "serdes"  # those are constants, and what they save is in their own test
    }
    assert len(shown) == len(SETTINGS) - 1


def test_serdes_that_are_the_same_save_an_encoding() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out", value=serdes.string)
    as_text = StreamsConfig.parse({**BARE, "default.value.serde": "string"})
    assert "encode_value" in builder.build().describe(code=True)
    assert "encode_value" not in builder.build().describe(code=True, config=as_text)


def test_without_settings_it_is_what_the_defaults_make() -> None:
    for topology in TOPOLOGIES.values():
        shown = topology.describe(code=True)
        plain = topology.describe(code=True, config=StreamsConfig.parse(BARE))
        assert shown.replace("<application.id>", "shop") == plain


def test_a_serde_that_asks_for_its_topic_is_shown_as_it_is_used() -> None:
    builder = StreamsBuilder()
    registered = avro.registered('"long"', registry=avro.MemoryRegistry())
    builder.stream("in", value=registered).to("out", value=registered)
    shown = builder.build().describe(code=True)
    assert "encode_value" in shown  # it is another subject, with another schema's id


def test_settings_that_nobody_has_checked_are_refused() -> None:
    given: Any = BARE
    with pytest.raises(TopologyError, match=r"StreamsConfig\.parse\(settings\).* given a dict"):
        word_count().describe(config=given)
