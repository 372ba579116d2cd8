"""count, reduce and aggregate: how records are aggregated into the value of a row.

Aggregations of whole streams run as generated lines; aggregations of windows and sessions call the
functions given here. Grouped tables subtract as well as add, and sessions merge. This module holds
all differences between the three calls.

A fold holds the user's functions and nothing else, so two folds of the same functions are equal. An
operator takes the function for each record from here once, when it is made. A user's function with
suitable arguments is returned as it is, which adds no call per record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from headrace.topology.serdes import Serde

Initial = Callable[[], Any]
Change = Callable[[Any, Any, Any], Any]
"""Called as ``change(key, value, aggregate)``; returns the new aggregate, None for no row."""
Merge = Callable[[Any, Any, Any], Any]
"""Called as ``merge(key, first, second)`` with two aggregates, the older one first."""


class Fold(ABC):
    """Aggregation of records into the value of a row: count, reduce or aggregate."""

    __slots__ = ()

    word: ClassVar[Literal["count", "reduce", "aggregate"]]
    """Name of the DSL call, stored in the description of the deployed topology."""
    title: ClassVar[str] = "AGGREGATE"
    """Name in generated node names, as in Kafka Streams."""
    asks_user: ClassVar[bool] = True
    """Whether a user's function makes the value. It may raise, or return None to delete the row."""
    adds_with_key: ClassVar[bool] = False
    """Whether the function that adds a record takes its key."""
    reads_value: ClassVar[bool] = True
    first_is_value: ClassVar[bool] = False
    """Whether the value of the first record becomes the row unchanged."""
    makes: ClassVar[type | None] = None
    """Class of every value, or None if unknown."""
    source: ClassVar[str]
    """Expression for the new value from `key`, `value`, `old` (None without a row), `functions`."""
    merged: ClassVar[str] = "{merger}({key}, {old}, {partial})"
    """Expression that merges a row with a newer partial aggregate: `key`, `old` and `partial`."""

    @property
    def combines(self) -> bool:
        """Whether its partial aggregates can be merged into a row like the records themselves."""
        return False

    @property
    def reads_key(self) -> bool:
        """Whether any of its functions takes the key."""
        return self.adds_with_key

    def source_of(self, partial: str | None) -> str:
        """Return the expression for the new value, with support for a partial aggregate.

        Args:
            partial: the variable of the partial aggregate, which is None for a single record; None
                returns `source`.
        """
        if partial is None:
            return self.source
        assert self.combines, self
        merged = self.merged.replace("{partial}", partial)
        merged = f"{partial} if {{old}} is None else {merged}"
        return f"({self.source}) if {partial} is None else {merged}"

    @property
    @abstractmethod
    def initial(self) -> Initial:
        """Function that makes the initial aggregate."""

    @property
    @abstractmethod
    def add(self) -> Change:
        """Function that adds a record to an existing aggregate, possibly the initial aggregate."""

    @property
    @abstractmethod
    def step(self) -> Change:
        """Function that adds a record to a row, like `add`; the aggregate is None without a row."""

    @property
    @abstractmethod
    def remove(self) -> Change:
        """Function that subtracts a value added before, for grouped tables."""

    @property
    @abstractmethod
    def merge(self) -> Merge:
        """Function that merges two aggregates, for sessions; the first may be initial."""

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The user's functions by the names that `source` uses."""
        return {}


@dataclass(frozen=True, slots=True)
class Counting(Fold):
    """Aggregation that counts records.

    >>> [Counting().step("key", "value", count) for count in (None, 1)]
    [1, 2]
    """

    word = "count"
    asks_user = False
    reads_value = False
    makes = int
    source = "1 if {old} is None else {old} + 1"
    merged = "{old} + {partial}"
    combines: ClassVar[bool] = True

    @property
    def initial(self) -> Initial:
        return int

    @property
    def add(self) -> Change:
        return lambda _, __, count: count + 1

    @property
    def step(self) -> Change:
        return lambda _, __, count: 1 if count is None else count + 1

    @property
    def remove(self) -> Change:
        return lambda _, __, count: count - 1

    @property
    def merge(self) -> Merge:
        return lambda _, first, second: first + second


@dataclass(frozen=True, slots=True)
class Reducing(Fold):
    """Aggregation that combines values two at a time; the first value is the initial row.

    Args:
        adder: called as ``adder(aggregate, value)``.
        subtractor: called with a value to subtract; for grouped tables.
        merger: called as ``merger(key, first, second)``, if the user passed it.

    >>> [Reducing(max).step("key", 3, largest) for largest in (None, 5)]
    [3, 5]
    """

    adder: Callable[[Any, Any], Any]
    subtractor: Callable[[Any, Any], Any] | None = None
    merger: Merge | None = None

    word = "reduce"
    title = "REDUCE"
    first_is_value = True
    source = "{value} if {old} is None else {function}({old}, {value})"

    @property
    def combines(self) -> bool:
        """Whether the user passed a merger; an adder alone may depend on the order."""
        return self.merger is not None

    @property
    def reads_key(self) -> bool:
        return self.merger is not None

    @property
    def initial(self) -> Initial:
        return lambda: None

    @property
    def add(self) -> Change:
        """The same function as `step`, because the initial aggregate is None."""
        return self.step

    @property
    def step(self) -> Change:
        adder = self.adder
        return lambda _, value, old: value if old is None else adder(old, value)

    @property
    def remove(self) -> Change:
        subtractor = self.subtractor
        assert subtractor is not None, self
        return lambda _, value, old: subtractor(old, value)

    @property
    def merge(self) -> Merge:
        adder = self.adder
        return lambda _, first, second: second if first is None else adder(first, second)

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        return _given(function=self.adder, merger=self.merger)


@dataclass(frozen=True, slots=True)
class Aggregating(Fold):
    """Aggregation of values into an aggregate that the user's functions make.

    Args:
        initializer: makes an empty aggregate.
        adder: called as ``adder(key, value, aggregate)``.
        subtractor: called with a value to subtract; for grouped tables.
        merger: called as ``merger(key, first, second)``; for sessions and partial aggregates.

    >>> fold = Aggregating(list, lambda key, value, values: [*values, value])
    >>> [fold.step("key", 2, values) for values in (None, [1])]
    [[2], [1, 2]]
    """

    initializer: Initial
    adder: Change
    subtractor: Change | None = None
    merger: Merge | None = None

    word = "aggregate"
    adds_with_key = True
    source = "{function}({key}, {value}, {initializer}() if {old} is None else {old})"

    @property
    def combines(self) -> bool:
        return self.merger is not None

    @property
    def initial(self) -> Initial:
        return self.initializer

    @property
    def add(self) -> Change:
        return self.adder

    @property
    def step(self) -> Change:
        adder, initial = self.adder, self.initializer
        return lambda key, value, old: adder(key, value, initial() if old is None else old)

    @property
    def remove(self) -> Change:
        assert self.subtractor is not None, self
        return self.subtractor

    @property
    def merge(self) -> Merge:
        assert self.merger is not None, self
        return self.merger

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        return _given(function=self.adder, initializer=self.initializer, merger=self.merger)


@dataclass(frozen=True, slots=True)
class Combining:
    """Pre-aggregation in a sink: which aggregation is applied per key until the next flush.

    Args:
        node: the node of the aggregation downstream of the sink's topic.
        store: the store that has its rows.
        value: the serde of its values; None takes the setting ``default.value.serde``.
    """

    fold: Fold
    node: str
    store: str
    value: Serde[Any] | None = None


def _given(**functions: Callable[..., Any] | None) -> dict[str, Callable[..., Any]]:
    return {name: function for name, function in functions.items() if function is not None}
