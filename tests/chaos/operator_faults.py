"""What operators do to a running application: rolling upgrades, and quotas of the cluster."""

from __future__ import annotations

import random
import time

from tests.chaos import application
from tests.chaos.battlefield import Battlefield, Struck
from tests.chaos.quotas import set_quotas
from tests.chaos.workers import Slot

_READY_S = 60.0
_ALONE_S = 120.0
_BYTE_RATES = (30_000.0, 100_000.0, 300_000.0)
"""Of each client; a worker writes several times as much."""
_REQUEST_PERCENTAGES = (None, 10.0, 40.0)


def upgrade(at: Battlefield, choose: random.Random) -> Struck | None:
    """Give the workers another version of the application, one after the other.

    Where a version refuses to start beside the one before, all workers are stopped first, as its
    message asks for. One that neither refuses nor is exact is found by the checks at the end.
    """
    fleet = at.fleet
    others = [one for one in application.VERSIONS if one != fleet.version]
    before, version = fleet.version, choose.choice(others)
    regular = [slot for slot in fleet.slots if not slot.place.is_spare]
    choose.shuffle(regular)
    fleet.is_upgrading = True
    try:
        hit = [_replace(at, choose, slot, version) for slot in regular]
        fleet.version = version
        refused = [slot.name for slot in fleet.slots if slot.refused]
        if refused:
            _restart_all(at, version)
        fleet.wait_busy(seconds=_READY_S)
    finally:
        fleet.is_upgrading = False
    details = {"versions": f"{before} to {version}", "refused": refused}
    return Struck(" ".join(s.name for s in regular), any(hit), regular[-1], details=details)


def _replace(at: Battlefield, choose: random.Random, slot: Slot, version: int) -> bool:
    """Stop a worker and start it in another version; returns whether a transaction was open."""
    fleet = at.fleet
    while not at.stop.is_set():
        with fleet.claim(choose, suits=lambda one: one is slot, busy=False) as claimed:
            if claimed is None:
                continue
            hit = slot.in_transaction
            fleet.remove(slot)
            slot.version = version
            fleet.add(slot)
            fleet.wait(lambda: slot.is_busy or slot.refused, seconds=_READY_S, stop=at.stop)
            return hit
    return False


def _restart_all(at: Battlefield, version: int) -> None:
    """Stop all workers and start them in one version, while nothing else strikes."""
    with at.turns.alone(seconds=_ALONE_S):
        living = [slot for slot in at.fleet.slots if slot.lives or slot.wanted or slot.refused]
        for slot in living:
            at.fleet.remove(slot)
            slot.version = version
        for slot in living:
            at.fleet.add(slot)
        at.fleet.wait_busy(seconds=_READY_S)


def throttle(at: Battlefield, choose: random.Random) -> Struck | None:
    """Have the brokers slow all clients down by quotas for some time."""
    rate, percentage = choose.choice(_BYTE_RATES), choose.choice(_REQUEST_PERCENTAGES)
    quotas = {"producer_byte_rate": rate, "request_percentage": percentage}
    hit = any(slot.in_transaction for slot in at.fleet.slots)
    began = time.monotonic()
    at.cluster.is_throttled = True
    try:
        set_quotas(at.cluster.bootstrap, quotas)
        at.stop.wait(choose.uniform(8.0, 20.0))
        set_quotas(at.cluster.bootstrap, dict.fromkeys(quotas))
    finally:
        at.cluster.is_throttled = False
    worker = next((slot for slot in at.fleet.slots if slot.is_busy), None)
    seconds = round(time.monotonic() - began, 1)
    return Struck("all clients", hit, worker, details={**quotas, "seconds": seconds})
