"""The generated code of some examples, as it stands in ``tests/golden/generated``.

``python -m tests.topology.compile.golden_code`` writes it anew, so that a difference can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.orders_with_customers import orders_with_customers
from examples.suspicious_loans import suspicious_loans
from examples.word_count import word_count
from headrace.topology import Topology, serdes
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.compile.compiler import compile_sub_topology

FOLDER = Path(__file__).parents[2] / "golden" / "generated"

_BARE: dict[str, Any] = {
    "application_id": "app",
    "default_key": serdes.json,
    "default_value": serdes.json,
}
_AS_SET = CompileOptions(**_BARE)
_HANDLED = CompileOptions(**_BARE, caching=False, handles_errors=True, skips_undecodable=True)

CASES: dict[str, tuple[Topology, CompileOptions]] = {
    "word-count": (word_count(), _AS_SET),
    "word-count-handled": (word_count(), _HANDLED),
    "orders-with-customers": (orders_with_customers(), _AS_SET),
    "suspicious-loans": (suspicious_loans(), _AS_SET),
}


def code(name: str) -> str:
    """The code of all sub-topologies of a case."""
    topology, options = CASES[name]
    return "\n".join(_codes(topology, options))


def _codes(topology: Topology, options: CompileOptions) -> Iterator[str]:
    for sub in topology.sub_topologies:
        yield compile_sub_topology(sub, options).source_code


if __name__ == "__main__":
    for case in CASES:
        (FOLDER / f"{case}.txt").write_text(code(case))
