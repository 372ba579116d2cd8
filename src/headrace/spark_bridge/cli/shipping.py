"""Packing of the project as a zip that executors import, because functions are pickled by name.

Nothing of a script is sent as ``__main__``: executors run modules that are the same on both sides.
"""

from __future__ import annotations

import os
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

_EXCLUDED = {"__pycache__"}


def project_modules(
    modules: Mapping[str, ModuleType], *, installed: Iterable[Path] | None = None
) -> dict[str, Path]:
    """Find the loaded top-level packages and modules outside of the `installed` directories."""
    known = tuple(_installed() if installed is None else installed)
    found: dict[str, Path] = {}
    for name, module in list(modules.items()):
        path = None if "." in name or name == "__main__" else _path_of(module)
        if path is not None and not any(path.is_relative_to(directory) for directory in known):
            found[name] = path
    return found


def _path_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None:
        # A package without __init__.py; a package of an import hook has no directory.
        directories = [Path(directory) for directory in getattr(module, "__path__", ())]
        return next((directory.resolve() for directory in directories if directory.is_dir()), None)
    path = Path(file).resolve()
    if path.suffix != ".py":
        return None
    return path.parent if path.name == "__init__.py" else path


def _installed() -> list[Path]:
    paths = sysconfig.get_paths()
    directories = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [Path(directory).resolve() for directory in directories]


def pack(modules: Mapping[str, Path], archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, path in sorted(modules.items()):
            if path.is_file():
                out.write(path, f"{name}.py")
                continue
            for file in _files(path):
                out.write(file, str(Path(name) / file.relative_to(path)))
    return archive


def _files(directory: Path) -> list[Path]:
    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(directory, followlinks=True)
        for name in names
        if _EXCLUDED.isdisjoint(Path(folder).parts)
    )


def own_modules() -> dict[str, Path]:
    """Return the package `headrace` as imported here, because executors must run the same."""
    return {"headrace": Path(__file__).parents[2]}
