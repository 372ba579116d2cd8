"""What is asked of a hand-over, whichever way it goes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.spark_bridge.handover.notes import How, Terms
from headrace.spark_bridge.handover.target import Target
from headrace.spark_bridge.handover.worker import UnitProbe, no_unit_probe
from headrace.streams.seams.clients import Probe, no_probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """See the module.

    Args:
        target: the application on its cluster.
        outputs: "write" or "skip" the records for topics outside of the application.
        reset: replace what the application has.
        probe: called between the steps of the driver, for tests.
        unit_probe: called between those of executors, for tests; it must travel.
    """

    target: Target
    outputs: str = "write"
    reset: bool = False
    probe: Probe = no_probe
    unit_probe: UnitProbe = no_unit_probe

    @property
    def with_sinks(self) -> bool:
        """Whether records for topics outside of the application are written."""
        return self.outputs == "write"

    def terms(self, how: How) -> Terms:
        """What a second attempt has to keep to."""
        return Terms(how, self.outputs, self.reset)
