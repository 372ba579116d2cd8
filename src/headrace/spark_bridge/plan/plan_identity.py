"""What a plan was made for: the topics it names by their ids, and the topology by a digest.

Offsets mean nothing in a topic that was deleted and made again, and the marker of a unit vouches
for rows that went with it. Units of two topologies do not make one state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.plan.job import Application
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.kafka.protocols import TopicFacts
from headrace.streams.plan.deployment import Deployment


def topology_digest(application: Application) -> str:
    """What tells topologies apart as far as tasks, stores and topics go; not by their functions."""
    plans = sorted(application.plans.values(), key=lambda plan: plan.id)
    tasks = [(plan.id, plan.topics.all_sources, sorted(plan.sinks)) for plan in plans]
    described = f"{Deployment.of(plans, application.config)!r}\n{tasks!r}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def is_of(application: Application, plan: BackfillPlan) -> bool:
    """Whether a plan was made for this topology, as far as it says."""
    return plan.topology in ("", topology_digest(application))


def refuse_other_topology(application: Application, plan: BackfillPlan) -> None:
    """See that a plan is followed with the topology that it was made for.

    Raises:
        CannotBackfillError: it is another.
    """
    if not is_of(application, plan):
        raise CannotBackfillError(
            f"backfill {plan.id} of {plan.application_id} was begun with another topology (other "
            "sub-topologies, stores or topics), or by another version of Headrace, and what it has "
            "written may be of no use to this one; go on with the program that began it, or drop "
            f"it with {_drop(plan)} and begin a new one"
        )


def refuse_other_topics(plan: BackfillPlan, facts: Mapping[str, TopicFacts]) -> None:
    """See that the topics of a plan are those that it was made for.

    Args:
        facts: of the topics whose ids it has, where they exist.

    Raises:
        CannotBackfillError: one was deleted, and perhaps made again.
    """
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
