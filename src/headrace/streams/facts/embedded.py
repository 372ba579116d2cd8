"""An application that runs in this process, in numbers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from headrace import __version__
from headrace.streams.facts.board import Board
from headrace.streams.facts.snapshots import ApplicationSnapshot, WorkerSnapshot, WorkerView
from headrace.streams.plan.plan import SubPlan
from headrace.streams.states import State
from headrace.topology.show.picture import Picture


def digest_of(plans: Sequence[SubPlan]) -> str:
    """What tells versions of a topology from each other: of the code that is made of it."""
    digest = hashlib.sha256()
    for plan in plans:
        digest.update(plan.program.source_code.encode())
    return digest.hexdigest()[:12]


def embedded(
    application: str,
    digest: str,
    state: str,
    facts: WorkerSnapshot | None,
    added: Sequence[WorkerView] = (),
) -> ApplicationSnapshot:
    """The application with its own worker, and those that were added."""
    own = WorkerView(index=0, state=state, pid=os.getpid(), restarts=0, facts=facts)
    return ApplicationSnapshot(
        application=application, version=__version__, topology=digest, workers=(own, *added)
    )


def board_of(facts: ApplicationSnapshot, now_s: float, picture: Picture | None = None) -> Board:
    """What is known of it; no loop looks after it, so none can have stopped to turn."""
    over = (State.PENDING_ERROR.value, State.ERROR.value)
    given_up = any(view.state in over for view in facts.workers)
    return Board(
        facts=facts,
        turned_s=now_s,
        is_loaded=True,
        is_given_up=given_up,
        picture=picture,
        why="the application in this process was stopped by an error",
    )
