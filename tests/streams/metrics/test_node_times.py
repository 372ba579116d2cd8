"""Which node a worker's thread is in is told by its frames."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.streams.metrics.measures import NodeKey
from headrace.streams.metrics.node_times import NodeTimes
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes


class Looks:
    """A user's function at whose call the sampler looks at this thread."""

    def __init__(self) -> None:
        self.times: NodeTimes | None = None

    def __call__(self, value: Any) -> Any:
        assert self.times is not None
        self.times.sample(sys._getframe(), 0.5, "poll")
        return value


def run(make: Callable[[StreamsBuilder, Looks], Any]) -> NodeTimes:
    builder, looks = StreamsBuilder(), Looks()
    make(builder, looks)
    topology = builder.build()
    with TopologyTestDriver(topology) as driver:
        programs = [plan.program for plan in driver._plans]
        looks.times = NodeTimes(programs)
        driver.input("in", key=serdes.string, value=serdes.string).send("k", "v")
    return looks.times


def test_a_users_function_counts_for_the_node_that_calls_it() -> None:
    times = run(
        lambda builder, looks: (
            builder.stream("in", key=serdes.string, value=serdes.string)
            .map_values(lambda value: looks(value), name="one")
            .map_values(str.upper, name="other")
            .to("out")
        )
    ).times()
    assert times.nodes == {NodeKey(0, "one", True): 0.5}
    assert times.busy == {"process": 0.5}


def test_a_function_of_the_user_behind_one_of_the_library_is_the_users() -> None:
    def make(builder: StreamsBuilder, looks: Looks) -> None:
        stream = builder.stream("in", key=serdes.string, value=serdes.string)
        stream.process(lambda: _Processor(looks), name="one")

    assert run(make).times().nodes == {NodeKey(0, "one", True): 0.5}


class _Processor:
    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def init(self, context: Any) -> None:
        pass

    def process(self, record: Any) -> None:
        self._looks(record)

    def close(self) -> None:
        pass


def test_what_the_loop_does_beside_nodes_is_told_by_its_step() -> None:
    times = NodeTimes([])
    times.sample(None, 1.0, None)
    times.sample(sys._getframe(), 1.0, None)
    assert times.times().busy == {}
    times.sample(sys._getframe(), 1.0, "commit")
    assert times.times().busy == {"commit": 1.0}


def test_a_thread_is_looked_at_until_the_block_ends() -> None:
    builder = StreamsBuilder()
    seen = threading.Event()
    builder.stream("in", key=serdes.string, value=serdes.string).map_values(
        lambda value: (seen.wait(0.5), value)[1], name="slow"
    ).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        times = NodeTimes([plan.program for plan in driver._plans], every_s=0.01)
        with times.watching(threading.get_ident(), lambda: None):
            driver.input("in", key=serdes.string, value=serdes.string).send("k", "v")
        found = times.times().nodes[NodeKey(0, "slow", True)]
        assert 0.1 < found < 30
        before = times.times()
        time.sleep(0.05)
        assert times.times() == before


def test_nobody_looks_where_it_is_switched_off() -> None:
    times = NodeTimes([], every_s=0)
    before = threading.active_count()
    with times.watching(threading.get_ident(), lambda: None):
        assert threading.active_count() == before


def test_a_line_of_the_library_is_the_nodes_own() -> None:
    from headrace.streams.metrics.node_times import _PACKAGE_DIR, _is_user_code

    def frame(file: str) -> Any:
        code = compile("import sys; found = sys._getframe()", file, "exec")
        names: dict[str, Any] = {}
        exec(code, names)
        return names["found"]

    ours, users = frame(_PACKAGE_DIR + "topology/serdes/x.py"), frame("/home/me/app.py")
    library = frame(json.__file__)
    made = frame("<string>")
    assert not _is_user_code([])
    assert not _is_user_code([ours])
    assert not _is_user_code([ours, library])
    assert not _is_user_code([ours, made])
    assert _is_user_code([users])
    assert _is_user_code([library])
    assert _is_user_code([made])
    assert _is_user_code([ours, users, library])
    assert _is_user_code([ours, made, users])


def test_a_frame_between_two_lines_is_of_no_node() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        (program,) = [plan.program for plan in driver._plans]

    class Frame:
        f_lineno, f_back = None, None

        class f_code:  # noqa: N801
            co_filename, co_name = program.filename, "process_0"

    times = NodeTimes([program])
    times.sample(Frame(), 1.0, None)  # type: ignore[arg-type]
    assert times.times().nodes == {}
