"""What goes wrong in the tasks and in the driver of a hand-over in parts; importable everywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headrace.spark_bridge.handover.target import HandoverTarget
from headrace.spark_bridge.handover.units import HandoverUnit, units_of
from headrace.spark_bridge.plan.job import CompiledApplication
from tests.spark_bridge.support.handed import word_count
from tests.spark_bridge.support.local_rows import batches_of, computed
from tests.spark_bridge.support.ways import unit_writer
from tests.support.processes import ROOT

Kind = Literal["raise_half_way", "raise_after_commit", "kill_worker", "twin_commits_first"]
KINDS: tuple[Kind, ...] = (
    "raise_half_way",
    "raise_after_commit",
    "kill_worker",
    "twin_commits_first",
)
HALF_WAY_BATCHES = 5


@dataclass
class UnitFault:
    """Fails once in one unit: whoever comes first leaves a file that says so.

    Args:
        kind: what happens.
        unit: in which unit.
        directory: where the file is.
        told: the application, for the process of a twin.
    """

    kind: Kind
    unit: str
    directory: str
    told: dict[str, Any] = field(default_factory=dict)
    batches: int = 0

    def __call__(self, step: str, unit: str) -> None:
        """Be called at a step of an executor."""
        if unit != self.unit:
            return
        self.batches += step == "batch"
        half_way = step == "batch" and self.batches == HALF_WAY_BATCHES
        if step != "committed" if self.kind == "raise_after_commit" else not half_way:
            return
        try:
            self._mark.touch(exist_ok=False)
        except FileExistsError:
            return
        time.sleep(0.2)  # so that half of the records are on the broker
        if self.kind == "kill_worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "twin_commits_first":
            run_twin(self.told, unit)
            return
        raise ValueError(f"planted: {self.kind}")

    @property
    def _mark(self) -> Path:
        return Path(self.directory) / f"{self.kind}-{self.unit}"

    @property
    def has_happened(self) -> bool:
        """Whether it did."""
        return self._mark.exists()


def run_twin(told: dict[str, Any], unit: str) -> None:
    """Have another process write the unit, as a speculative attempt of the same task would."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.spark_bridge.support.handover_faults",
            json.dumps(told),
            unit,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def write_as_twin(told: dict[str, Any], name: str) -> None:
    """Write a unit of the plan that is open."""
    topology = word_count(told["source"], told["sink"])
    application = CompiledApplication.of(topology, told["settings"])
    target = HandoverTarget.live(application)
    opened = target.notes().open_head
    assert opened is not None
    plan = target.notes().plan_of(opened[1])
    assert plan is not None
    units = units_of(application, plan)
    unit: HandoverUnit = next(unit for unit in units if unit.name == name)
    rows = computed(topology, told["settings"], plan).local.of(unit)
    write = unit_writer(target, opened, plan, units, reset=False)
    (report,) = [row for batch in write(batches_of(rows)) for row in batch.to_pylist()]
    assert report["written"], report


if __name__ == "__main__":
    write_as_twin(json.loads(sys.argv[1]), sys.argv[2])
