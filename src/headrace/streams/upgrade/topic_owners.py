"""Finds another application that owns an internal topic of this one.

An internal topic is called `<application.id>-<name>`, so `orders` with a store `eu-counts` and
`orders-eu` with a store `counts` both own `orders-eu-counts-changelog`. Both would write their rows
there. A topic has no room for its owner's name, but a running application keeps a description of
its stores and topics on the cluster (see `headrace.streams.deployed.deployed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from headrace.streams.deployed.deployed import GroupOffsets, topology_group
from headrace.streams.deployed.deployment import Deployment
from headrace.streams.errors import MisconfiguredTopicError


def require_own_topics(
    application_id: str, topics: Iterable[str], groups: Set[str], described: GroupOffsets
) -> None:
    """Raise if the description of another application has one of these internal topics.

    Args:
        groups: all groups of the cluster.

    Raises:
        MisconfiguredTopicError: the topic belongs to both.
    """
    by_owner: dict[str, list[str]] = {}
    for topic in topics:
        for owner in possible_owners(topic):
            if owner != application_id and topology_group(owner) in groups:
                by_owner.setdefault(owner, []).append(topic)
    for owner, possible in by_owner.items():
        owned = _internal_topics(owner, described)
        for topic in possible:
            if topic in owned:
                ours = topic.removeprefix(f"{application_id}-")
                raise MisconfiguredTopicError(
                    f"internal topic {topic} is {ours} of application {application_id} and "
                    f"{owned[topic]} of application {owner}, and both would write to it. Rename "
                    "one of the two stores or steps, or change one application.id; if "
                    f"{owner} does not run any more, run headrace reset for it"
                )


def possible_owners(topic: str) -> list[str]:
    """The ids of applications that may own an internal topic, by its name.

    Example:
        >>> possible_owners("orders-eu-counts-changelog")
        ['orders', 'orders-eu', 'orders-eu-counts']
    """
    parts = topic.split("-")
    return ["-".join(parts[:count]) for count in range(1, len(parts)) if any(parts[:count])]


def _internal_topics(application_id: str, described: GroupOffsets) -> dict[str, str]:
    """The internal topics that an application's description has, and what they are."""
    kept = described.committed(topology_group(application_id), decided=False).values()
    last = max(kept, key=lambda committed: committed.offset, default=None)
    deployment = None if last is None else Deployment.decode(last.metadata)
    if deployment is None:
        return {}
    changelogs = {
        f"{application_id}-{store.name}-changelog": f"the changelog of store {store.name}"
        for store in deployment.stores
        if store.logged and not store.source
    }
    named = {f"{application_id}-{topic.name}": topic.name for topic in deployment.topics}
    return changelogs | named
