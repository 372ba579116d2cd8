"""count, reduce and aggregate: how a row's value is made of records.

Whole streams fold in generated lines, windows and sessions in objects; grouped tables take away as
well as add, and sessions merge. What the three calls differ in is said here, and read everywhere
else.

A fold holds the user's functions and nothing else, so two folds of the same functions are equal.
What an operator calls for each record it takes from here once, when it is made: a user's function
stays what it is wherever it has the right arguments, and costs no call more.
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
"""Called as ``merge(key, one, other)`` with two aggregates, the older one first."""


class Fold(ABC):
    """What one of the calls does to a row."""

    __slots__ = ()

    word: ClassVar[Literal["count", "reduce", "aggregate"]]
    """The call. Descriptions of what is deployed keep it."""
    title: ClassVar[str] = "AGGREGATE"
    """What names call it that Kafka Streams generates."""
    asks_user: ClassVar[bool] = True
    """Whether a user's function makes the value: it may fail, and may say that there is no row."""
    adds_with_key: ClassVar[bool] = False
    """Whether what adds a record is given its key."""
    reads_value: ClassVar[bool] = True
    first_is_value: ClassVar[bool] = False
    """Whether the value of a first record is the row, as it is."""
    makes: ClassVar[type | None] = None
    """The class that every value has, where that is known."""
    source: ClassVar[str]
    """The new value in Python: of `key`, `value`, `old` (None without a row), and `functions`."""
    merged: ClassVar[str] = "{merger}({key}, {old}, {partial})"
    """That of a row and of a partial result, which is newer: of `key`, `old` and `partial`."""

    @property
    def combines(self) -> bool:
        """Whether partial results of it can be merged into a row as if they were its records."""
        return False

    @property
    def reads_key(self) -> bool:
        """Whether any of its functions is given the key."""
        return self.adds_with_key

    def source_of(self, partial: str | None) -> str:
        """The same where a variable has a partial result, or None where the record is single."""
        if partial is None:
            return self.source
        assert self.combines, self
        merged = self.merged.replace("{partial}", partial)
        merged = f"{partial} if {{old}} is None else {merged}"
        return f"({self.source}) if {partial} is None else {merged}"

    @property
    @abstractmethod
    def initial(self) -> Initial:
        """Makes the aggregate that a row begins with."""

    @property
    @abstractmethod
    def add(self) -> Change:
        """What a record does to an aggregate that is there, be it the initial one."""

    @property
    @abstractmethod
    def step(self) -> Change:
        """What a record does to a row: as `add`, with None for the aggregate of no row."""

    @property
    @abstractmethod
    def remove(self) -> Change:
        """Takes a value away that was added: what grouped tables do."""

    @property
    @abstractmethod
    def merge(self) -> Merge:
        """Makes one aggregate of two: what sessions do. The first may be the initial one."""

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The user's functions by the names that `source` calls them by."""
        return {}


@dataclass(frozen=True, slots=True)
class Counting(Fold):
    """Counts records.

    >>> [Counting().step("key", "value", count) for count in (None, 1)]
    [1, 2]
    """

    word = "count"
    asks_user = False
    reads_value = False
    makes = int
    source = "1 if {old} is None else {old} + 1"
    merged = "{old} + {partial}"

    @property
    def combines(self) -> bool:
        """Sums of counts are counts."""
        return True

    @property
    def initial(self) -> Initial:
        """Zero."""
        return int

    @property
    def add(self) -> Change:
        """One more."""
        return lambda _, __, count: count + 1

    @property
    def step(self) -> Change:
        """One more than there were."""
        return lambda _, __, count: 1 if count is None else count + 1

    @property
    def remove(self) -> Change:
        """One less."""
        return lambda _, __, count: count - 1

    @property
    def merge(self) -> Merge:
        """The sum of both."""
        return lambda _, one, other: one + other


@dataclass(frozen=True, slots=True)
class Reducing(Fold):
    """Combines values two at a time; the first is taken as it is.

    Args:
        adder: called as ``adder(aggregate, value)``.
        subtractor: the same for a value that goes; for grouped tables.
        merger: called as ``merger(key, one, other)``, if somebody has declared it.

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
        """Whether somebody has said how; that it reduces says nothing of the order."""
        return self.merger is not None

    @property
    def reads_key(self) -> bool:
        """A merger does."""
        return self.merger is not None

    @property
    def initial(self) -> Initial:
        """Nothing yet."""
        return lambda: None

    @property
    def add(self) -> Change:
        """The same as `step`: nothing is an aggregate like any other."""
        return self.step

    @property
    def step(self) -> Change:
        """Combines the value with those before."""
        adder = self.adder
        return lambda _, value, old: value if old is None else adder(old, value)

    @property
    def remove(self) -> Change:
        """Takes the value away from those that are left."""
        subtractor = self.subtractor
        assert subtractor is not None, self
        return lambda _, value, old: subtractor(old, value)

    @property
    def merge(self) -> Merge:
        """Combines both."""
        adder = self.adder
        return lambda _, one, other: other if one is None else adder(one, other)

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """What combines, and what merges."""
        return _given(function=self.adder, merger=self.merger)


@dataclass(frozen=True, slots=True)
class Aggregating(Fold):
    """Takes values into an aggregate that the user's functions make.

    Args:
        initializer: makes an empty aggregate.
        adder: called as ``adder(key, value, aggregate)``.
        subtractor: the same for a value that goes; for grouped tables.
        merger: called as ``merger(key, one, other)``; for sessions, and partial results.

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
        """Whether somebody has said how."""
        return self.merger is not None

    @property
    def initial(self) -> Initial:
        """The user's own."""
        return self.initializer

    @property
    def add(self) -> Change:
        """The user's own."""
        return self.adder

    @property
    def step(self) -> Change:
        """The user's function, of an empty aggregate where there is no row."""
        adder, initial = self.adder, self.initializer
        return lambda key, value, old: adder(key, value, initial() if old is None else old)

    @property
    def remove(self) -> Change:
        """The user's own."""
        assert self.subtractor is not None, self
        return self.subtractor

    @property
    def merge(self) -> Merge:
        """The user's own."""
        assert self.merger is not None, self
        return self.merger

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """What adds, what makes an empty aggregate, and what merges."""
        return _given(function=self.adder, initializer=self.initializer, merger=self.merger)


@dataclass(frozen=True, slots=True)
class Combining:
    """How a sink folds the records of a key until the next flush, for the fold behind its topic.

    Args:
        fold: what it does to a row.
        node: the fold's node.
        store: the store that has its rows.
        value: the serde of its values; None takes the setting ``default.value.serde``.
    """

    fold: Fold
    node: str
    store: str
    value: Serde[Any] | None = None


def _given(**functions: Callable[..., Any] | None) -> dict[str, Callable[..., Any]]:
    return {name: function for name, function in functions.items() if function is not None}
