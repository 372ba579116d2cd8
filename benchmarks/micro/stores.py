"""Committed stores without rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class EmptyStore:
    """Committed store without rows."""

    def get(self, key: bytes) -> bytes | None:  # noqa: ARG002
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(
        self,
        start: bytes | None = None,  # noqa: ARG002
        end: bytes | None = None,  # noqa: ARG002
        *,
        reverse: bool = False,  # noqa: ARG002
    ) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def approximate_count(self) -> int:
        return 0

    def approximate_bytes(self) -> int:
        return 0
