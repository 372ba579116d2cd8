"""Secret settings: passwords, keys and tokens, shown as ``***``.

They are wrapped on input and unwrapped when a client is created, so that they appear neither in
logs and errors, nor in debuggers and reporters that print the variables of a traceback. Pickles
contain them, because Spark's executors create clients too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any

from headrace.streams.config.client_names import CONSUMER, PRODUCER, SHARED, TUNING
from headrace.streams.config.settings import Given, origins_of
from headrace.streams.errors import ConfigError
from headrace.topology.errors import type_of

SECRET_NAMES = frozenset(
    {
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.extensions",
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)
_KNOWN = SHARED | TUNING | CONSUMER | PRODUCER
_PREFIX = re.compile(r"^(consumer|restore|producer|admin)\.")
FILE = ".file"
"""Suffix of a setting that names the file of a secret."""
_SOUNDS_SECRET = re.compile(
    r"pass|pwd|secret|token|credential|jaas|pem$|keystore|key$|auth|user\.info", re.I
)
"""Pattern of unknown names, such as misspelt names or names of Java, that are treated as secret."""


class Secret:
    """Value that is displayed as ``***``.

    Examples:
        >>> password = Secret("hunter2")
        >>> password, str(password), f"{password}", password.reveal()
        (***, '***', '***', 'hunter2')
    """

    __slots__ = ("_value", "setting")

    def __init__(self, value: object, *, setting: str | None = None) -> None:
        self._value = value
        self.setting = setting
        """Setting that named the file of the value; None if it was not read from a file."""

    def reveal(self) -> Any:
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> tuple[Callable[..., Secret], tuple[object, str | None]]:
        return _secret, (self._value, self.setting)


def _secret(value: object, setting: str | None) -> Secret:
    return Secret(value, setting=setting)


def guarded(settings: Mapping[str, object]) -> dict[str, Any]:
    """Wrap the values of settings that contain, or may contain, a secret.

    Examples:
        >>> guarded({"sasl.username": "ann", "sasl.password": "hunter2"})
        {'sasl.username': 'ann', 'sasl.password': ***}

    Raises:
        ConfigError: the argument is not a mapping.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings must be a mapping of names to values, not {type_of(settings)}. Give a "
            "dict; `headrace run --config FILE` reads settings from a file."
        )
    wrapped = {
        name: Secret(value) if _is_secret(str(name)) and _is_plain(value) else value
        for name, value in settings.items()
    }
    return Given(wrapped, origins_of(settings))


def revealed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Unwrap secrets; the result must only be passed to a client."""
    return {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in settings.items()
    }


def written_as(config: Mapping[str, object], name: str) -> str:
    """Return the setting that provided a secret: its own name, or the name of its file setting.

    >>> written_as({"sasl.password": Secret("a", setting="sasl.password.file")}, "sasl.password")
    'sasl.password.file'
    """
    value = config.get(name)
    return (value.setting if isinstance(value, Secret) else None) or name


def named_by_file(name: str) -> str | None:
    """Return the secret setting of a file setting, or None if the name is not a file setting.

    >>> named_by_file("producer.sasl.password.file"), named_by_file("sasl.username.file")
    ('producer.sasl.password', None)
    """
    stem = name.removesuffix(FILE)
    is_secret = stem != name and _PREFIX.sub("", stem) in SECRET_NAMES
    return stem if is_secret else None


def bare_name(name: str) -> str:
    """Return the client's name of a setting.

    >>> bare_name("producer.sasl.password.file"), bare_name("consumer.fetch.min.bytes")
    ('sasl.password', 'fetch.min.bytes')
    """
    return _PREFIX.sub("", named_by_file(name) or name)


def over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Override settings; a secret replaces its file setting, and vice versa.

    >>> over({"sasl.password.file": "/run/secrets/kafka"}, {"sasl.password": "hunter2"})
    {'sasl.password': 'hunter2'}
    """
    stems = {named_by_file(name) or name for name in above}
    remaining = {n: value for n, value in below.items() if (named_by_file(n) or n) not in stems}
    origins = {n: origin for n, origin in origins_of(below).items() if n in remaining}
    return Given({**remaining, **above}, {**origins, **origins_of(above)})


def shown_url(url: str) -> str:
    """Return URLs, separated by commas, without user, query and fragment.

    >>> shown_url("http://ann:hunter2@registry:8081,http://other:8081/?token=x")
    'http://***@registry:8081,http://other:8081/'
    """
    return ",".join(_shown(one.strip()) for one in url.split(","))


def scrubbed(text: str, *values: object) -> str:
    """Replace values in a text of another library by ``***``."""
    for value in sorted({str(value) for value in values if value}, key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def url_secrets(url: str) -> list[str]:
    """Return the secret parts of URLs, separated by commas, in all forms that texts may contain."""
    secrets: list[str] = []
    for one in url.split(","):
        _, user, _, _, query = _parts(one.strip())
        secrets += [user, *user.split(":", 1)[1:], query]
    return [text for text in secrets if text]


def _shown(url: str) -> str:
    scheme, user, host, path, _ = _parts(url)
    return f"{scheme}{'***@' if user else ''}{host}{path}"


def _parts(url: str) -> tuple[str, str, str, str, str]:
    """Split a text that may not be a URL into scheme, user, host, path and rest."""
    before, separator, rest = url.partition("://")
    if not separator:
        before, rest = "", url
    address, *queries = re.split(r"[?#]", rest, maxsplit=1)
    authority, slash, path = address.partition("/")
    user, _, host = authority.rpartition("@")
    return f"{before}{separator}", user, host, f"{slash}{path}", "".join(queries)


def _is_secret(name: str) -> bool:
    if named_by_file(name) is not None:
        return False
    bare = _PREFIX.sub("", name)
    if bare in _KNOWN:
        return bare in SECRET_NAMES
    misspelt = difflib.get_close_matches(bare, SECRET_NAMES, n=1, cutoff=0.8)
    return bool(misspelt or _SOUNDS_SECRET.search(bare))


def _is_plain(value: object) -> bool:
    return value is not None and not callable(value) and not isinstance(value, Secret)
