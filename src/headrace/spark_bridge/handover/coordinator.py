"""Driver side of a handover: opens the plan, and ends it in a single transaction.

An application has one coordinator at a time: all coordinators share a transactional.id, and a
later coordinator fences the earlier. So no other driver can interfere between a check and the
commit that depends on it.

         ┌──────────────► done      offsets of the application, in the same transaction
    open ┤
         └► dropping ───► dropped   nothing of it remains

An opened plan is read back before group members are checked: see
`headrace.streams.admin.backfill_gate`.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.handover.notes import HandoverOptions, check_id, is_in_parts
from headrace.spark_bridge.handover.rows import group_metadata, make_producer
from headrace.spark_bridge.handover.target import HandoverTarget
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.admin.backfill_gate import NoteState, backfill_group
from headrace.streams.errors import ProducerFencedError
from headrace.streams.kafka.protocols import Offsets, Probe
from headrace.streams.plan.deployed import topology_group


class HandoverCoordinator:
    """Driver side of a handover: opens the plan and ends it in a single transaction.

    Args:
        timeout_ms: time after which the brokers abort a transaction of the coordinator.
    """

    def __init__(
        self, target: HandoverTarget, backfill_id: str, *, timeout_ms: int, probe: Probe
    ) -> None:
        check_id(backfill_id)
        self._target = target
        self._id = backfill_id
        self._probe = probe
        self._group = backfill_group(target.group)
        self._settings = target.producer_settings(self._group, timeout_ms)
        self.timeout_s = timeout_ms / 1000
        self.producer = make_producer(self._settings)
        self.notes = target.notes()
        self._log = target.log

    def take_over(self) -> None:
        """Fence the previous coordinator, and read the notes."""
        self._refuse_others()
        self.producer.init()
        self.notes = self._target.notes()
        self._refuse_others()

    def _refuse_others(self) -> None:
        opened = self.notes.open_head
        if opened is not None and opened[1].id != self._id:
            raise CannotBackfillError(other_is_open(self._target.group, opened[1].id))

    def is_open(self, plan: BackfillPlan, options: HandoverOptions) -> bool:
        """Return whether exactly this plan is open; raise if it is open with other options."""
        head = self.notes.head_of(self._id)
        if head is None or head.state == "dropped":
            return False
        if head.state == "done":
            raise CannotBackfillError(
                f"backfill {self._id} of {self._target.group} is already handed over. Use another "
                "id"
            )
        if head.state == "dropping":
            raise CannotBackfillError(other_is_open(self._target.group, self._id, drop=True))
        if head.digest == options.digest(plan):
            return True
        if not is_in_parts(head):
            return False  # an interrupted single transaction leaves no rows
        raise CannotBackfillError(
            f"backfill {self._id} of {self._target.group} is open with another plan or other "
            "options. Continue it with the same plan, handover='partitioned' and the same outputs= "
            "and reset=, or drop it"
        )

    def open(self, plan: BackfillPlan, options: HandoverOptions) -> bool:
        """Open the plan, so that the application cannot start; return whether it was open already.

        The notes of a plan that is already open are committed again, because offsets expire.
        """
        self.take_over()
        resumed = self.is_open(plan, options)
        self._target.refuse_other_topics(plan)
        self._target.refuse_members()
        self._target.refuse_offsets(plan, reset=options.reset)
        if resumed:
            self.commit({self._group: self.notes.again(plan.id)})
            self._probe("handover_opened")
            return True
        self._target.refuse_rows(plan, reset=options.reset)
        self.commit({self._group: self.notes.opened(plan, options)})
        self.notes = self._target.notes()
        assert self.is_open(plan, options), "the committed plan cannot be read"
        self._log.info("handover_opened", backfill=plan.id, how=options.how, records=plan.records)
        self._probe("handover_opened")
        try:
            self._target.refuse_members()
        except CannotBackfillError:
            self.close_with("dropped")
            raise
        return False

    def commit(self, offsets: Mapping[str, Offsets], *, begun: bool = False) -> None:
        """Commit offsets of groups in a single transaction: the open transaction if `begun`."""
        if not begun:
            self.producer.begin()
        for group, some in offsets.items():
            if some:
                metadata = group_metadata(self._target.config.admin_config(), group)
                self.producer.send_offsets(some, metadata)
        self.producer.commit()

    def finish(self, plan: BackfillPlan, live: Offsets, *, reset: bool, begun: bool) -> None:
        """Commit the application's offsets, and mark the plan as done in the same transaction.

        If state is replaced, the transaction also clears the deployed topology, so that no work is
        left for an attempt that learns of the commit later.
        """
        self._target.refuse_other_topics(plan)
        self._target.refuse_members()
        self._target.refuse_offsets(plan, reset=reset)
        self._probe("handover_checked")
        done = self.notes.become(plan.id, "done")
        topology = topology_group(self._target.group)
        other = self._target.cleared_topology() if reset else {}
        offsets = {self._target.group: live, self._group: done, topology: other}
        self.commit(offsets, begun=begun)
        self.notes = self._target.notes()
        if other:
            self._target.groups.committed_at(topology, other)  # waits for the decision
        self._probe("handover_committed")
        self._log.info("handover_committed", backfill=plan.id, inputs=len(live))

    def close_with(self, state: NoteState) -> None:
        self.commit({self._group: self.notes.become(self._id, state)})
        self.notes = self._target.notes()
        self._log.info("handover_ended", backfill=self._id, state=state)

    def renew(self) -> bool:
        """Replace the producer, which decides the last transaction; return whether it is done."""
        with cleanup_after(self.producer.close, quietly=True):
            pass
        self.producer = make_producer(self._settings)
        self.producer.init()
        self.notes = self._target.notes()
        head = self.notes.head_of(self._id)
        return head is not None and head.state == "done"


def fenced(backfill_id: str, error: ProducerFencedError, fix: str = "") -> BackfillError:
    return BackfillError(
        f"another driver has taken over backfill {backfill_id}, or its transaction took too long "
        f"({error}). Make sure that a single driver runs, and run the backfill again with the same "
        f"id{fix}"
    )


def other_is_open(application_id: str, backfill_id: str, *, drop: bool = False) -> str:
    what = f"backfill {backfill_id} of {application_id} is "
    command = f"headrace backfill ... --drop --id {backfill_id}"
    if drop:
        return f"{what}being dropped. Finish the drop with {command}"
    return (
        f"{what}open. Finish it with headrace backfill ... --id {backfill_id}, or drop it with "
        f"{command}"
    )
