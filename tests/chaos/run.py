"""One run: a cluster, an application, faults, a calm end, and what is to be said of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from tests.chaos import application, drain
from tests.chaos.aborted_index import suspects
from tests.chaos.asked import Asked, Calm
from tests.chaos.battlefield import INTERVAL_S, Battlefield, Fault, restore_size
from tests.chaos.broker_faults import LEADER_PROMISED_S, LEADER_WITHIN_S
from tests.chaos.check_figures import Counted, Logged, figures, read_lags
from tests.chaos.checker import check
from tests.chaos.cluster import Cluster
from tests.chaos.concurrent_reader import ConcurrentReader
from tests.chaos.diary import Diary
from tests.chaos.endings import ENDINGS, Scene, try_ending
from tests.chaos.faults import (
    BROKER_FAULTS,
    KILL_FAULTS,
    OPERATOR_FAULTS,
    QUERY_FAULTS,
    STATE_AND_PAUSE_FAULTS,
)
from tests.chaos.history import History
from tests.chaos.nemesis import Aim, Lane, Tally, run_lanes
from tests.chaos.options import Options
from tests.chaos.query_hosts import QueryHosts
from tests.chaos.reader import read_history, topic_names
from tests.chaos.report import (
    PartSummary,
    Score,
    fault_table,
    leader_changes,
    leader_lines,
    read_parts,
)
from tests.chaos.soak import Sample, Sampler, draw, growth, soak_lines
from tests.chaos.transactions import read_decided
from tests.chaos.verdict import KINDS
from tests.chaos.workers import BOTH_SHORT, ROOT, SHORT_SESSION, SHORT_TRANSACTION, Fleet, Place

PREFIX = "chaos-"
REGULAR = ("w0", "w1", "w2")
PLACES = (
    Place("w0", "a", BOTH_SHORT),
    Place("w1", "b", SHORT_SESSION),
    Place("w2", "a", SHORT_TRANSACTION),
    Place("w3", "b", BOTH_SHORT, is_spare=True),
)
SETTINGS = {
    "commit_interval_ms": int(INTERVAL_S * 1_000),
    # Transactions stay open from one interval to the next.
    "commit_interval_min_ms": int(INTERVAL_S * 1_000),
    "max_poll_records": 500,
    "poll_ms": 50,
    "task_timeout_ms": 60_000,
    "restore_batch_records": 200,
    "repartition_purge_interval_ms": 10_000,
}
_SOAK_SETTINGS = SETTINGS | {
    # A soak measures memory beside a load, not how many commits the brokers can do.
    "commit_interval_ms": 2_000,
    "commit_interval_min_ms": 2_000,
    # Caches take hours to fill, and what fills is taken for what grows; so they are small.
    "statestore_read_cache_max_bytes": 4 << 20,
    "rocksdb_block_cache_bytes": 8 << 20,
    "rocksdb_write_buffer_bytes": 16 << 20,
}


_PAUSE_S = (0.2, 2.5)
_SOAK_PAUSE_S = (120.0, 600.0)
"""Between two faults of a lane."""
_ORDERS_OF_PART = 1_000_000_000
"""The orders of each part have numbers of their own."""
_LATENCY_BOUND = "where nothing else struck, a new leader is followed by a commit within"


class LoadProcess:
    """`tests.chaos.load` in a process of its own."""

    def __init__(self, directory: Path, bootstrap: str, options: Options) -> None:
        self._report = directory / "load.json"
        arguments = {
            "bootstrap": bootstrap,
            "prefix": PREFIX,
            "rate": options.rate,
            "seed": options.part_seed,
            "first": (options.part - 1) * _ORDERS_OF_PART,
            "steady": options.soak_s > 0,
            "limit": 0,
            "report": str(self._report),
        }
        with (directory / "load.log").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.load", json.dumps(arguments)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def counts(self) -> dict[str, int]:
        """What it has written so far."""
        try:
            found: dict[str, int] = json.loads(self._report.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def stop(self, *, seconds: float) -> bool:
        """Have it end; whether everything that it wrote reached the brokers."""
        self._process.terminate()
        try:
            return self._process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Run:
    """Everything of one run."""

    def __init__(self, options: Options, say: Callable[[str], None] = print) -> None:
        self._options = options
        self._say = say
        self._score = Score(say)
        self._tally = Tally()
        self._is_drained = False
        options.directory.mkdir(parents=True, exist_ok=options.part > 1)
        options.part_directory.mkdir()
        self._diary = Diary(options.part_directory / "faults.jsonl")
        self._kinds = {
            "kills": _chosen(KILL_FAULTS, options),
            "states and pauses": _chosen(STATE_AND_PAUSE_FAULTS, options),
            "brokers": _chosen(BROKER_FAULTS, options),
            "queries": _chosen(QUERY_FAULTS, options),
            "operators": _chosen(OPERATOR_FAULTS, options),
        }
        self._earlier = read_parts(options.directory)
        self._problems: dict[str, int] = {}
        self._samples: list[Sample] = []
        self._asked = QueryHosts(
            options.directory, options.part_directory, PREFIX, PLACES, self._diary
        )
        self._calm_time: Calm | None = None
        self._told = Asked()

    def run(self) -> int:
        """Do it; returns the exit status."""
        options = self._options
        self._say(
            f"chaos: seed {options.seed}, {options.guarantee}, "
            f"{'default' if options.caches else 'no'} caches; logs and diary in "
            f"{options.part_directory}"
            + (f"; part {options.part} of {options.parts}" if options.parts > 1 else "")
        )
        began = time.monotonic()
        with Cluster(options.directory / "brokers") as cluster:
            self._phase("cluster started", began)
            self._make_topics(cluster)
            is_first = options.part == 1
            reader = ConcurrentReader(cluster.bootstrap, PREFIX, from_start=is_first)
            reader.start()
            with self._load(cluster) as load, self._fleet(cluster) as fleet:
                if options.soak_s:
                    self._soak(cluster, fleet, load)
                else:
                    self._fight(cluster, fleet, load)
                self._calm(cluster, fleet, load)
            self._check(cluster, reader, fleet)
            if options.is_last:
                self._end(cluster, fleet)
        self._blame_brokers()
        self._report(fleet)
        self._leave(fleet, load, seconds=time.monotonic() - began)
        self._say(f"took {time.monotonic() - began:.0f} s; seed {options.seed}")
        self._say(self._score.last_line())
        return 1 if self._score.failed else 0

    def _make_topics(self, cluster: Cluster) -> None:
        if self._options.part > 1:
            self._score.judge(cluster.wait_whole(90), "the cluster of the part before is whole")
            return
        topics = application.INPUTS | application.OUTPUTS | application.LATER_INPUTS
        for name, partitions in topics.items():
            cluster.create(application.topic(PREFIX, name), partitions)

    def _leave(self, fleet: Fleet, load: LoadProcess, *, seconds: float) -> None:
        """Leave what later parts, and the summary of all, need of this one."""
        score, tally = self._score, self._tally
        summary = PartSummary(
            part=self._options.part,
            seconds=round(seconds, 1),
            passed=score.passed,
            failed=score.failed,
            failures=tuple(score.failures),
            records=load.counts.get("written", 0),
            struck=tally.total,
            in_transaction=tally.mid_transaction,
            problems=self._problems,
            leaders=tuple(leader_changes(self._diary)),
            crashed=tuple(fleet.crashed),
            gave_up=fleet.gave_up,
            lives=tuple(asdict(life) for life in fleet.lives),
        )
        summary.write(self._options.part_directory)

    # -- the fight -----------------------------------------------------------------------------

    @contextmanager
    def _load(self, cluster: Cluster) -> Iterator[LoadProcess]:
        load = LoadProcess(self._options.part_directory, cluster.bootstrap, self._options)
        try:
            yield load
        finally:
            load.close()

    @contextmanager
    def _fleet(self, cluster: Cluster) -> Iterator[Fleet]:
        fleet = Fleet(
            self._options.directory,
            prefix=PREFIX,
            bootstrap=cluster.bootstrap,
            guarantee=self._options.guarantee,
            caches=self._options.caches,
            places=PLACES,
            diary=self._diary,
            settings=_SOAK_SETTINGS if self._options.soak_s else SETTINGS,
            endpoints={host.name: host.endpoint for host in self._asked.hosts},
        )
        fleet.start(REGULAR)
        self._asked.start(cluster.bootstrap, seed=self._options.seed)
        try:
            yield fleet
        finally:
            self._asked.close()
            fleet.close()

    def _soak(self, cluster: Cluster, fleet: Fleet, load: LoadProcess) -> None:
        """Watch the workers under constant load; strike only what `--kind` names, and seldom."""
        options = self._options
        sampler = Sampler(fleet, self._asked.hosts, options.part_directory / "soak.csv")
        sampler.start()
        if options.kinds:
            self._fight(cluster, fleet, load)
        else:
            self._start_work(cluster, fleet)
            over = threading.Event()
            watch = threading.Thread(target=self._tell, args=(over, load), daemon=True)
            watch.start()
            time.sleep(options.fault_s)
            over.set()
        self._samples = sampler.stop()

    def _start_work(self, cluster: Cluster, fleet: Fleet) -> None:
        began = time.monotonic()
        ready = fleet.wait_busy(seconds=60)
        self._score.judge(ready, "all workers process records before the first fault")
        cluster.wait_whole(30)
        self._phase("workers at work", began)

    def _fight(self, cluster: Cluster, fleet: Fleet, load: LoadProcess) -> None:
        options = self._options
        self._start_work(cluster, fleet)
        at = Battlefield(
            cluster=cluster,
            fleet=fleet,
            prefix=PREFIX,
            copies=options.directory / "copies",
            diary=self._diary,
            stop=threading.Event(),
            asked=self._asked,
        )
        aim = Aim(options.each, options.fault_s)
        began = time.monotonic()
        lanes = [
            Lane(
                name,
                kinds,
                at=at,
                tally=self._tally,
                aim=aim,
                seed=options.part_seed,
                pause_s=_SOAK_PAUSE_S if options.soak_s else _PAUSE_S,
            )
            for name, kinds in self._kinds.items()
            if kinds
        ]
        over = threading.Event()
        watch = threading.Thread(target=self._tell, args=(over, load), daemon=True)
        watch.start()
        run_lanes(lanes)
        over.set()
        self._phase("faults over", began)
        while load.counts.get("written", 0) < options.records and self._may_wait(began):
            time.sleep(1)
        restore_size(at)

    def _may_wait(self, began: float) -> bool:
        return time.monotonic() - began < self._options.fault_s

    def _tell(self, over: threading.Event, load: LoadProcess) -> None:
        while not over.wait(30):
            self._say(
                f"  {self._tally.total.total()} faults, {self._tally.mid_transaction.total()} in "
                f"a transaction; {load.counts.get('written', 0):,} records"
            )

    # -- the end -------------------------------------------------------------------------------

    def _calm(self, cluster: Cluster, fleet: Fleet, load: LoadProcess) -> None:
        options, judge = self._options, self._score.judge
        began = time.monotonic()
        cluster.start()
        is_whole = cluster.wait_whole(60)
        if not is_whole:
            nodes = cluster.restart_out_of_sync()
            self._say(f"note: nodes {nodes} did not replicate any more, and were restarted")
            is_whole = cluster.wait_whole(60)
        judge(is_whole, "the cluster is whole again")
        judge(load.stop(seconds=200), "all input reached the brokers", json.dumps(load.counts))
        self._phase("input ended", began)
        began = time.monotonic()
        found = drain.wait_drained(cluster.bootstrap, PREFIX, seconds=options.drain_s)
        self._is_drained = not found
        judge(self._is_drained, "the lag is drained")
        for line in drain.diagnosis(fleet, found) if found else ():
            self._say(f"    {line}")
        self._phase("lag drained", began)
        began = time.monotonic()
        tasks = application.PARTITIONS * len({*application.STORES.values()})
        self._calm_time = self._asked.wait_calm(fleet, tasks=tasks, seconds=20)
        judge(self._calm_time is not None, "in the end no task moves")
        self._told = self._asked.stop(self._calm_time)
        self._phase("nobody asks any more", began)
        judge(bool(self._told.answers), "stores were asked", f"{len(self._told.answers)} answers")
        judge(
            not self._asked.unprovoked,
            "who serves stores and who asks went on",
            "; ".join(self._asked.unprovoked),
        )
        began = time.monotonic()
        for path in _told_lags(fleet):
            # Whoever is gone by now told what is long over.
            path.unlink(missing_ok=True)
        fleet.stop_cleanly(seconds=60)
        self._phase("workers stopped", began)
        ends = fleet.unprovoked
        judge(not ends, "no worker ended for good", "; ".join(ends))
        judge(not fleet.crashed, "no worker was ended by a library", "; ".join(fleet.crashed))
        self._say(f"note: {fleet.gave_up} workers gave up on the brokers and were started again")
        written = load.counts.get("written", 0)
        judge(written >= options.records, f"{options.records:,} records of input", f"{written:,}")

    def _check(self, cluster: Cluster, reader: ConcurrentReader, fleet: Fleet) -> None:
        began = time.monotonic()
        options, judge = self._options, self._score.judge
        hosts = sorted({place.host for place in PLACES})
        history = read_history(
            cluster.bootstrap,
            PREFIX,
            state_dirs=[options.directory / f"state-{host}" for host in hosts],
            observed=reader.stop(),
            # A part that follows would take markers for data.
            marks=options.is_last,
        )
        history = replace(history, asked=self._told)
        self._phase("everything read", began)
        began = time.monotonic()
        verdict = check(
            history,
            guarantee=options.guarantee,
            caches=options.caches,
            drained=self._is_drained,
        )
        self._phase("checked", began)
        for line in verdict.report().splitlines():
            self._say(f"  {line}")
        for kind in KINDS:
            count = self._problems[kind] = verdict.counts.get(kind, 0)
            judge(count == 0, f"nothing of the kind: {kind.replace('_', ' ')}", f"{count}")
        if options.guarantee == "at_least_once":
            duplicates = sum(verdict.duplicates.values())
            judge(duplicates > 0, "at-least-once repeats, and the checker sees it", f"{duplicates}")
        else:
            self._compare(cluster, history, fleet)

    def _compare(self, cluster: Cluster, history: History, fleet: Fleet) -> None:
        """What the workers counted, beside what is found."""
        lives = [Counted(**life) for part in self._earlier for life in part.lives] + fleet.lives
        logs = [slot.log for slot in fleet.slots if slot.log.exists()]
        lags = read_lags(_told_lags(fleet), topic_names(PREFIX))
        made = read_decided(cluster.bootstrap, application.application_id(PREFIX))
        for one in figures(history, lives, Logged.of(logs), made, lags):
            self._score.judge(one.holds, f"figures: {one.what}", one.numbers)

    def _end(self, cluster: Cluster, fleet: Fleet) -> None:
        """Try what must end the application, now that nothing is to be checked any more."""
        if self._options.guarantee == "at_least_once":
            return
        began = time.monotonic()
        scene = Scene(cluster, PREFIX)
        for ending in ENDINGS:
            found = try_ending(ending, scene, fleet, fleet.slots[0])
            what = f"{ending.name}: a worker ends with {ending.code.name}, and writes nothing"
            self._score.judge(not found, what, "; ".join(found))
        self._phase("endings tried", began)

    def _blame_brokers(self) -> None:
        for line in suspects(self._options.directory / "brokers", PREFIX):
            self._say(f"note: readers may get aborted records of {line}")

    def _report(self, fleet: Fleet) -> None:
        options, tally, judge = self._options, self._tally, self._score.judge
        if options.soak_s:
            self._report_soak()
        kinds = [kind for lane in self._kinds.values() for kind in lane]
        for line in fault_table(kinds, tally):
            self._say(line)
        total = tally.total.total()
        judge(total >= options.faults, f"{options.faults} faults", str(total))
        rare = ", ".join(
            f"{kind} {tally.mid_transaction[kind]}"
            for kind in kinds
            if tally.mid_transaction[kind] < options.each
        )
        what = f"each kind of fault hit an open transaction {options.each} times"
        if options.complete:
            judge(not rare, what, rare)
        elif rare:
            self._say(f"note: too little time for some kinds: {rare}")
        judge(not tally.stuck, "after each fault processing went on", "; ".join(tally.stuck))
        judge(not tally.errors, "no fault broke the test itself", "; ".join(tally.errors))
        changes = leader_changes(self._diary)
        for line in leader_lines(changes):
            self._say(line)
        alone = [one.commit_s for one in changes if one.alone]
        for bound_s in (LEADER_WITHIN_S, LEADER_PROMISED_S):
            slow = sum(took_s > bound_s for took_s in alone)
            what, found = f"{_LATENCY_BOUND} {bound_s:g} s", f"{slow} of {len(alone)} took longer"
            # A busy machine that runs the tests must not make them fail.
            if options.complete and bound_s == LEADER_PROMISED_S:
                judge(not slow, what, found)
            else:
                self._say(f"note: {what}: {found}")

    def _report_soak(self) -> None:
        for line in soak_lines(self._samples):
            self._say(line)
        grown = growth(self._samples)
        self._score.judge(not grown, "nothing grows all the time", "; ".join(grown))
        try:
            path = draw(self._samples, self._options.part_directory / "soak.svg")
        except ImportError:
            self._say("note: no plots without matplotlib, which is in the extra bench")
        else:
            self._say(f"samples and plots: {path.with_suffix('.csv')}, {path}")

    def _phase(self, what: str, began: float) -> None:
        seconds = time.monotonic() - began
        self._diary.write("phase", what=what, seconds=round(seconds, 1))
        self._say(f"{what} after {seconds:.1f} s")


def _chosen(faults: dict[str, Fault], options: Options) -> dict[str, Fault]:
    if not options.kinds:
        return faults
    return {name: fault for name, fault in faults.items() if any(k in name for k in options.kinds)}


def _told_lags(fleet: Fleet) -> list[Path]:
    """Where workers write down how far they are behind as they end."""
    return [slot.status_path.with_suffix(".lags") for slot in fleet.slots]
