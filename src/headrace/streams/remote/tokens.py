"""Tokens that a header is to hold."""

from __future__ import annotations

from headrace.streams.errors import ConfigError
from headrace.streams.secrets import Secret


def sent_token(given: str | Secret, *, named: str = "the token") -> Secret:
    """Take the space around a token away, such as the line end of its file.

    Args:
        given: the token as it was given.
        named: what it is called in errors.

    Raises:
        ConfigError: a header cannot hold it; it is not shown.

    >>> sent_token("abc\\n").reveal()
    'abc'
    """
    token = str(given.reveal() if isinstance(given, Secret) else given).strip()
    if not token:
        raise ConfigError(f"{named} is empty; give the one that the hosts have")
    if not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"{named} is to be letters, digits and signs, without line ends in it; give it as "
            "the hosts have it"
        )
    return Secret(token)
