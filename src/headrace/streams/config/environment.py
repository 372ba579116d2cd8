"""Settings from environment variables: `HEADRACE_BOOTSTRAP_SERVERS` is `bootstrap.servers`.

As in Kafka's own images, one underscore represents a dot, two an underscore and three a dash, so
setting names and variable names correspond one to one.
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
"""Variable with the name of the settings file, as `--config`."""

_MARKS = {"___": "-", "__": "_", "_": "."}
_CALLBACK = re.compile(r"_cb$|^logger$")
_OF_KUBERNETES = re.compile(
    r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$"
)
"""Variables that Kubernetes sets for a Service whose name starts with headrace."""


def name_of(variable: str) -> str:
    """Return the setting of a variable.

    >>> name_of("HEADRACE_SASL_PASSWORD_FILE"), name_of("HEADRACE_LOG__LEVEL")
    ('sasl.password.file', 'log_level')
    """
    text = variable.removeprefix(PREFIX).lower()
    return re.sub("_{1,3}", lambda match: _MARKS[match[0]], text)


def variable_of(name: str) -> str:
    """Return the variable of a setting.

    >>> variable_of("consumer.session.timeout.ms")
    'HEADRACE_CONSUMER_SESSION_TIMEOUT_MS'
    """
    text = name.replace("_", "__").replace("-", "___").replace(".", "_")
    return f"{PREFIX}{text.upper()}"


def settings_of(environ: Mapping[str, str]) -> Given:
    """Return the settings in an environment; raise ConfigError for unknown names with the prefix.

    >>> settings_of({"HEADRACE_BOOTSTRAP_SERVERS": "kafka:9092", "HOME": "/root"})
    {'bootstrap.servers': 'kafka:9092'}
    >>> settings_of({"HEADRACE_BOOTSTRAP_SERVER": "kafka:9092"})
    Traceback (most recent call last):
        ...
    headrace.streams.errors.ConfigError: the variable HEADRACE_BOOTSTRAP_SERVER matches \
no setting; did you mean HEADRACE_BOOTSTRAP_SERVERS?
    """
    ours = {v: text for v, text in environ.items() if v.startswith(PREFIX) and v != CONFIG}
    settings, problems = Given(), []
    for variable, text in ours.items():
        name = name_of(variable)
        # A name with a next step is rejected later with better advice.
        if name in _known() or name.startswith("topic.") or next_step(name) is not None:
            settings[name] = text
            settings.origins[name] = variable
        elif _OF_KUBERNETES.search(variable) is None:
            problems.append(_unknown(variable))
    if problems:
        raise ConfigError(*problems)
    return settings


@cache
def _known() -> frozenset[str]:
    # Imported only if the environment has settings.
    from headrace.streams.config.config import table

    clients = {"consumer.": CONSUMER, "restore.": CONSUMER, "producer.": PRODUCER, "admin.": ()}
    of_clients: Iterable[str] = (
        prefix + name for prefix, names in clients.items() for name in (*SHARED, *TUNING, *names)
    )
    every = {own.name for own in table()} | SHARED | TUNING | CONSUMER | PRODUCER | {*of_clients}
    by_file = {name + FILE for name in every if named_by_file(name + FILE)}
    return frozenset(n for n in every | by_file if not _CALLBACK.search(n))


def _unknown(variable: str) -> str:
    # Without the common prefix, which would make short names too similar.
    known = [variable_of(name).removeprefix(PREFIX) for name in _known()]
    near = difflib.get_close_matches(variable.removeprefix(PREFIX), known, n=1, cutoff=0.75)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else "headrace settings lists all"
    return f"the variable {variable} matches no setting; {hint}"
