"""Notebooks of the documentation: execute them, compare outputs, and write them as pages.

python -m tests.support.notebooks  # with a new broker at localhost:9092: keep new outputs
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.processes import IMPORT_PATH, ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"
NAMES = ("notebook", "orders", "revenue")
"""The application and the topics of the notebooks."""
_CELL_S = 600
"""Limit for a cell; the machine may be busy."""


def read(path: Path) -> Any:
    """Read a notebook."""
    import nbformat

    return nbformat.read(path, as_version=4)


def executed(notebook: Any, home: Path, bootstrap: str, names: Mapping[str, str]) -> Any:
    """Execute all cells in a kernel of its own, with own names of topics and application.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    from nbclient import NotebookClient

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = _renamed(cell.source, names).replace("localhost:9092", bootstrap)
    client = NotebookClient(
        notebook,
        timeout=_CELL_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(home)}},
    )
    environment = {
        **os.environ,
        "HEADRACE_BOOTSTRAP_SERVERS": bootstrap,
        "IPYTHONDIR": str(home / "ipython"),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": IMPORT_PATH,
        "XDG_STATE_HOME": str(home / "state"),
    }
    return client.execute(env=environment)


def _renamed(source: str, names: Mapping[str, str]) -> str:
    for name, own in names.items():
        source = re.sub(rf'"{name}"', f'"{own}"', source)
        source = re.sub(rf"(!headrace topics .*) {name}(?= )", rf"\1 {own}", source)
    return source


def texts(cell: Any, names: Mapping[str, str]) -> list[str]:
    """Return the outputs of a cell as text with the names of the page, without the log."""
    found = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream" and output.name == "stderr":
            continue
        text = output.text if output.output_type == "stream" else output.data["text/plain"]
        for name, own in names.items():
            text = text.replace(own, name)
        found.append(text)
    return found


def columns(text: str) -> list[list[str]]:
    """Return the words of each line: the width of a column depends on the names in it."""
    return [line.split() for line in text.splitlines()]


def picture(cell: Any) -> str | None:
    """Return the SVG that a cell shows, or None."""
    for output in cell.get("outputs", ()):
        html = output.get("data", {}).get("text/html", "")
        if html.startswith("<svg"):
            return str(html)
    return None


def pictures(path: Path) -> dict[str, str]:
    """Return the pictures of a notebook by file name."""
    found = [svg for cell in read(path).cells if (svg := picture(cell)) is not None]
    return {f"{path.stem}-{number}.svg": svg for number, svg in enumerate(found, 1)}


def page(path: Path) -> str:
    """Return a notebook as a Markdown page: cells, and the outputs that it keeps."""
    return "\n\n".join(_blocks(path)) + "\n"


def _blocks(path: Path) -> Iterator[str]:
    drawn = iter(pictures(path))
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            yield cell.source
            continue
        yield f"```python\n{cell.source}\n```"
        if picture(cell) is not None:
            (text,) = texts(cell, {})
            yield f"![{text.strip('<>')}]({next(drawn)})"
        else:
            for text in texts(cell, {}):
                lines = [line.rstrip() for line in text.rstrip().splitlines()]
                yield "\n".join(("```text", *lines, "```"))


def _keep(path: Path) -> None:
    with TemporaryDirectory() as home:
        names = {name: name for name in NAMES}
        notebook = executed(read(path), Path(home), "localhost:9092", names)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    for name, svg in pictures(path).items():
        path.with_name(name).write_text(svg)
    path.with_suffix(".md").write_text(page(path))


if __name__ == "__main__":
    for each in sorted(NOTEBOOKS.glob("*.ipynb")):
        _keep(each)
