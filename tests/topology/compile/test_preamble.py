"""The head of the generated code binds what its functions read: all of it, and nothing else."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.topology import StreamsBuilder, Topology, serdes
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.compile.compiler import compile_sub_topology
from headrace.topology.functions import functions_in, location_of
from headrace.topology.timestamps import wallclock_timestamp
from tests.topology.describe import golden_programs, test_describe_golden, test_processors_golden
from tests.topology.describe.golden_cases import CASES
from tests.topology.describe.test_describe_golden import GOLDEN, PROGRAMS

GIVEN = {
    "constants", "ATOMS", "NullKeyError", "FutureTimestampError", "NegativeTimestampError",
    "chosen", "hashed", "OutOfOrder", "as_pair", "looked_at",
    "Partials", "refuse_partial", "refuse_unread", "taken_count", "unmarked",
}  # fmt: skip
"""What `Program.bind` puts beside the code."""

BARE: dict[str, Any] = {
    "application_id": "app",
    "default_key": serdes.json,
    "default_value": serdes.json,
}
SETTINGS: dict[str, CompileOptions] = {
    "defaults": CompileOptions(**BARE),
    "at-once": CompileOptions(**BARE, caching=False, null_key_policy="drop"),
    "handled": CompileOptions(**BARE, handles_errors=True, skips_undecodable=True),
    "timed": CompileOptions(**BARE, timestamps=wallclock_timestamp),
}


def built(case: str) -> Topology:
    if case in test_processors_golden.CASES:
        return test_processors_golden.CASES[case]
    if case in PROGRAMS:
        program = (GOLDEN / "random" / f"{case}.program").read_text()
        return golden_programs.build(program).build()
    builder = StreamsBuilder()
    CASES[case](builder)
    return builder.build()


def codes(case: str, options: CompileOptions) -> Iterator[str]:
    for sub in built(case).sub_topologies:
        yield compile_sub_topology(sub, options).source_code


def unread(code: str) -> set[str]:
    """The names that `bind` binds for all of its functions, and that nothing reads."""
    tree = ast.parse(code)
    (bind,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    targets = {n.id for s in bind.body if isinstance(s, ast.Assign) for n in ast.walk(s.targets[0])
               if isinstance(n, ast.Name)}  # fmt: skip
    functions = {s.name for s in bind.body if isinstance(s, ast.FunctionDef)}
    return (targets | functions) - {n.id for n in names if isinstance(n.ctx, ast.Load)}


def unbound(code: str) -> set[str]:
    """The names that no function binds, beside those that are given."""
    table = symtable.symtable(code, "code", "exec")
    found: set[str] = set()
    tables = [table]
    while tables:
        one = tables.pop()
        found |= {s.get_name() for s in one.get_symbols() if s.is_global() and s.is_referenced()}
        tables += one.get_children()
    return found - GIVEN - set(dir(builtins))


ALL = (*CASES, *PROGRAMS, *test_processors_golden.CASES)
"""All topologies that there are golden files for."""

PARTS = 5
"""All of them take seconds; one part says of most changes what all say."""

SLOW_PARTS = [pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS)]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS if name != "defaults"]


def test_all_cases_are_looked_at() -> None:
    assert test_describe_golden.golden_joins.WINDOWS  # all cases are registered
    assert len(ALL) > 250


@pytest.mark.parametrize("part", [0, *SLOW_PARTS])
@pytest.mark.parametrize("settings", ["defaults", *SLOW])
def test_each_name_that_is_bound_is_read_and_each_that_is_read_is_bound(
    settings: str, part: int
) -> None:
    wrong = {
        case: (unread(code), unbound(code))
        for case in ALL[part::PARTS]
        for code in codes(case, SETTINGS[settings])
        if unread(code) or unbound(code)
    }
    assert not wrong


def test_a_name_that_is_not_read_or_not_bound_is_seen() -> None:
    """The rules can fail."""
    assert unread("def bind(env):\n    a = env.a\n    b = env.b\n    return b\n") == {"a"}
    assert unread("def bind(env):\n    def f(): pass\n    return 'f'\n") == {"f"}
    assert unbound("def bind(env):\n    def f(): return chosen(c)\n    return f\n") == {"c"}


def test_a_node_that_is_called_as_a_name_is_binds_nothing() -> None:
    builder = StreamsBuilder()
    builder.stream("send", name="task").to("dropped", name="failed")
    (sub,) = builder.build().sub_topologies
    code = compile_sub_topology(sub, CompileOptions(**BARE)).source_code
    assert "env.send" in code
    for name in ("task", "dropped", "failed"):
        assert f"env.{name}" not in code


@pytest.mark.parametrize("part", [0, *SLOW_PARTS])
def test_each_function_of_the_user_is_named_with_its_place(part: int) -> None:
    """Of the same topologies, in a comment of the head or of the operators behind the functions."""
    missing: set[tuple[str, str]] = set()
    named = 0
    for case in ALL[part::PARTS]:
        for sub in built(case).sub_topologies:
            code = compile_sub_topology(sub, SETTINGS["defaults"]).source_code
            comments = {line.partition("  # ")[2] for line in code.splitlines()}
            said = {place for comment in comments for place in comment.split(", ")}
            for node in sub.nodes:
                places = {str(location_of(function)) for function in functions_in(node)}
                named += len(places)
                missing |= {(node.name, place) for place in places - said}
    assert not missing
    assert named > 40
