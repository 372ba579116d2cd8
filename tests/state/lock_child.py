"""Holds what `test_directory` and `test_identity` tell it to, until its input ends."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.state.directory import StateDirectory


def main(what: str, root: str) -> None:
    directory = StateDirectory(Path(root), "app")
    if what == "task":
        held = directory.acquire_task("0_1", wait_ms=0)
        said = f"{held.generation} {held.path.name}"
        (held.path / "rows").write_text("mine")
    elif what == "identity":
        identity = directory.acquire_identity()
        said = identity.instance_id
    else:
        identity = directory.acquire_identity(what)
        said = identity.instance_id
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
