"""New clients of a worker find the cluster although the broker of their settings is down."""

from __future__ import annotations

from headrace.streams.kafka.connectivity import BrokerContact, new_admin
from tests.support.topics import Topics

DOWN = "localhost:1"


def test_a_new_client_finds_the_cluster_by_brokers_that_were_met(topics: Topics) -> None:
    contact = BrokerContact({"bootstrap.servers": topics.bootstrap})
    assert contact.known_brokers() == ()
    contact.reach(lambda: False)
    client = new_admin({"bootstrap.servers": DOWN}, contact)
    assert client.describe_cluster(request_timeout=10).result(20).nodes
    contact.close()


def test_who_looks_whether_brokers_are_gone_looks_at_those_that_were_met(topics: Topics) -> None:
    settings = {"bootstrap.servers": topics.bootstrap}
    contact = BrokerContact(settings)
    contact.reach(lambda: False)
    settings["bootstrap.servers"] = DOWN
    contact.reach(lambda: False, within_s=20.0)
    contact.close()
