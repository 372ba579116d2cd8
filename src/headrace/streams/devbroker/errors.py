"""Errors of the dev broker, with a class for each reaction."""

from __future__ import annotations


class DevBrokerError(Exception):
    """Base class of all errors of the dev broker; the message contains the next step."""


class JavaNotFoundError(DevBrokerError):
    """Missing Java runtime for Kafka: install a runtime."""


class JarsUnavailableError(DevBrokerError):
    """Kafka jars that could not be downloaded: fix the network or the tool, and start again."""


class CertificatesUnavailableError(DevBrokerError):
    """Missing package for the certificates of a secured broker: install it."""


class PortTakenError(DevBrokerError):
    """Port in use by another process: stop that process or choose another port."""


class DirectoryRefusedError(DevBrokerError):
    """Directory with other content: choose another directory or remove it."""


class AlreadyRunningError(DevBrokerError):
    """Broker that already runs in the directory, on other ports than requested: stop it first."""


class NodeFailedError(DevBrokerError):
    """Node that died or did not answer in time: read the end of its log in the message."""
