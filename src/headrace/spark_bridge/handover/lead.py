"""The driver's part of a hand-over: it opens the plan, and ends it in one transaction.

There is one lead for an application at a time: they share a transactional.id, and a later one
fences those before it. So whatever is committed here was not decided by somebody else meanwhile.

         ┌──────────────► done      offsets of the application, in the same transaction
    open ┤
         └► dropping ───► dropped   nothing of it is left

A plan that is opened is read back before members are looked for: see
`headrace.streams.admin.backfill_gate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.spark_bridge.cleanup import and_then
from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.handover.clients import group_metadata, make_producer
from headrace.spark_bridge.handover.notes import HandoverOptions, check_id, is_in_parts
from headrace.spark_bridge.handover.target import Target
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.admin.backfill_gate import NoteState, backfill_group
from headrace.streams.errors import OutcomeUnknownError, ProducerFencedError
from headrace.streams.kafka.protocols import Offsets, Probe
from headrace.streams.plan.deployed import topology_group


class HandoverCoordinator:
    """Driver side of a handover: opens the plan and ends it in one transaction.

    Args:
        timeout_ms: after which the brokers abort one of its transactions.
    """

    def __init__(self, target: Target, backfill_id: str, *, timeout_ms: int, probe: Probe) -> None:
        check_id(backfill_id)
        self._target = target
        self._id = backfill_id
        self._probe = probe
        self._group = backfill_group(target.group)
        self._settings = target.producer_settings(self._group, timeout_ms)
        self.timeout_s = timeout_ms / 1000
        """How long one of its transactions may take."""
        self.producer = make_producer(self._settings)
        """Whose transactions are the lead's."""
        self.notes = target.notes()
        """What was there when it was last looked."""
        self._log = target.log

    def take_over(self) -> None:
        """Fence whoever had the lead, and see what is there then.

        Raises:
            CannotBackfillError: another backfill is open.
        """
        self._refuse_others()
        self.producer.init()
        self.notes = self._target.notes()
        self._refuse_others()

    def _refuse_others(self) -> None:
        opened = self.notes.open_head
        if opened is not None and opened[1].id != self._id:
            raise CannotBackfillError(other_is_open(self._target.group, opened[1].id))

    def is_open(self, plan: BackfillPlan, terms: HandoverOptions) -> bool:
        """Whether this very plan is open.

        Raises:
            CannotBackfillError: it is to go on in another way, or this id is used up.
        """
        head = self.notes.head_of(self._id)
        if head is None or head.state == "dropped":
            return False
        if head.state == "done":
            raise CannotBackfillError(
                f"backfill {self._id} of {self._target.group} was handed over already; give the "
                "new one another id"
            )
        if head.state == "dropping":
            raise CannotBackfillError(other_is_open(self._target.group, self._id, drop=True))
        if head.digest == terms.digest(plan):
            return True
        if not is_in_parts(head):
            return False  # one transaction leaves nothing behind
        what = f"backfill {self._id} of {self._target.group} is open, and parts may be written"
        raise CannotBackfillError(
            f"{what} on other terms than these: go on with the same plan, handover='partitioned' "
            "and the same outputs= and reset= as it was begun with, or drop it"
        )

    def open(self, plan: BackfillPlan, terms: HandoverOptions) -> bool:
        """Open the plan, unless it is; from now on the application does not start.

        The notes of one that is open are committed again: offsets expire by their age.

        Returns:
            Whether it was open already.

        Raises:
            CannotBackfillError: the application runs, or has what may not be replaced; or topics
                are others than those of the plan.
        """
        self.take_over()
        resumed = self.is_open(plan, terms)
        self._target.refuse_other_topics(plan)
        self._target.refuse_members()
        self._target.refuse_offsets(plan, reset=terms.reset)
        if resumed:
            self.commit({self._group: self.notes.again(plan.id)})
            self._probe("handover_opened")
            return True
        self._target.refuse_rows(plan, reset=terms.reset)
        self.commit({self._group: self.notes.opened(plan, terms)})
        self.notes = self._target.notes()
        assert self.is_open(plan, terms), "the plan was committed and is not there"
        self._log.info("handover_opened", backfill=plan.id, how=terms.how, records=plan.records)
        self._probe("handover_opened")
        try:
            self._target.refuse_members()
        except CannotBackfillError:
            self.close_with("dropped")
            raise
        return False

    def commit(self, offsets: Mapping[str, Offsets], *, begun: bool = False) -> None:
        """Commit offsets of groups in one transaction.

        Args:
            begun: whether the transaction is open and has records already.
        """
        if not begun:
            self.producer.begin()
        for group, some in offsets.items():
            if some:
                metadata = group_metadata(self._target.config.admin_config(), group)
                self.producer.send_offsets(some, metadata)
        self.producer.commit()

    def finish(self, plan: BackfillPlan, live: Offsets, *, reset: bool, begun: bool) -> None:
        """Commit the application's offsets, and with them that the plan is done.

        Where state is replaced, what was deployed before is forgotten in the same transaction, so
        that whoever learns of the commit later has nothing left to do.

        Args:
            live: what the application begins from.

        Raises:
            CannotBackfillError: the application runs, or has offsets, or topics are others.
        """
        self._target.refuse_other_topics(plan)
        self._target.refuse_members()
        self._target.refuse_offsets(plan, reset=reset)
        self._probe("handover_checked")
        done = self.notes.become(plan.id, "done")
        topology = topology_group(self._target.group)
        other = self._target.forgotten_topology() if reset else {}
        offsets = {self._target.group: live, self._group: done, topology: other}
        self.commit(offsets, begun=begun)
        self.notes = self._target.notes()
        if other:
            self._target.groups.committed_at(topology, other)  # waits until that is decided, too
        self._probe("handover_committed")
        self._log.info("handover_committed", backfill=plan.id, inputs=len(live))

    def close_with(self, state: NoteState) -> None:
        """Commit what has become of the plan."""
        self.commit({self._group: self.notes.become(self._id, state)})
        self.notes = self._target.notes()
        self._log.info("handover_ended", backfill=self._id, state=state)

    def renew(self) -> bool:
        """Take a new producer, which decides what the last one left, and look what came of it.

        Returns:
            Whether the hand-over is done after all.
        """
        with and_then(self.producer.close, quietly=True):
            pass
        self.producer = make_producer(self._settings)
        self.producer.init()
        self.notes = self._target.notes()
        head = self.notes.head_of(self._id)
        return head is not None and head.state == "done"

    def certain(self, call: Callable[[], None]) -> None:
        """Make a call that ends the hand-over, and find out what came of it where it does not say.

        Raises:
            BackfillError: another driver has taken over.
        """
        try:
            call()
        except ProducerFencedError as error:
            raise fenced(self._id, error) from error
        except OutcomeUnknownError:
            if not self.renew():
                raise


def fenced(backfill_id: str, error: ProducerFencedError, way_out: str = "") -> BackfillError:
    """What a lead says that is none any more.

    Args:
        way_out: what to do where the transaction took too long.
    """
    return BackfillError(
        f"another driver has taken backfill {backfill_id} over, or a transaction took longer than "
        f"it may ({error}); see that one driver runs, and run the backfill again with the same id"
        f"{way_out}"
    )


def other_is_open(application_id: str, backfill_id: str, *, drop: bool = False) -> str:
    """Say that a backfill is in the way."""
    what = f"backfill {backfill_id} of {application_id} is "
    command = f"headrace backfill ... --drop --id {backfill_id}"
    if drop:
        return f"{what}being dropped; finish that with {command}"
    return (
        f"{what}open; finish it with headrace backfill ... --id {backfill_id}, or drop it with "
        f"{command}"
    )
