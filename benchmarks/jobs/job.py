"""What a job is: inputs, what must come out of them, and the topology.

Inputs are the same in every run: the seed is fixed. Expectations are counted while the input is
made, by plain Python that knows neither Headrace nor what it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.topology.topology import Topology

SEED = 20_240_229
START_MS = 1_700_000_000_000

Record = tuple[bytes | None, bytes, int]
"""Key, value, and the time in milliseconds."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What must come out.

    Args:
        last: the last value of each key in the output topic; keys that end deleted are left out.
        outputs: how many records are written when nothing is held back; None where that depends
            on the order in which topics are read.
    """

    last: Mapping[bytes, bytes]
    outputs: int | None


@dataclass(frozen=True, slots=True)
class Made:
    """The input of a job, and what must come out of it.

    Args:
        inputs: the records of each input topic, by the end of the topic's name, in their order of
            time; a topic's records are older than those of the topics after it, or side by side.
        expected: what must come out.
    """

    inputs: Mapping[str, list[Record]]
    expected: Expected

    @property
    def records(self) -> int:
        """How many records go in."""
        return sum(map(len, self.inputs.values()))


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Args:
        name: what options and results call it; peers know it by `kind`.
        title: what the table calls it.
        records: how many there are by default.
        make: makes the input, of about as many records as it is told.
        topology: called with the name of the input topics up to their ends, and with the output's.
        kind: the program; several jobs may be one program on different inputs.
        stateful: whether there is something to cache.
    """

    name: str
    title: str
    records: int
    make: Callable[[int], Made]
    topology: Callable[[str, str], Topology]
    kind: str = field(kw_only=True)
    stateful: bool = field(kw_only=True, default=True)


def topic(source: str, end: str) -> str:
    """The name of an input topic."""
    return f"{source}-{end}"
