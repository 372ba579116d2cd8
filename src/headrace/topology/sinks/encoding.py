"""What values of typed classes are as JSON, and what is said of a value that cannot be written.

Hot path: `as_json` runs for each value of a column of JSON.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


class NotJsonError(TypeError):
    """JSON has nothing for a value; the text names types, and quotes no value."""


def as_json(value: Any) -> str:
    """Write a value as JSON, those of typed classes as `serdes.json_of` does.

    Raises:
        NotJsonError: JSON has nothing for it, or for something in it.

    Example:
        >>> from datetime import date
        >>> as_json({"at": date(2026, 1, 2), "tags": {"new"}})
        '{"at": "2026-01-02", "tags": ["new"]}'
    """
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except NotJsonError:
        raise
    except TypeError:
        # A key that is no text.
        return json.dumps(_plain(value), allow_nan=False)
    except ValueError as error:
        what = "a value that holds itself" if "ircular" in str(error) else "NaN or an infinity"
        raise NotJsonError(f"JSON has nothing for {what}") from error


def said_of(error: BaseException) -> str:
    """What an error of writing a value says, without the value.

    Example:
        >>> try:
        ...     "\\ud800".encode()
        ... except ValueError as error:
        ...     said_of(error)
        'text with a lone surrogate, which UTF-8 does not have'
    """
    if isinstance(error, UnicodeEncodeError):
        return "text with a lone surrogate, which UTF-8 does not have"
    if isinstance(error, NotJsonError):
        return f"TypeError as JSON: {error}"
    return f"writing its value raised {type(error).__name__}"


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_none)


def _none(value: Any) -> Any:
    raise NotJsonError(f"it has no type for a {type(value).__name__}")
