"""Parts of a worker that its loop, its commits and its reactions to errors share.

    Application, WorkerDependencies ─► WorkerParts ─►
        Processing, Committer, Recovery, SnapshotCollector ─► Worker

`headrace.streams.worker.wiring` creates all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.streams.config.config import StreamsConfig
from headrace.streams.metrics.counters import Counters
from headrace.streams.metrics.hot_keys import HotKeys
from headrace.streams.tasks.backpressure import RepartitionBackpressure
from headrace.streams.tasks.fetch import FetchController
from headrace.streams.tasks.global_tables import GlobalTables
from headrace.streams.tasks.input_identity import InputIdentity
from headrace.streams.tasks.restore import Restorer
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.worker.commit_timing import CommitTiming
from headrace.streams.worker.membership import Membership
from headrace.streams.worker.progress_guard import ProgressGuard
from headrace.streams.worker.protocols import WorkerDependencies
from headrace.streams.worker.sink_writes import SinkWrites
from headrace.streams.worker.topic_watch import TopicWatch
from headrace.streams.worker.transactions import Transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Shared parts of a worker.

    Args:
        dependencies: clients, clock, log and listeners.
        progress_guard: detects work that takes too long to ever be committed.
        input_identity: detects inputs that were deleted or re-created.
    """

    config: StreamsConfig
    dependencies: WorkerDependencies
    tasks: Tasks
    transactions: Transactions
    membership: Membership
    restorer: Restorer
    global_tables: GlobalTables
    fetch: FetchController
    backpressure: RepartitionBackpressure
    progress_guard: ProgressGuard
    commit_timing: CommitTiming
    input_identity: InputIdentity
    topic_watch: TopicWatch
    sink_writes: SinkWrites
    counters: Counters
    hot_keys: HotKeys
