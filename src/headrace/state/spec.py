"""Specification of a store: its name, its kind, its layout and its changelog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.state.layout import Layout, LayoutName
from headrace.state.segments import disk_name_of, layout_of, segment_ms_of

StoreKind = Literal["rocksdb", "memory"]

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
# Kafka's bound on a topic name; the changelog's name contains the store's.
_NAME_LENGTH_MAX = 249


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Specification of a store of a task.

    Args:
        name: Name with Kafka's legal characters only, because the changelog topic contains it.
        kind: "rocksdb" keeps rows on disk, "memory" only in the process.
        logged: Whether a changelog topic backs the store.
        cached: Whether only the last change of each key is forwarded downstream, at the commit.
        topic_config: Settings of the changelog topic that override the defaults.
        layout: Name of the rows' format, which also decides whether they have times.
        segmented: Whether rows with times are stored on disk in segments instead of with an index
            by time. Rows in memory have the index.
        retention_ms: How long rows are kept after their time, in stream time; None for ever.

    Raises:
        ValueError: The name or the kind is not legal.
        TypeError: A topic setting is not a string.

    Examples:
        >>> spec = StoreSpec("counts", topic_config={"cleanup.policy": "compact"})
        >>> spec.topic_config["cleanup.policy"]
        'compact'
        >>> spec in {spec}
        True
    """

    name: str
    kind: StoreKind = "rocksdb"
    logged: bool = True
    cached: bool = True
    topic_config: Mapping[str, str] = field(default_factory=dict, hash=False)
    layout: LayoutName = "plain"
    retention_ms: int | None = None
    segmented: bool = False

    @property
    def segment_ms(self) -> int | None:
        """Length of a segment in milliseconds; None for rows without segments."""
        has_segments = self.segmented and self.kind == "rocksdb"
        return segment_ms_of(self.retention_ms) if has_segments else None

    @property
    def rows(self) -> Layout:
        """The format of the rows on disk."""
        return layout_of(self.layout, self.segment_ms)

    @property
    def disk_name(self) -> str:
        """Name of the rows and of their position on disk, which differs for each format.

        A release that does not support a format, and an application with another length of
        segments, find no position under the name of their own format, so they restore the rows.

        >>> StoreSpec("w", layout="window", retention_ms=600_000, segmented=True).disk_name
        'w@300000'
        """
        return disk_name_of(self.name, self.segment_ms)

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.kind not in ("rocksdb", "memory"):
            raise ValueError(
                f"Store {self.name!r}: kind {self.kind!r} is unknown; use 'rocksdb' or 'memory'."
            )
        for name, value in self.topic_config.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(
                    f"Store {self.name!r}: topic setting {name!r}={value!r} must be a string "
                    f"with a string value; write it as {str(value)!r}."
                )
        object.__setattr__(self, "topic_config", dict(self.topic_config))


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        raise ValueError(
            f"Store name {name!r} is not legal: use letters, digits, '.', '_' and '-' "
            "(and not '.' or '..' alone), because the changelog topic is named after it."
        )
    if len(name) > _NAME_LENGTH_MAX:
        raise ValueError(
            f"Store name {name[:32]!r}... has {len(name)} characters; "
            f"Kafka's limit is {_NAME_LENGTH_MAX}."
        )
