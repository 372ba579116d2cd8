"""Two applications whose ids and stores make one topic's name, on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.streams.errors import MisconfiguredTopicError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.plan.deployed import topology_group
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics


def counting(topic: str, store: str, *, repartitions: bool) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(topic, key=serdes.string, value=serdes.string)
    if repartitions:
        stream = stream.repartition(name=store)
        stream.to(topic + "-out")
    else:
        stream.group_by_key().count(store=store)
    return builder.build()


@pytest.mark.parametrize("repartitions", [False, True], ids=["changelog", "repartition"])
def test_the_second_application_is_refused(
    repartitions: bool, topics: Topics, tmp_path: Path
) -> None:
    read = topics.create("in")
    topics.create_named(read + "-out")
    settings = settings_of(topics, tmp_path)
    shorter = settings["application.id"]
    admin = GroupAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=PATIENCE_S)

    def run(application_id: str, store: str) -> None:
        topology = counting(read, store, repartitions=repartitions)
        with live(topology, settings | {"application.id": application_id}) as app:
            app.wait_running()
            group = topology_group(application_id)
            wait_until(lambda: bool(admin.committed(group, decided=True)), what="a description")

    def refusal(application_id: str, store: str) -> Any:
        topology = counting(read, store, repartitions=repartitions)
        return Live(topology, settings | {"application.id": application_id}).failure()

    run(shorter, "eu-rows")
    run(f"{shorter}-us", "rows")
    error = refusal(f"{shorter}-eu", "rows")
    assert isinstance(error, MisconfiguredTopicError)
    assert f"{shorter}-eu-rows" in str(error)
    assert f"application {shorter}," in str(error)
    # The first one goes on.
    run(shorter, "eu-rows")
