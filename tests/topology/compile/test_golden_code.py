"""The generated code is the one that was looked at last."""

from __future__ import annotations

import io
import tokenize

import pytest

from tests.topology.compile.golden_code import CASES, FOLDER, code


def without_comments(text: str) -> list[tuple[int, str]]:
    """The tokens, beside comments and the ends of lines that hold nothing else."""
    left_out = (tokenize.COMMENT, tokenize.NL)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [(token.type, token.string) for token in tokens if token.type not in left_out]


def test_every_file_has_a_case() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_what_runs_is_what_the_file_says_whatever_comments_say(name: str) -> None:
    """Where it is meant to differ: ``python -m tests.topology.compile.golden_code``."""
    assert without_comments(code(name)) == without_comments((FOLDER / f"{name}.txt").read_text())


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_it_is_in_the_file_too(name: str) -> None:
    assert code(name) == (FOLDER / f"{name}.txt").read_text()


def test_without_comments_all_else_is_left() -> None:
    assert without_comments("a = 1  # one\n# two\n") == without_comments("a = 1\n")
    assert without_comments("a = '# one'\n") != without_comments("a = '# two'\n")
    assert without_comments("if a:\n    b\n") != without_comments("if a:\n  b\n")
