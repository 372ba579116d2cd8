"""The jobs of `benchmarks.service`, whose commits do not check the identities of input topics.

Only for `benchmarks.topic_check_cost`: such an application does not detect a re-created topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.service import main
from headrace.streams.tasks.input_identity import InputIdentity
from headrace.streams.tasks.task import Task


def _no_check(self: InputIdentity, tasks: Iterable[Task]) -> Callable[[], None]:  # noqa: ARG001
    return lambda: None


if __name__ == "__main__":
    InputIdentity.begin_check = _no_check  # type: ignore[method-assign]
    main()
