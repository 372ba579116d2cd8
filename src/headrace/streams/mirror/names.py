"""Names of a mirror: selected topics, names at the target, and ownership of the mirror's name."""

from __future__ import annotations

import fnmatch
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.streams.errors import ConfigError, IdentityError, OffsetLostError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.identity import TopicReplacedError


class MirroredTopicReplacedError(TopicReplacedError):
    """Mirrored topic that was deleted and re-created, at the source or at the target.

    It is not handled: the copied records belong to the old topic, and its offsets are meaningless
    now.

    Args:
        where: the name of the cluster.
    """

    def __init__(self, topic: str, where: str, *, before: str, now: str, mirror: str) -> None:
        super().__init__(topic, before=before, now=now)
        self.where = where
        self.mirror = mirror

    def __str__(self) -> str:
        return (
            f"topic {self.topic} of {self.where} was deleted and re-created (id {self.before} "
            f"before, {self.now} now), and mirror {self.mirror} has copied nothing since. Give the "
            "mirror another --name, and a --rename or an empty target topic, to copy the new topic "
            "from its beginning."
        )


class RecordsLostError(OffsetLostError):
    """Records of the source that were deleted before they were copied, or after.

    It is not handled: the copy would silently lack records.

    Args:
        position: the next offset to copy.
        begin: the offset of the first existing record.
        end: the offset after the last record.
    """

    def __init__(
        self, tp: TopicPartition, where: str, position: int, *, begin: int, end: int
    ) -> None:
        super().__init__(str(tp), f"of {where}")
        self.tp = tp
        self._message = (
            f"{tp} of {where} begins at offset {begin}, and the next offset to copy is {position}: "
            f"{begin - position} offsets were deleted before they were copied. Raise retention.ms "
            f"at {where}, and use --skip-lost to skip them."
        )
        if position > end:
            self._message = (
                f"{tp} of {where} ends at offset {end}, and offsets up to {position} were copied: "
                "the source has lost records. Give the mirror another --name, and a --rename or an "
                "empty target topic, to copy the remaining records."
            )

    def __str__(self) -> str:
        return self._message


class NameClaim:
    """Claim of this process to a mirror's name: the process that started last may write.

    If a producer is fenced, or its commit is not answered, it may only have been slow, or another
    process may use the name. The table decides: each process writes its id there when it starts.

    Args:
        mirror: the name of the mirror.
    """

    def __init__(self, mirror: str) -> None:
        self._mirror = mirror
        self._is_known = False
        self._before: str | None = None
        self.id = uuid.uuid4().hex
        self.has_begun = False
        """Whether this id was written to the table."""

    def require(self, owner: str | None) -> None:
        """Raise IdentityError if `owner`, in the table now, is a process that started later."""
        if not self._is_known:
            self._is_known, self._before = True, owner
        if owner != self.id and (self.has_begun or owner != self._before):
            raise IdentityError(
                f"another mirror with the name {self._mirror} has started, so this mirror stops. "
                "Give each mirror its own --name."
            )


_LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}")
_GLOB = re.compile(r"[*?\[]")
_OWN = re.compile(r"mirror\..+\.offsets")
_FIELDS = re.compile(r"\{[^{}]*\}")
SAME = "{topic}"


def require_name(name: str) -> None:
    if not _LEGAL.fullmatch(table_of(name)):
        raise ConfigError(
            f"--name {name!r} cannot be part of the name of a topic. Use letters, digits, '.', "
            "'_' and '-'."
        )


def table_of(name: str) -> str:
    """Return the table topic of a mirror.

    >>> table_of("west-to-east")
    'mirror.west-to-east.offsets'
    """
    return f"mirror.{name}.offsets"


def is_table(topic: str) -> bool:
    """Return whether a topic is the table of a mirror.

    >>> is_table("mirror.west-to-east.offsets"), is_table("orders")
    (True, False)
    """
    return _OWN.fullmatch(topic) is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics selected by name and by pattern.

    Args:
        names: names; each topic must exist.
        patterns: such as ``orders-*``; topics that are created later are included.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]

    @classmethod
    def of(cls, given: Iterable[str]) -> Selection:
        """Parse names and patterns, which may be separated by commas.

        >>> Selection.of(["orders,clicks", "eu-*"])
        Selection(names=('orders', 'clicks'), patterns=('eu-*',))
        """
        words = [word.strip() for text in given for word in text.split(",") if word.strip()]
        if not words:
            raise ConfigError("no topics are given. Use --topics NAME or --topics 'PATTERN*'.")
        patterns = tuple(word for word in words if _GLOB.search(word))
        names = tuple(dict.fromkeys(word for word in words if word not in patterns))
        for name in names:
            if not _LEGAL.fullmatch(name):
                raise ConfigError(
                    f"{name!r} is neither a topic's name nor a pattern. Correct --topics, for "
                    "example to 'orders-*'."
                )
        return cls(names, patterns)

    def matching(self, there: Iterable[str]) -> list[str]:
        """Return the topics that match a pattern, without internal topics and mirror tables.

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
    """Names of topics at the target.

    Args:
        template: template with ``{topic}``, and ``{cluster}`` for the name of the source.
        cluster: the name of the source.

    Raises:
        ConfigError: two topics could get the same name.

    Examples:
        >>> Naming("{cluster}.{topic}", "west").at_target("orders")
        'west.orders'
        >>> Naming("copy", "west")
        Traceback (most recent call last):
            ...
        headrace.streams.errors.ConfigError: --rename 'copy' must contain {topic} once, and may \
contain {cluster}. Use for example '{cluster}.{topic}'.
    """

    template: str
    cluster: str

    def __post_init__(self) -> None:
        fields = _FIELDS.findall(self.template)
        if fields.count("{topic}") != 1 or {*fields} - {"{topic}", "{cluster}"}:
            raise ConfigError(
                f"--rename {self.template!r} must contain {{topic}} once, and may contain "
                "{cluster}. Use for example '{cluster}.{topic}'."
            )
        self.at_target("a")

    def at_target(self, topic: str) -> str:
        """Raise ConfigError if the name is not a valid topic name."""
        name = self.template.replace("{cluster}", self.cluster).replace("{topic}", topic)
        if not _LEGAL.fullmatch(name):
            raise ConfigError(
                f"--rename {self.template!r} makes {name!r} of topic {topic}, which is not a valid "
                "topic name. Use at most 249 letters, digits, '.', '_' and '-'."
            )
        return name
