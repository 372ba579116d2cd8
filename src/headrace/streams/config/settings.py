"""Declaration of a setting: its kind, default and documentation, and the validation of its value.

`StreamsConfig` declares its fields with `setting`; parsing, validation and documentation use the
same declaration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

REQUIRED = object()
"""Marker for the default of a required setting."""

LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
NAME_LENGTH_MAX = 249
TOPOLOGY_ENDING = ".topology"
BACKFILL_ENDING = ".backfill"
SHUTDOWN_ENDING = ".shutdown"
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
OWN_GROUPS = (TOPOLOGY_ENDING, BACKFILL_ENDING, SHUTDOWN_ENDING)
"""Suffixes of an application's groups that contain notes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of a setting: a description of its values, and their parser.

    `parse` raises ValueError with the rest of a sentence that starts with the setting's name, such
    as "must be at least 0".
    """

    words: str
    parse: Callable[[object], object]


@dataclass(frozen=True, slots=True)
class Setting:
    """Row of the table of settings."""

    name: str
    kind: Kind
    default: object
    default_words: str
    doc: str


class Given(dict[str, Any]):
    """Settings with the origin of each, which errors contain.

    Args:
        settings: values by name.
        origins: origins by name, such as ``--set``.

    Examples:
        >>> given = Given({"poll.ms": "-1"}, {"poll.ms": "--set"})
        >>> given, given.origins
        ({'poll.ms': '-1'}, {'poll.ms': '--set'})
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        origins: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(settings)
        self.origins = dict(origins)


def given_by(settings: Mapping[str, Any], origin: str) -> Given:
    """Return settings with an origin, which applies to settings without a known origin."""
    return Given(settings, {**dict.fromkeys(settings, origin), **origins_of(settings)})


def origins_of(settings: Mapping[str, Any]) -> dict[str, str]:
    return settings.origins if isinstance(settings, Given) else {}


def placed(problem: str, origins: Mapping[str, str]) -> str:
    """Add the origins of settings to a sentence about them.

    >>> placed("poll.ms must be at least 0; see poll.ms", {"poll.ms": "app.toml, line 3"})
    'poll.ms (from app.toml, line 3) must be at least 0; see poll.ms'
    """
    if not origins:
        return problem
    what, semicolon, advice = problem.partition(";")
    names = "|".join(map(re.escape, sorted(origins, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.'-])({names})(?![\w.-]*\w)\"?")
    seen: set[str] = set()

    def add_origin(match: re.Match[str]) -> str:
        if match[1] in seen:
            return match[0]
        seen.add(match[1])
        return f"{match[0]} (from {origins[match[1]]})"

    return pattern.sub(add_origin, what) + semicolon + advice


def setting(
    kind: Kind, doc: str, *, default: object = REQUIRED, default_words: str | None = None
) -> Any:
    """Declare a field of `StreamsConfig`; its dotted name follows from the field's name.

    `default_words` documents a default that depends on other settings.
    """
    if default_words is None:
        default_words = "required" if default is REQUIRED else _words_of(default)
    metadata = {"kind": kind, "default": default, "default_words": default_words, "doc": doc}
    return field(metadata=metadata)


def setting_of(declared: Field[Any]) -> Setting | None:
    if "kind" not in declared.metadata:
        return None
    return Setting(name=declared.name.replace("_", "."), **declared.metadata)


def _words_of(default: object) -> str:
    if default is None:
        return "not set"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default)


def text() -> Kind:
    def parse(value: object) -> object:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"must be a string that is not empty, not {value!r}")
        return value.strip()

    return Kind("text", parse)


def legal_name(because: str = "") -> Kind:
    """Return the kind of a name of groups and topics; `because` ends the error message."""

    def parse(value: object) -> object:
        if not isinstance(value, str) or not LEGAL_NAME.fullmatch(value) or value in (".", ".."):
            raise ValueError(
                f"must be a name of ASCII letters, digits, '.', '_' and '-'; {value!r} is not"
                f"{because and '; '}{because}"
            )
        if len(value) > NAME_LENGTH_MAX:
            raise ValueError(f"must have at most {NAME_LENGTH_MAX} characters, not {len(value)}")
        return value

    return Kind("letters, digits, `.`, `_`, `-`", parse)


def group_name() -> Kind:
    """Return the kind of a legal name that differs from all applications' groups of notes."""
    legal = legal_name("topics and groups are named after it")

    def parse(value: object) -> object:
        name = str(legal.parse(value))
        for ending in OWN_GROUPS:
            if name.endswith(ending):
                other = name.removesuffix(ending)
                raise ValueError(
                    f"must not end in {ending!r}, as {value!r} is the group in which an "
                    f"application {other!r} stores its metadata; use another ending"
                )
        return name

    return Kind(legal.words, parse)


def servers() -> Kind:
    def parse(value: object) -> object:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)) or not parts:
            raise ValueError(f"must be host:port, or several with commas, not {value!r}")
        servers = [str(part).strip() for part in parts]
        for server in servers:
            if "/" in server:  # the scheme of a URL or of a broker's listener
                raise ValueError(
                    f"must be host:port, without a scheme or a path; {server!r} is not. Set "
                    "security.protocol to SSL or SASL_SSL if the brokers require TLS"
                )
            host, colon, port = server.rpartition(":")
            if not host or not colon or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"must be host:port, or several with commas; {server!r} is not")
        return ",".join(servers)

    return Kind("`host:port`, several with commas", parse)


def integer(
    minimum: int, maximum: int = 2**63 - 1, *, unit: str = "", except_for: tuple[int, ...] = ()
) -> Kind:
    words = f"integer{' ' + unit if unit else ''}, from {minimum}"
    if maximum < 2**31 - 1:
        words += f" to {maximum}"
    if except_for:
        words += f", not {', '.join(map(str, except_for))}"

    def parse(value: object) -> object:
        return _bounded(_whole(value), minimum, maximum, except_for)

    return Kind(words, parse)


def duration(minimum: int, maximum: int = 2**63 - 1) -> Kind:
    def parse(value: object) -> object:
        if isinstance(value, timedelta):
            if value % timedelta(milliseconds=1):
                raise ValueError(f"must be whole milliseconds, not {value!r}")
            value = value // timedelta(milliseconds=1)
        return _bounded(_whole(value, "milliseconds or a timedelta"), minimum, maximum)

    return Kind(f"ms or timedelta, from {minimum}", parse)


def choice(*values: str, also: dict[str, str] | None = None) -> Kind:
    """Return the kind of a word from a list; `also` maps alternative spellings to them."""
    spellings = {**{value: value for value in values}, **(also or {})}

    def parse(value: object) -> object:
        if isinstance(value, str) and value.strip() in spellings:
            return spellings[value.strip()]
        allowed = ", ".join(repr(value) for value in spellings)
        raise ValueError(f"must be one of {allowed}, not {value!r}")

    return Kind(", ".join(f"`{value}`" for value in spellings), parse)


def choices(*values: str) -> Kind:
    def parse(value: object) -> object:
        if isinstance(value, (list, tuple, set, frozenset)):
            words = [str(word) for word in value]
        elif isinstance(value, str):
            words = [word.strip() for word in value.split(",")]
        else:
            words = [repr(value)]
        if words in (["all"], ["none"]):
            return values if words == ["all"] else ()
        unknown = [word for word in words if word not in values]
        if unknown:
            allowed = ", ".join(repr(value) for value in ("none", "all", *values))
            raise ValueError(f"must be one of {allowed}, or several with commas, not {value!r}")
        return tuple(word for word in values if word in words)

    words = ", ".join(f"`{value}`" for value in ("none", "all", *values))
    return Kind(f"{words}, or several", parse)


def directory() -> Kind:
    def parse(value: object) -> object:
        if not isinstance(value, (str, Path)) or not str(value).strip():
            raise ValueError(f"must be a path, not {value!r}")
        return Path(value).expanduser().absolute()

    return Kind("path", parse)


def _whole(value: object, expected: str = "a whole number") -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value.strip(), re.ASCII):
        return int(value.strip())
    raise ValueError(f"must be {expected}, not {value!r}")


def _bounded(value: int, minimum: int, maximum: int, except_for: tuple[int, ...] = ()) -> int:
    if value < minimum:
        raise ValueError(f"must be at least {minimum}, not {value}")
    if value > maximum:
        raise ValueError(f"must be at most {maximum}, not {value}")
    if value in except_for:
        raise ValueError(f"must not be {value}")
    return value


def span_of(text: str, name: str) -> timedelta:
    """Parse a time span; `name` is the argument's name, for the error.

    >>> span_of("1.5s", "wait").total_seconds(), span_of("2m", "wait").total_seconds()
    (1.5, 120.0)
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{name} must be a number and a unit (ms, s, m or h), such as 30s, not {text[:40]!r}"
        )
    try:
        return timedelta(seconds=float(match[1]) * _UNITS_S[match[2]])
    except OverflowError:
        raise ValueError(f"{name} is {timedelta.max.days:,} days at most; give less") from None
