"""Secrets by file: `sasl.password.file` names a file with what `sasl.password` would be.

So a password stands neither in a program, nor on a command line, nor in an environment, and is read
anew with each start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.streams.secrets import Secret, named_by_file

MAX_BYTES = 1 << 20


def with_files_read(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Put what files hold in the place of their names.

    Returns:
        The settings, and one sentence for each problem.
    """
    found, problems = dict(settings), []
    for name, path in settings.items():
        stem = named_by_file(name)
        if stem is None or path is None:
            continue
        del found[name]
        if settings.get(stem) is not None:
            problems.append(f"{stem} and {name} are both set; leave one of them out")
            continue
        try:
            found[stem] = Secret(_read(path), setting=name)
        except ValueError as error:
            problems.append(f"{name} {error}")
    return found, problems


def _read(given: object) -> str:
    text = str(given.reveal() if isinstance(given, Secret) else given)
    if "\n" in text or text.startswith("-----"):
        raise ValueError("must name a file, and holds a secret itself; write that into a file")
    path = Path(text).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"names {path}, which has more than {MAX_BYTES} bytes: no secret")
        secret = data.decode().rstrip("\r\n")
    except OSError as error:
        raise ValueError(
            f"names {path}, which cannot be read ({error.strerror}); correct the path, or let the "
            "user that this runs as read it"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"names {path}, which holds no text in UTF-8") from None
    if not secret:
        raise ValueError(f"names {path}, which is empty; write the secret into it")
    return secret
