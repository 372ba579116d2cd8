"""All kinds of faults, in the lanes that strike them side by side."""

from __future__ import annotations

from functools import partial

from tests.chaos.battlefield import Fault
from tests.chaos.broker_faults import (
    down_broker,
    group_coordinator_of,
    kill_all_brokers,
    leader_of,
    pause_broker,
    transaction_coordinator_of,
)
from tests.chaos.operator_faults import throttle, upgrade
from tests.chaos.query_faults import kill_query_host, pause_query_host
from tests.chaos.state_faults import (
    corrupt_state,
    lose_state,
    put_back_old_state,
    rebalance_during_restore,
)
from tests.chaos.status import COMMIT_STEPS
from tests.chaos.worker_faults import (
    die_at_step,
    fill_disk,
    kill_worker,
    move_clock,
    pause_worker,
    storm,
)
from tests.chaos.workers import BOTH_SHORT, SHORT_SESSION, SHORT_TRANSACTION

KILL_FAULTS: dict[str, Fault] = {
    "worker killed": kill_worker,
    "worker killed as its transaction begins": partial(die_at_step, step="transaction_begun"),
    **{
        f"worker killed after {step.replace('_', ' ')}": partial(die_at_step, step=step)
        for step in COMMIT_STEPS
    },
}

STATE_AND_PAUSE_FAULTS: dict[str, Fault] = {
    "worker paused beyond session and transaction": partial(
        pause_worker, profile=BOTH_SHORT, seconds=(8.0, 11.0)
    ),
    "worker paused beyond its session": partial(
        pause_worker, profile=SHORT_SESSION, seconds=(7.0, 10.0)
    ),
    "worker paused beyond its transaction": partial(
        pause_worker, profile=SHORT_TRANSACTION, seconds=(7.0, 9.0)
    ),
    "workers added and removed in a storm": storm,
    "rebalance during a restore": rebalance_during_restore,
    "state deleted": lose_state,
    "state corrupted": corrupt_state,
    "state replaced by an older copy": put_back_old_state,
    "disk full": fill_disk,
    "clock moved": move_clock,
}

BROKER_FAULTS: dict[str, Fault] = {
    "leader killed": partial(down_broker, pick=leader_of, clean=False),
    "leader bounced": partial(down_broker, pick=leader_of, clean=True),
    "group coordinator killed": partial(down_broker, pick=group_coordinator_of, clean=False),
    "group coordinator bounced": partial(down_broker, pick=group_coordinator_of, clean=True),
    "transaction coordinator killed": partial(
        down_broker, pick=transaction_coordinator_of, clean=False
    ),
    "transaction coordinator bounced": partial(
        down_broker, pick=transaction_coordinator_of, clean=True
    ),
    "all brokers killed": kill_all_brokers,
    "broker paused": pause_broker,
}

OPERATOR_FAULTS: dict[str, Fault] = {
    "rolling upgrade": upgrade,
    "cluster throttled": throttle,
}

QUERY_FAULTS: dict[str, Fault] = {
    "what serves stores killed": kill_query_host,
    "what serves stores paused": pause_query_host,
}
