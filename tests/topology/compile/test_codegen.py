"""The writer of generated code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.topology import KStream, StreamsBuilder, serdes
from headrace.topology.compile.codegen import CompileOptions, Writer
from headrace.topology.compile.compiler import compile_sub_topology


def test_a_block_in_which_nothing_is_done_says_so() -> None:
    w = Writer()
    with w.block("if a:"):
        w.line("# nothing here")
    with w.block("else:"), w.block("if b:"):
        w.line("c = 1")
    with w.block("for d in e:"):
        pass
    assert "\n".join(w.lines) == (
        "if a:\n    # nothing here\n    pass\n"
        "else:\n    if b:\n        c = 1\n"
        "for d in e:\n    pass"
    )


UNFOLLOWED: dict[str, Callable[[StreamsBuilder, KStream[Any, Any]], Any]] = {
    "table": lambda b, s: b.table("t"),
    "to_table": lambda b, s: s.to_table(),
    "rekeyed table": lambda b, s: s.select_key(lambda k, v: v).to_table(),
    "filter": lambda b, s: s.filter(lambda k, v: True),
    "flat_map": lambda b, s: s.flat_map(lambda k, v: []),
    "branches": lambda b, s: s.split().branch(lambda k, v: True).default_branch(),
    "no branches": lambda b, s: s.split().no_default_branch(),
}


@pytest.mark.parametrize("handles_errors", [False, True])
@pytest.mark.parametrize("policy", ["fail", "drop"])
@pytest.mark.parametrize("step", UNFOLLOWED)
def test_a_step_that_nothing_follows_is_compiled(
    step: str, policy: Any, handles_errors: bool
) -> None:
    """A table without a store that nobody read was an IndentationError under "drop"."""
    builder = StreamsBuilder()
    UNFOLLOWED[step](builder, builder.stream("in"))
    for sub in builder.build().sub_topologies:
        options = CompileOptions(
            "app", serdes.json, serdes.json, null_key_policy=policy, handles_errors=handles_errors
        )
        assert compile_sub_topology(sub, options).source_code
