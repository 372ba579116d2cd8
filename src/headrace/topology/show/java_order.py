"""The order in which Java's hash and tree collections return their elements.

Kafka Streams prints topologies in such orders, so they are part of the text that is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


def hash_order(names: Iterable[str], *, sized: bool = False) -> list[str]:
    """The order of a ``java.util.HashSet``, or of the keys of a ``HashMap``.

    Args:
        names: distinct strings, in the order in which they are added.
        sized: whether the set was made of another collection at once, which sizes it beforehand.
    """
    added = list(names)
    capacity = 16
    while capacity < len(added) / 0.75 + sized:
        capacity *= 2
    return sorted(added, key=lambda name: _spread(_string_hash(name)) & (capacity - 1))


def _string_hash(text: str) -> int:
    units = memoryview(text.encode("utf-16-le")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def _spread(value: int) -> int:
    return value ^ (value >> 16)


@dataclass(slots=True, eq=False)
class _Entry(Generic[T]):
    item: T
    parent: _Entry[T] | None
    left: _Entry[T] | None = None
    right: _Entry[T] | None = None
    red: bool = True


@dataclass(slots=True, eq=False)
class TreeSet(Generic[T]):
    """A ``java.util.TreeSet``, as far as adding goes.

    What the comparison answers may change between additions. Where an element then ends up depends
    on the shape of the tree, which is why the tree is balanced the way Java does it.
    """

    compare: Callable[[T, T], int]
    _root: _Entry[T] | None = field(default=None)

    def __iter__(self) -> Iterator[T]:
        return self._walk(self._root)

    def _walk(self, entry: _Entry[T] | None) -> Iterator[T]:
        if entry is not None:
            yield from self._walk(entry.left)
            yield entry.item
            yield from self._walk(entry.right)

    def add(self, item: T) -> None:
        """Add an element, unless one that compares equal is met on the way down."""
        parent, order = None, 0
        entry = self._root
        while entry is not None:
            parent, order = entry, self.compare(item, entry.item)
            if order == 0:
                return
            entry = entry.left if order < 0 else entry.right
        added = _Entry(item, parent)
        if parent is None:
            self._root = added
        elif order < 0:
            parent.left = added
        else:
            parent.right = added
        self._balance(added)

    def _balance(self, entry: _Entry[T]) -> None:
        while entry.parent is not None and entry.parent.red and entry.parent.parent is not None:
            parent, grand = entry.parent, entry.parent.parent
            on_left = parent is grand.left
            uncle = grand.right if on_left else grand.left
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                grand.red = True
                entry = grand
                continue
            if entry is (parent.right if on_left else parent.left):
                self._rotate(parent, left=on_left)
                entry, parent = parent, entry
            parent.red = False
            grand.red = True
            self._rotate(grand, left=not on_left)
        assert self._root is not None
        self._root.red = False

    def _rotate(self, entry: _Entry[T], *, left: bool) -> None:
        child = entry.right if left else entry.left
        assert child is not None
        inner = child.left if left else child.right
        if left:
            entry.right, child.left = inner, entry
        else:
            entry.left, child.right = inner, entry
        if inner is not None:
            inner.parent = entry
        child.parent = entry.parent
        if entry.parent is None:
            self._root = child
        elif entry.parent.left is entry:
            entry.parent.left = child
        else:
            entry.parent.right = child
        entry.parent = child
