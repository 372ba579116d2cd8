"""The head of the generated module: the names that its functions read, and no others."""

from __future__ import annotations

import symtable
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from headrace.topology.compile.codegen import Generator, Writer
from headrace.topology.functions import place_of
from headrace.topology.graph.graph import Aggregate, TableSource

_OF_THE_TASK = (
    "send",
    "dropped",
    "write_line",
    "partitions_of",
    "task",
    "failed",
    "let_go",
    "undecodable",
)
"""What the generated code may call of the `TaskEnvironment`."""


@dataclass(frozen=True, slots=True)
class _Binding:
    """A name, the lines that bind it, and the name that they read."""

    name: str
    lines: tuple[str, ...]
    of: str | None = None


def write(w: Writer, gen: Generator, body: Sequence[str]) -> None:
    """Write the bindings that the body reads.

    Args:
        w: takes the lines.
        gen: the generator, after it has written the body.
        body: the lines behind the head, in a function.
    """
    read = _names_read(tuple(body))
    kept: list[_Binding] = []
    for binding in reversed([*_of_the_task(), *_constants(gen), *_rows(gen)]):
        if binding.name in read:
            kept.append(binding)
            read |= {binding.of} if binding.of else set()
    for binding in reversed(kept):
        for line in binding.lines:
            w.line(line)


def said_of(functions: Iterable[object]) -> str:
    """A comment that says where the user's functions stand; empty where there are none."""
    places = dict.fromkeys(str(place) for f in functions if (place := place_of(f)) is not None)
    return f"  # {', '.join(places)}" if places else ""


@lru_cache(maxsize=64)  # an application that is made again has the same
def _names_read(body: tuple[str, ...]) -> frozenset[str]:
    """What the body reads and does not bind; a node or a topic may be called as a name is."""
    open_tables = [symtable.symtable("\n".join(("def bind():", *body)), "<bind>", "exec")]
    names: set[str] = set()
    while open_tables:
        table = open_tables.pop()
        open_tables += table.get_children()
        if isinstance(table, symtable.Function):
            names.update(table.get_globals())
    return frozenset(names)


def _of_the_task() -> Iterator[_Binding]:
    for name in _OF_THE_TASK:
        yield _Binding(name, (f"{name} = env.{name}",))


def _constants(gen: Generator) -> Iterator[_Binding]:
    for name, value in gen.constants.items():
        place = said_of([value]) if name in gen.functions else ""
        if name not in gen.looked_at:
            yield _Binding(name, (f"{name} = constants[{name!r}]{place}",))
            continue
        keeping = (
            f"def keep_{name}(function):",
            f"    nonlocal {name}",
            f"    {name} = function",
        )
        looking = f"{name} = looked_at(constants[{name!r}], keep_{name}){place}"
        yield _Binding(name, (*keeping, looking))


def _rows(gen: Generator) -> Iterator[_Binding]:
    for node in gen.sub.nodes:
        if isinstance(node, (Aggregate, TableSource)) and node.store is not None:
            i = gen.ordinal(node)
            buffer = f"buffer_{i}"
            yield _Binding(buffer, (f"{buffer} = env.buffers[{node.store!r}]",))
            yield _Binding(f"dirty_{i}", (f"dirty_{i} = {buffer}.dirty",), buffer)
            yield _Binding(f"dirty_{i}_get", (f"dirty_{i}_get = dirty_{i}.get",), f"dirty_{i}")
            yield _Binding(f"clean_{i}_get", (f"clean_{i}_get = {buffer}.clean.get",), buffer)
            yield _Binding(f"load_{i}", (f"load_{i} = {buffer}.load",), buffer)
            yield _Binding(f"pending_{i}", (f"pending_{i} = {{}}",))
