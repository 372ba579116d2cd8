"""Which topics are mirrored, and what they are called at the target."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.streams.errors import ConfigError

_LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}")
_GLOB = re.compile(r"[*?\[]")
_OWN = re.compile(r"mirror\..+\.offsets")
_FIELDS = re.compile(r"\{[^{}]*\}")
SAME = "{topic}"


def require_name(name: str) -> None:
    """See that a mirror can be called so.

    Raises:
        ConfigError: it cannot.
    """
    if not _LEGAL.fullmatch(table_of(name)):
        raise ConfigError(
            f"--name {name!r} is no name of a mirror: a topic and a group are named after it; take "
            "letters, digits, '.', '_' and '-'"
        )


def table_of(name: str) -> str:
    """The topic with the table of a mirror.

    >>> table_of("west-to-east")
    'mirror.west-to-east.offsets'
    """
    return f"mirror.{name}.offsets"


def is_table(topic: str) -> bool:
    """Whether a topic is the table of a mirror.

    >>> is_table("mirror.west-to-east.offsets"), is_table("orders")
    (True, False)
    """
    return _OWN.fullmatch(topic) is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics by their names and by patterns.

    Args:
        names: each must be there.
        patterns: such as ``orders-*``; topics that come later are taken too.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]

    @classmethod
    def of(cls, given: Iterable[str]) -> Selection:
        """Read what was given: names and patterns, several of them with commas.

        Raises:
            ConfigError: one is neither.

        Example:
            >>> Selection.of(["orders,clicks", "eu-*"])
            Selection(names=('orders', 'clicks'), patterns=('eu-*',))
        """
        words = [word.strip() for text in given for word in text.split(",") if word.strip()]
        if not words:
            raise ConfigError("no topics are named: give --topics NAME or --topics 'PATTERN*'")
        patterns = tuple(word for word in words if _GLOB.search(word))
        names = tuple(dict.fromkeys(word for word in words if word not in patterns))
        for name in names:
            if not _LEGAL.fullmatch(name):
                raise ConfigError(
                    f"{name!r} is neither a topic's name nor a pattern such as 'orders-*'"
                )
        return cls(names, patterns)

    def matching(self, there: Iterable[str]) -> list[str]:
        """Those of the topics that patterns mean; internal ones and tables of mirrors are none.

        >>> Selection.of(["o*"]).matching(["orders", "clicks", "__consumer_offsets"])
        ['orders']
        """
        return sorted(
            name
            for name in there
            if not name.startswith("__")
            and not is_table(name)
            and any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)
        )


@dataclass(frozen=True, slots=True)
class Naming:
    """What topics are called at the target.

    Args:
        template: with ``{topic}``, and ``{cluster}`` for the name of the source.
        cluster: that name.

    Raises:
        ConfigError: two topics could get one name.

    Example:
        >>> Naming("{cluster}.{topic}", "west").at_target("orders")
        'west.orders'
        >>> Naming("copy", "west")
        Traceback (most recent call last):
            ...
        headrace.streams.errors.ConfigError: --rename 'copy' must have {topic} once, and may have \
{cluster}, such as '{cluster}.{topic}'
    """

    template: str
    cluster: str

    def __post_init__(self) -> None:
        fields = _FIELDS.findall(self.template)
        if fields.count("{topic}") != 1 or {*fields} - {"{topic}", "{cluster}"}:
            raise ConfigError(
                f"--rename {self.template!r} must have {{topic}} once, and may have {{cluster}}, "
                "such as '{cluster}.{topic}'"
            )
        self.at_target("a")

    def at_target(self, topic: str) -> str:
        """What a topic is called there.

        Raises:
            ConfigError: Kafka takes no such name.
        """
        name = self.template.replace("{cluster}", self.cluster).replace("{topic}", topic)
        if not _LEGAL.fullmatch(name):
            raise ConfigError(
                f"--rename {self.template!r} makes {name!r} of the topic {topic}, which is no "
                "name for a topic: letters, digits, '.', '_' and '-', 249 at most"
            )
        return name
