"""Who may write under the name of a mirror: the process that has begun last.

A producer that is fenced, or whose commit has no answer, may only have been slow, or another
process may have the name. The table says which: each process writes its id there as it begins.
"""

from __future__ import annotations

import uuid

from headrace.streams.errors import IdentityError


class Ownership:
    """What one process knows of that.

    Args:
        mirror: the name of the mirror.

    Example:
        >>> mine = Ownership("m")
        >>> mine.require("another")  # as it begins
        >>> mine.has_begun = True
        >>> mine.require(mine.id)
        >>> mine.require("another")
        Traceback (most recent call last):
            ...
        headrace.streams.errors.IdentityError: another mirror of the name m has begun, and this \
one ends; give each its own --name
    """

    def __init__(self, mirror: str) -> None:
        self._mirror = mirror
        self._is_known = False
        self._before: str | None = None
        self.id = uuid.uuid4().hex
        self.has_begun = False
        """Whether the table has had this id."""

    def require(self, owner: str | None) -> None:
        """See that nobody has begun since this process did.

        Args:
            owner: the id that the table has now.

        Raises:
            IdentityError: somebody has.
        """
        if not self._is_known:
            self._is_known, self._before = True, owner
        if owner != self.id and (self.has_begun or owner != self._before):
            raise IdentityError(
                f"another mirror of the name {self._mirror} has begun, and this one ends; give "
                "each its own --name"
            )
