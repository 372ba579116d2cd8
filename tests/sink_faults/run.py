"""One run: a broker, workers, a target, faults one after the other, and the recount."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.streams.devbroker import DevBroker, PortTakenError
from headrace.streams.devbroker.cluster import choose_base
from tests.chaos.diary import Diary
from tests.chaos.report import Score
from tests.sink_faults.check import check, read_committed
from tests.sink_faults.fleet import Fleet, Slot
from tests.sink_faults.targets import Target, targets
from tests.support.processes import ROOT

TOPIC, PARTITIONS = "sink-faults-in", 4
STEPS = ("sink_written", "offsets_sent", "transaction_committed")
_GOES_ON_S = 60.0
_HIT_S = 10.0

Struck = dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Options:
    """Of a run.

    Args:
        target: the kind of the sinks.
        faults: so many hit.
        records: so many are committed in the input, at least.
        rate: records written a second.
        seed: of faults and input.
        seconds: after which no fault begins.
        directory: for data and logs.
        kinds: parts of the names of faults to strike with; none for all.
    """

    target: str
    faults: int
    records: int
    rate: int
    seed: int
    seconds: float
    directory: Path
    kinds: tuple[str, ...] = ()


@dataclass
class Run:
    """See the module."""

    options: Options
    say: Callable[[str], None] = print
    hits: Counter[str] = field(default_factory=Counter)
    inside: Counter[str] = field(default_factory=Counter)
    """Hits that are known to have met a transaction of the sink."""
    goes_on_s: dict[str, list[float]] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def run(self) -> bool:
        """Do it; returns whether everything held."""
        options = self.options
        options.directory.mkdir(parents=True)
        self.score = Score(self.say)
        self.diary = Diary(options.directory / "faults.jsonl")
        self.say(f"{options.target}: seed {options.seed}, in {options.directory}")
        self._broker = DevBroker(options.directory / "broker", port=choose_base(1))
        self.target: Target = targets()[options.target]()
        began = time.monotonic()
        try:
            self._go()
        finally:
            self.target.close()
            self._broker.stop()
            self.diary.close()
        self.say(f"{options.target}: took {time.monotonic() - began:.0f} s; "
                 f"{self.score.last_line()}")  # fmt: skip
        return not self.score.failed

    def _go(self) -> None:
        options = self.options
        bootstrap = self._broker.start()
        topic = NewTopic(TOPIC, num_partitions=PARTITIONS, config={"retention.ms": "-1"})
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([topic])[TOPIC].result(timeout=30)
        plan = {
            "settings": _settings(bootstrap, options.target),
            "input": TOPIC,
            "target": options.target,
            "address": self.target.start(options.directory),
        }
        self.fleet = Fleet(options.directory, plan)
        load = _Load(options, bootstrap)
        try:
            self.fleet.start()
            self._fight()
            self._wait_written(load)
            self.score.judge(load.stop(), "all input reached the broker", json.dumps(load.told))
            self._calm(bootstrap)
        finally:
            load.close()
            self.fleet.close()

    # -- faults --------------------------------------------------------------------------------

    def _fight(self) -> None:
        options = self.options
        begins = self.fleet.wait(lambda: self.target.progress() > 0, seconds=60)
        self.score.judge(begins, "rows are written before the first fault")
        kinds = {
            name: strike
            for name, strike in {**self._strikes(), **self.target.strikes()}.items()
            if not options.kinds or any(part in name for part in options.kinds)
        }
        choose = random.Random(options.seed)
        deadline = time.monotonic() + options.seconds
        while self.hits.total() < options.faults and time.monotonic() < deadline:
            order = list(kinds)
            choose.shuffle(order)
            for kind in order:
                if self.hits.total() >= options.faults or time.monotonic() > deadline:
                    break
                self._strike(kind, kinds[kind], random.Random(choose.getrandbits(64)))
        self._report(kinds)

    def _strike(
        self, kind: str, strike: Callable[[random.Random], Struck], choose: random.Random
    ) -> None:
        try:
            struck = strike(choose)
        except Exception as error:  # a fault that breaks must not end the run in silence
            self.broken.append(f"{kind}: {error!r}")
            self.diary.write("fault_broken", kind=kind, reason=repr(error))
            time.sleep(1.0)
            return
        if struck is None:
            self.diary.write("fault_missed", kind=kind)
            return
        began, before = time.monotonic(), self.target.progress()
        self.hits[kind] += 1
        self.inside[kind] += bool(struck.get("in_transaction"))
        goes_on = self.fleet.wait(lambda: self.target.progress() > before, seconds=_GOES_ON_S)
        seconds = time.monotonic() - began
        self.diary.write("fault", kind=kind, goes_on_s=round(seconds, 2), **struck)
        self.goes_on_s.setdefault(kind, []).append(seconds)
        if not goes_on:
            self.stuck.append(f"{kind}: no row within {_GOES_ON_S:g} s")
        time.sleep(choose.uniform(0.1, 1.0))

    def _strikes(self) -> Mapping[str, Callable[[random.Random], Struck]]:
        return {
            "worker killed": self._kill,
            "worker killed in the middle of writing": self._kill_writer,
            **{
                f"worker killed after {step.replace('_', ' ')}": partial(self._die_at, step)
                for step in STEPS
            },
            "worker paused beyond its session": self._pause,
            "worker paused in the middle of writing": self._pause_writer,
            "broker killed": self._kill_broker,
        }

    def _slot(self, choose: random.Random) -> Slot | None:
        pids = self.fleet.pids()
        return self.fleet.slot_of(choose.choice(list(pids))) if pids else None

    def _kill(self, choose: random.Random) -> Struck:
        slot = self._slot(choose)
        if slot is None:
            return None
        self.fleet.kill(slot)
        return self._come_back(slot, choose)

    def _kill_writer(self, choose: random.Random) -> Struck:
        pids = self.fleet.pids()
        hit = self.target.in_the_middle(
            pids, choose, lambda pid: self.fleet.kill(self.fleet.slot_of(pid))
        )
        if hit is None:
            return None
        return {**self._come_back(self.fleet.slot_of(hit), choose), "in_transaction": True}

    def _come_back(self, slot: Slot, choose: random.Random) -> dict[str, Any]:
        away_s = choose.choice((0.0, 0.0, 8.0))
        time.sleep(away_s)
        slot.away = False
        return {"worker": slot.name, "away_s": away_s}

    def _die_at(self, step: str, choose: random.Random) -> Struck:
        slot = self._slot(choose)
        if slot is None or slot.process is None:
            return None
        process, path = slot.process, self.fleet.die_path(slot)
        path.write_text(step)
        died = self.fleet.wait(lambda: not process.running, seconds=_HIT_S)
        path.unlink(missing_ok=True)
        return {"worker": slot.name} if died else None

    def _pause(self, choose: random.Random) -> Struck:
        slot = self._slot(choose)
        if slot is None or slot.process is None:
            return None
        slot.process.pause()
        return self._go_on(slot.process.pid, slot.name, choose)

    def _pause_writer(self, choose: random.Random) -> Struck:
        pids = self.fleet.pids()
        hit = self.target.in_the_middle(pids, choose, lambda pid: os.kill(pid, signal.SIGSTOP))
        if hit is None:
            return None
        return {**self._go_on(hit, pids[hit], choose), "in_transaction": True}

    def _go_on(self, pid: int, name: str, choose: random.Random) -> dict[str, Any]:
        seconds = choose.uniform(8.0, 10.0)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        return {"worker": name, "seconds": round(seconds, 1)}

    def _kill_broker(self, choose: random.Random) -> Struck:
        self._broker.kill(1)
        away_s = choose.choice((0.0, 2.0, 8.0))
        time.sleep(away_s)
        deadline = time.monotonic() + 60
        while True:
            try:
                self._broker.start()
            except PortTakenError:
                # A busy machine: its port is held a while longer.
                assert time.monotonic() < deadline
                time.sleep(0.5)
            else:
                return {"away_s": away_s}

    def _report(self, kinds: Mapping[str, object]) -> None:
        width = max(map(len, kinds))
        self.say(f"{'fault':{width}}  hits  in a transaction  rows again after, at most")
        for kind in kinds:
            most_s = max(self.goes_on_s.get(kind, [0.0]))
            self.say(
                f"{kind:{width}}  {self.hits[kind]:4}  {self.inside[kind]:16}  {most_s:6.2f} s"
            )
        total, judge = self.hits.total(), self.score.judge
        judge(total >= self.options.faults, f"{self.options.faults} faults", str(total))
        judge(not self.stuck, "after each fault rows were written again", "; ".join(self.stuck))
        judge(not self.broken, "no fault broke the test itself", "; ".join(self.broken))

    # -- the end -------------------------------------------------------------------------------

    def _wait_written(self, load: _Load) -> None:
        records = self.options.records
        deadline = time.monotonic() + 60 + records / self.options.rate
        while load.committed < records and time.monotonic() < deadline:
            time.sleep(0.5)
        self.score.judge(
            load.committed >= records, f"{records:,} committed records", f"{load.committed:,}"
        )

    def _calm(self, bootstrap: str) -> None:
        records = read_committed(bootstrap, TOPIC)
        appended = sum(value is not None for _, value in records)
        began = time.monotonic()
        limit_s = 120 + len(records) / 2_000
        while len(self.target.appended()) < appended and time.monotonic() - began < limit_s:
            time.sleep(2.0)
        # What is too much, or still to come in the other table, comes meanwhile.
        verdict = check(records, self.target.appended(), self.target.upserted())
        while verdict.stale and time.monotonic() - began < limit_s:
            time.sleep(2.0)
            verdict = check(records, self.target.appended(), self.target.upserted())
        self.say(f"rows complete {time.monotonic() - began:.1f} s after the input's end")
        self.fleet.stop_cleanly()
        verdict = check(records, self.target.appended(), self.target.upserted())
        for line in verdict.examples[:10]:
            self.say(f"    {line}")
        judge = self.score.judge
        judge(
            verdict.is_right,
            f"rows equal the recount of {len(records):,} committed records",
            str(verdict),
        )
        judge(not self.fleet.unprovoked, "no worker ended for good", str(self.fleet.unprovoked))
        self.say(f"note: {self.fleet.restarts} workers ended by themselves and were started again")


class _Load:
    """`tests.sink_faults.load` in a process of its own."""

    def __init__(self, options: Options, bootstrap: str) -> None:
        self._report = options.directory / "load.json"
        plan = {
            "bootstrap": bootstrap,
            "topic": TOPIC,
            "rate": options.rate,
            "keys": 2_000,
            "seed": options.seed,
            "report": str(self._report),
        }
        with (options.directory / "load.log").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.sink_faults.load", json.dumps(plan)],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def told(self) -> dict[str, int]:
        try:
            found: dict[str, int] = json.loads(self._report.read_text())
        except (OSError, ValueError):
            return {}
        return found

    @property
    def committed(self) -> int:
        return self.told.get("committed", 0)

    def stop(self) -> bool:
        self._process.terminate()
        try:
            return self._process.wait(90) == 0
        except subprocess.TimeoutExpired:
            return False

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _settings(bootstrap: str, target: str) -> dict[str, Any]:
    return {
        "application.id": f"sink-faults-{target}",
        "bootstrap.servers": bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": 200,
        "poll.ms": 20,
        "task.timeout.ms": 60_000,
        "consumer.session.timeout.ms": 6_000,
    }
