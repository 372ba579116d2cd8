"""New clients of a worker find the cluster although the broker of their settings is down."""

from __future__ import annotations

from headrace.streams.kafka.clients import new_admin
from headrace.streams.kafka.connectivity import BrokerMonitor
from tests.support.topics import Topics

DOWN = "localhost:1"


def test_a_new_client_finds_the_cluster_by_brokers_that_were_met(topics: Topics) -> None:
    brokers = BrokerMonitor({"bootstrap.servers": topics.bootstrap})
    assert brokers.known_brokers() == ()
    brokers.reach(lambda: False)
    client = new_admin({"bootstrap.servers": DOWN}, brokers)
    assert client.describe_cluster(request_timeout=10).result(20).nodes
    brokers.close()


def test_who_looks_whether_brokers_are_gone_looks_at_those_that_were_met(topics: Topics) -> None:
    settings = {"bootstrap.servers": topics.bootstrap}
    brokers = BrokerMonitor(settings)
    brokers.reach(lambda: False)
    settings["bootstrap.servers"] = DOWN
    brokers.reach(lambda: False, within_s=20.0)
    brokers.close()
