"""Identity of a plan: the ids of its topics, and a digest of its topology.

If a topic was deleted and created again, the offsets of a plan are meaningless, and so are the
markers of written units, because their rows are gone. Units of two topologies do not form a
consistent state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.kafka.protocols import TopicFacts
from headrace.streams.plan.deployment import Deployment


def topology_digest(application: CompiledApplication) -> str:
    """Return a digest of the tasks, stores and topics of a topology, but not of its functions."""
    plans = sorted(application.plans.values(), key=lambda plan: plan.id)
    tasks = [(plan.id, plan.topics.all_sources, sorted(plan.sinks)) for plan in plans]
    described = f"{Deployment.of(plans, application.config)!r}\n{tasks!r}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def is_of(application: CompiledApplication, plan: BackfillPlan) -> bool:
    """Return whether a plan was made for this topology; True for plans without a digest."""
    return plan.topology in ("", topology_digest(application))


def refuse_other_topology(application: CompiledApplication, plan: BackfillPlan) -> None:
    if not is_of(application, plan):
        raise CannotBackfillError(
            f"backfill {plan.id} of {plan.application_id} was begun with another topology (other "
            "sub-topologies, stores or topics), or by another version of Headrace, and what it has "
            "written may be of no use to this one; go on with the program that began it, or drop "
            f"it with {_drop(plan)} and begin a new one"
        )


def refuse_other_topics(plan: BackfillPlan, facts: Mapping[str, TopicFacts]) -> None:
    """Raise if a topic of a plan was deleted or created again; `facts` are of existing topics."""
    problems = []
    for name, topic_id in plan.topic_ids.items():
        if name not in facts:
            problems.append(f"{name} does not exist any more")
        elif facts[name].topic_id != topic_id:
            problems.append(f"{name} was deleted and created again")
    if problems:
        raise CannotBackfillError(
            f"topics have changed since backfill {plan.id} of {plan.application_id} was planned: "
            f"{'; '.join(problems)}. Its offsets and what it has written are of the topics of "
            f"before: drop it with {_drop(plan)} and begin a new one"
        )


def _drop(plan: BackfillPlan) -> str:
    return f"headrace backfill ... --drop --id {plan.id}"
