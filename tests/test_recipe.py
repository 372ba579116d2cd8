"""The page on adding an operator works as it is written, and no other code changes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.deployment_changes import changes
from headrace.streams.plan.plan import plan_application
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.checks.key_mismatches import key_mismatches
from headrace.topology.checks.unnamed import unnamed_steps
from headrace.topology.dsl import kstream
from headrace.topology.topology import Topology

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headrace"
PATH = ROOT / "docs" / "add-an-operator.md"
PAGE = PATH.read_text()
BLOCKS = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.DOTALL))
CONFIG = StreamsConfig.parse({"application.id": "a", "bootstrap.servers": "localhost:1"})

OPERATOR, STEP, METHOD, TEST = BLOCKS


def _ran(path: str, names: dict[str, Any]) -> None:
    """Run a block as if it stood in that file; what fails is found in the page."""
    line = PAGE[: PAGE.index(BLOCKS[path])].count("\n")
    exec(compile("\n" * line + BLOCKS[path], str(PATH), "exec"), names)


def _module(path: str, patch: pytest.MonkeyPatch) -> ModuleType:
    name = "headrace." + path.removesuffix(".py").replace("/", ".")
    made = ModuleType(name)
    patch.setitem(sys.modules, name, made)
    _ran(path, vars(made))
    return made


@pytest.fixture(scope="module")
def tests() -> Iterator[Mapping[str, Any]]:
    """The names of the recipe's test, with all that it takes in place."""
    assert not (PACKAGE / OPERATOR).exists()
    assert not (PACKAGE / STEP).exists()
    with pytest.MonkeyPatch.context() as patch:
        _module(OPERATOR, patch)
        names = {**vars(kstream), **vars(_module(STEP, patch))}
        _ran(METHOD, names)
        patch.setattr(kstream.KStream, "every_nth", names["every_nth"], raising=False)
        found: dict[str, Any] = {"__name__": "recipe"}
        _ran(TEST, found)
        yield found


def test_the_recipe_has_all_its_blocks() -> None:
    assert (OPERATOR, STEP) == (
        "topology/operators/every_nth.py",
        "topology/dsl/steps/every_nth.py",
    )
    assert METHOD.startswith("topology/dsl/")
    assert TEST.startswith("tests/topology/operators/")
    assert PAGE.count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", BLOCKS[TEST], re.MULTILINE))
def test_the_recipes_own_tests_pass(tests: Mapping[str, Callable[[], None]], name: str) -> None:
    tests[name]()


def _topology(*, n: int = 3, rekeyed: bool = False, op: str = "every_nth") -> Topology:
    builder = StreamsBuilder()
    lines: Any = builder.stream("in", key=serdes.string, value=serdes.string)
    if rekeyed:
        lines = lines.select_key(lambda _, value: value)
    if op == "every_nth":
        lines.every_nth(n, store="counted", name="nth").to("out")
    else:
        lines.group_by_key().count(store="counted")
    return builder.build()


def _deployed(topology: Topology) -> Deployment:
    return Deployment.of(plan_application(topology, CONFIG), CONFIG)


@pytest.mark.usefixtures("tests")
def test_everybody_else_knows_of_it() -> None:
    topology = _topology(rekeyed=True)
    assert "Processor: nth (stores: [counted])" in topology.describe()
    assert "process_" in topology.describe(code=True)
    assert '[("counted")]' in topology.to_mermaid()
    assert [sub.stores[0].name for sub in topology.sub_topologies if sub.stores] == ["counted"]
    assert list(unnamed_steps(topology.sub_topologies)) == []
    assert list(key_mismatches(topology, serdes.string)) == []


@pytest.mark.usefixtures("tests")
def test_what_is_deployed_of_it_is_compared() -> None:
    assert not changes(_deployed(_topology()), _deployed(_topology(n=5)))
    (other,) = changes(_deployed(_topology()), _deployed(_topology(op="count")))
    assert other.refused
    assert "filled by every nth in the version that started last" in other.what
    assert "is filled by count now" in other.what
