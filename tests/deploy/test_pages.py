"""The pages on deployment contain the files of deploy/, and commands that exist."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, commands_in, parse
from tests.support.processes import ROOT

PAGES = sorted((ROOT / "docs/deploy").glob("*.md"))
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
BLOCK = re.compile(r"^```\w+\n(# (deploy/\S+)\n.*?)^```$", re.M | re.S)


def test_each_file_is_on_one_page_as_it_is() -> None:
    shown = Counter[str]()
    for page in PAGES:
        for text, name in BLOCK.findall(page.read_text()):
            assert text == (ROOT / name).read_text(), f"copy {name} to {page.name}"
            shown[name] += 1
    assert shown == {path.relative_to(ROOT).as_posix(): 1 for path in FILES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_of_a_page_exists(page: Path) -> None:
    for words in commands_in(page):
        assert parse(words).params, words


def test_files_that_a_page_names_exist() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    named = {name.rstrip("./") for name in re.findall(r"\bdeploy(?:/[\w@.]+)+", text)}
    assert len(named) >= len(FILES)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_index_has_each_page() -> None:
    index = (ROOT / "docs/deploy/index.md").read_text()
    assert all(f"]({page.name})" in index for page in PAGES if page.name != "index.md")


def test_a_command_is_read_from_a_block_of_several_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    block = "echo x | docker compose \\\n    exec a headrace topics produce in --app a:app\n"
    page.write_text(f"```sh\n{block}headrace lag a:app\n```\n")
    assert list(commands_in(page)) == [
        shlex.split("topics produce in --app a:app"),
        shlex.split("lag a:app"),
    ]
