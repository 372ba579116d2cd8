"""What can go wrong with the dev broker: one class per reaction."""

from __future__ import annotations


class DevBrokerError(Exception):
    """Base of all errors of the dev broker; the message says what to do next."""


class JavaNotFoundError(DevBrokerError):
    """No Java that can run Kafka: install one."""


class JarsUnavailableError(DevBrokerError):
    """Kafka's jars could not be fetched: repair the network or the tool, and start again."""


class CertificatesUnavailableError(DevBrokerError):
    """What makes the certificates of a secured broker is not installed: install it."""


class PortTakenError(DevBrokerError):
    """A port is in use by another process: stop that process or choose another port."""


class DirectoryRefusedError(DevBrokerError):
    """The directory holds something else: choose another directory or remove it."""


class AlreadyRunningError(DevBrokerError):
    """A broker runs in the directory, but not on the ports asked for: stop it first."""


class NodeFailedError(DevBrokerError):
    """A node died or did not answer in time: read the tail of its log in the message."""
