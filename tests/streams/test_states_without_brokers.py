"""While no broker is reached an application is connecting, whatever its worker drops meanwhile."""

from __future__ import annotations

from headrace import KafkaStreams, State, StreamsBuilder
from headrace.streams.worker.protocols import StateTracker


def an_app() -> tuple[KafkaStreams, list[State], StateTracker]:
    """One that runs, as far as its states tell; the states that follow."""
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    states: list[State] = []
    settings = {"application.id": "copy", "bootstrap.servers": "localhost:1"}
    app = KafkaStreams(builder.build(), settings, state_listener=lambda new, _: states.append(new))
    for state in (State.CONNECTING, State.REBALANCING, State.RUNNING):
        app._become(state)
    states.clear()
    return app, states, StateTracker(app._worked)


def test_partitions_that_are_lost_leave_it_connecting_until_a_broker_answers() -> None:
    app, states, tracker = an_app()
    app._on_brokers_lost()
    tracker.on_assignment([])
    assert states == [State.CONNECTING]
    app._on_brokers_found()
    assert states == [State.CONNECTING, State.REBALANCING]
    tracker.on_running()
    assert app.state is State.RUNNING


def test_one_that_lost_nothing_is_what_it_was() -> None:
    app, states, _ = an_app()
    app._on_brokers_lost()
    app._on_brokers_found()
    assert states == [State.CONNECTING, State.RUNNING]


def test_a_worker_that_runs_before_the_answer_comes_runs() -> None:
    app, states, tracker = an_app()
    app._on_brokers_lost()
    tracker.on_assignment([])
    tracker.on_running()
    app._on_brokers_found()
    assert states == [State.CONNECTING, State.RUNNING]
    tracker.on_assignment([])
    assert app.state is State.REBALANCING


def test_one_that_begins_again_is_not_held_by_an_earlier_loss() -> None:
    app, states, tracker = an_app()
    app._on_brokers_lost()
    app._reached()
    tracker.on_assignment([])
    tracker.on_running()
    assert states == [State.CONNECTING, State.REBALANCING, State.RUNNING]


def test_one_that_is_told_to_pause_meanwhile_is_paused_when_a_broker_answers() -> None:
    app, states, _ = an_app()
    app._on_brokers_lost()
    app._paused(True)
    app._on_brokers_found()
    assert states == [State.CONNECTING, State.PAUSED]
    app._on_brokers_lost()
    app._paused(False)
    app._on_brokers_found()
    assert states[2:] == [State.CONNECTING, State.RUNNING]
