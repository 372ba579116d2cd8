"""Settings in the environment: `HEADRACE_BOOTSTRAP_SERVERS` is `bootstrap.servers`.

As in Kafka's own images, one underscore stands for a dot, two for an underscore and three for a
dash, so each name of a setting has one variable and each variable one name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import cache

from headrace.streams.config.client_names import CONSUMER, PRODUCER, SHARED, TUNING
from headrace.streams.config.java_settings import next_step
from headrace.streams.config.secrets import FILE, named_by_file
from headrace.streams.config.settings import Given
from headrace.streams.errors import ConfigError

PREFIX = "HEADRACE_"
CONFIG = "HEADRACE_CONFIG"
"""Names the file that `--config` would."""

_MARKS = {"___": "-", "__": "_", "_": "."}
_CALLBACK = re.compile(r"_cb$|^logger$")
_OF_KUBERNETES = re.compile(
    r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$"
)
"""What Kubernetes puts into each pod for a Service whose name begins with headrace."""


def name_of(variable: str) -> str:
    """The setting that a variable is for.

    >>> name_of("HEADRACE_SASL_PASSWORD_FILE"), name_of("HEADRACE_LOG__LEVEL")
    ('sasl.password.file', 'log_level')
    """
    text = variable.removeprefix(PREFIX).lower()
    return re.sub("_{1,3}", lambda found: _MARKS[found[0]], text)


def variable_of(name: str) -> str:
    """The variable that a setting is read from.

    >>> variable_of("consumer.session.timeout.ms")
    'HEADRACE_CONSUMER_SESSION_TIMEOUT_MS'
    """
    text = name.replace("_", "__").replace("-", "___").replace(".", "_")
    return f"{PREFIX}{text.upper()}"


def settings_of(environ: Mapping[str, str]) -> Given:
    """The settings that an environment has.

    Raises:
        ConfigError: variables that begin as ours do and are for no setting.

    Example:
        >>> settings_of({"HEADRACE_BOOTSTRAP_SERVERS": "kafka:9092", "HOME": "/root"})
        {'bootstrap.servers': 'kafka:9092'}
        >>> settings_of({"HEADRACE_BOOTSTRAP_SERVER": "kafka:9092"})
        Traceback (most recent call last):
            ...
        headrace.streams.errors.ConfigError: the variable HEADRACE_BOOTSTRAP_SERVER is for no \
setting; did you mean HEADRACE_BOOTSTRAP_SERVERS?
    """
    ours = {v: text for v, text in environ.items() if v.startswith(PREFIX) and v != CONFIG}
    found, problems = Given(), []
    for variable, text in ours.items():
        if _is_known(name_of(variable)):
            found[name_of(variable)] = text
            found.origins[name_of(variable)] = variable
        elif _OF_KUBERNETES.search(variable) is None:
            problems.append(_unknown(variable))
    if problems:
        raise ConfigError(*problems)
    return found


def _is_known(name: str) -> bool:
    """Whether it is the name of a setting, or one that is refused with better words than ours."""
    return name in _known() or name.startswith("topic.") or next_step(name) is not None


@cache
def _known() -> frozenset[str]:
    # All that settings are checked by is not loaded where the environment has none.
    from headrace.streams.config.config import table

    clients = {"consumer.": CONSUMER, "restore.": CONSUMER, "producer.": PRODUCER, "admin.": ()}
    of_clients: Iterable[str] = (
        prefix + name for prefix, names in clients.items() for name in (*SHARED, *TUNING, *names)
    )
    every = {own.name for own in table()} | SHARED | TUNING | CONSUMER | PRODUCER | {*of_clients}
    by_file = {name + FILE for name in every if named_by_file(name + FILE)}
    return frozenset(n for n in every | by_file if not _CALLBACK.search(n))


def _unknown(variable: str) -> str:
    # The prefix is the same in all of them, and would make short ones look alike.
    known = [variable_of(name).removeprefix(PREFIX) for name in _known()]
    near = difflib.get_close_matches(variable.removeprefix(PREFIX), known, n=1, cutoff=0.75)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else "headrace settings lists all"
    return f"the variable {variable} is for no setting; {hint}"
