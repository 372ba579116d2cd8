"""Definition of a job: inputs, expected output, and the topology.

Inputs follow from a shape and its seed. Expected outputs are computed while the input is generated,
by plain Python that uses neither Headrace nor a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from benchmarks.jobs.shape import Ranges, Shape
from headrace.topology.topology import Topology

WINDOW_MS = 10_000
SLIDING_MS = 2_000
GAP_MS = 5_000
JOIN_MS = 10_000
GRACE_MS = 10_000
PARAMETERS = {
    "window.ms": WINDOW_MS,
    "sliding.ms": SLIDING_MS,
    "gap.ms": GAP_MS,
    "join.ms": JOIN_MS,
    "grace.ms": GRACE_MS,
}
"""Parameters of the topologies, which peers in other languages get by these names."""

Record = tuple[bytes | None, bytes, int]
"""Key, value, and the timestamp in milliseconds."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected output.

    Args:
        last: last value of each key in the output topic, without deleted keys. With `each_record`,
            all records: key and value together, and the value.
        outputs: number of records that are written without caches; None if it depends on the order
            in which topics are read.
        each_record: whether every record is expected, because the last one of a key depends on that
            order. Values are unique.
    """

    last: Mapping[bytes, bytes]
    outputs: int | None
    each_record: bool = False


@dataclass(frozen=True, slots=True)
class Dataset:
    """Input of a job, and its expected output.

    Args:
        inputs: records of each input topic in order of arrival, by the topic's suffix.
        expected: expected output.
        rows: number of rows that windows, sessions or the join have created.
    """

    inputs: Mapping[str, list[Record]]
    expected: Expected
    rows: int = 0

    @property
    def records(self) -> int:
        """Number of input records."""
        return sum(map(len, self.inputs.values()))


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Args:
        name: name in options and results; peers use `kind`.
        title: title in tables.
        generate: generates the input of a shape.
        topology: called with the prefix of the input topics, and with the output topic.
        shapes: fixed shapes, the hardest shape first.
        ranges: ranges of random shapes.
        kind: name of the program; several jobs may run one program on different inputs.
        stateful: whether there is state to cache.
    """

    name: str
    title: str
    generate: Callable[[Shape], Dataset]
    topology: Callable[[str, str], Topology]
    shapes: tuple[Shape, ...]
    ranges: Ranges | None = None
    kind: str = field(kw_only=True)
    stateful: bool = field(kw_only=True, default=True)

    def shape(self, records: int) -> Shape:
        """Return the first shape with another number of records, and the same keys."""
        return replace(self.shapes[0], records=records)


def topic(source: str, suffix: str) -> str:
    """Return the name of an input topic."""
    return f"{source}-{suffix}"
