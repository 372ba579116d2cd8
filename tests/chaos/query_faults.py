"""What happens to the processes that are asked for stores."""

from __future__ import annotations

import random
import signal
import time

from tests.chaos.battlefield import Battlefield, Struck


def _strike(at: Battlefield, choose: random.Random, number: signal.Signals) -> Struck | None:
    if at.asked is None:
        return None
    host = choose.choice(at.asked.hosts)
    if host.process is None:
        return None
    is_open = any(s.in_transaction for s in at.fleet.slots if s.place.host == host.name)
    host.signal(number)
    struck = Struck(f"queries of host {host.name}", is_open)
    if number is signal.SIGSTOP:
        seconds = choose.uniform(1.0, 6.0)
        at.stop.wait(seconds)
        host.signal(signal.SIGCONT)
        struck.details["seconds"] = round(seconds, 1)
    else:
        time.sleep(0.1)
    return struck


def kill_query_host(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGKILL of what serves a host: connections are cut, and it comes back at once."""
    at.stop.wait(choose.uniform(0, 3))
    return _strike(at, choose, signal.SIGKILL)


def pause_query_host(at: Battlefield, choose: random.Random) -> Struck | None:
    """SIGSTOP of what serves a host: it is silent for some seconds, and behind when it goes on."""
    at.stop.wait(choose.uniform(0, 3))
    return _strike(at, choose, signal.SIGSTOP)
