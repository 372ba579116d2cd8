"""Options of `KTable.suppress`: how long changes are buffered, and how large the buffer may be.

The specs are frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from headrace.state.spec import StoreSpec
from headrace.topology.arguments import require_choice
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Draft, DraftStep
from headrace.topology.graph.node import Node
from headrace.topology.java_names import Hinting
from headrace.topology.windows import duration_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferConfig(metaclass=Hinting):
    """Limits of a suppression's buffer, and the reaction when they are reached.

    Args:
        max_records: maximum number of buffered rows; None for no limit.
        max_bytes: maximum size of buffered rows in bytes, keys included, as they are stored; None
            for no limit. Each row is encoded once more to measure it.
        when_full: "emit_early" forwards the oldest rows before their time, "shut_down" stops the
            application. Only with "shut_down" the results are final.
        logged: whether a changelog topic backs the buffer, so that it survives the loss of its
            machine.
        topic_config: settings of the changelog topic that override the defaults.

    Raises:
        TopologyError: a limit is not valid.

    Examples:
        >>> BufferConfig(max_records=1000, when_full="shut_down").is_strict
        True
        >>> BufferConfig().is_strict, BufferConfig(max_bytes=1 << 20).is_strict
        (True, False)
    """

    max_records: int | None = None
    max_bytes: int | None = None
    when_full: Literal["emit_early", "shut_down"] = "emit_early"
    logged: bool = True
    topic_config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, bound in (("max_records", self.max_records), ("max_bytes", self.max_bytes)):
            if bound is not None and not isinstance(bound, int):
                raise TopologyError(f"{name} must be an int, not {type(bound).__name__}")
            if bound is not None and bound < 0:
                raise TopologyError(
                    f"BufferConfig() was given {name}={bound}; give it 0 or more, or leave it out"
                )
        require_choice("when_full", self.when_full, ("emit_early", "shut_down"))

    @property
    def is_strict(self) -> bool:
        """Whether rows are never forwarded before their time."""
        unbounded = self.max_records is None and self.max_bytes is None
        return unbounded or self.when_full == "shut_down"

    def spec(self, name: str) -> StoreSpec:
        """Return the spec of the buffer's store.

        Args:
            name: name of the store.
        """
        return StoreSpec(name, logged=self.logged, topic_config=self.topic_config)


_UNBOUNDED = BufferConfig()


@dataclass(frozen=True, slots=True)
class Suppressed(metaclass=Hinting):
    """Suppression policy of changes, created by `until_window_closes` or `until_time_limit`.

    Args:
        limit_ms: maximum delay in milliseconds of stream time; None until the window closes.
        buffer: limits of the buffer.
    """

    limit_ms: int | None
    buffer: BufferConfig

    @classmethod
    def until_window_closes(cls, *, buffer: BufferConfig = _UNBOUNDED) -> Suppressed:
        """Buffer the changes of a window until it is closed, so that each window has a single,
        final result.

        Args:
            buffer: limits of the buffer; it must not emit early, because results would not be
                final.

        Raises:
            TopologyError: the buffer emits early.

        Examples:
            >>> Suppressed.until_window_closes().limit_ms is None
            True
        """
        if not buffer.is_strict:
            raise TopologyError(
                "until_window_closes() emits only final results, which a buffer that emits early "
                "cannot guarantee; use when_full='shut_down', or no bound, or until_time_limit()"
            )
        return cls(None, buffer)

    @classmethod
    def until_time_limit(cls, limit: timedelta, *, buffer: BufferConfig = _UNBOUNDED) -> Suppressed:
        """Buffer the changes of a row for a time limit, then forward the last change.

        Args:
            limit: how long after the first buffered change, in stream time.
            buffer: limits of the buffer.

        Raises:
            TopologyError: the limit is not valid.

        Examples:
            >>> Suppressed.until_time_limit(timedelta(seconds=5)).limit_ms
            5000
        """
        return cls(duration_ms("limit", limit, at_least=0), buffer)


def close_wait_ms(draft: Draft, node: str) -> int:
    """Return the longest delay between end and close of a table's windows, in stream time."""
    steps = {n.name: step for step in draft.steps() for n in step.nodes}
    makers = _windowed(steps, node)
    if not makers:
        raise TopologyError(
            f"suppress() until windows close was called on {node!r}, which has no windows; "
            "aggregate the records in windows, or use Suppressed.until_time_limit()"
        )
    return max(_wait(maker, node) for maker in makers)


def _windowed(steps: Mapping[str, DraftStep], name: str) -> list[Node]:
    """Return the nearest upstream nodes that create windows; empty if an upstream path has none."""
    step = steps[name]
    node = next(n for n in step.nodes if n.name == name)
    if node.makes_windows:
        return [node]
    # The upstream nodes of a repartition topic's source are those of the topic's sink.
    parents = node.parents or (() if node is step.nodes[0] else step.parents)
    above = [_windowed(steps, parent) for parent in parents]
    return [maker for makers in above for maker in makers] if all(above) else []


def _wait(maker: Node, table: str) -> int:
    wait_ms = maker.close_wait_ms
    if wait_ms is None:
        raise TopologyError(
            f"suppress() until windows close was called on {table!r}, whose window never closes; "
            "use Suppressed.until_time_limit()"
        )
    return wait_ms
