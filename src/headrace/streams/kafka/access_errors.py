"""Errors raised if a cluster rejects a client, or denies it an operation."""

from __future__ import annotations

from headrace.streams.errors import StreamsError


class AccessError(StreamsError):
    """The cluster rejects this client, denies it an operation, or is not trusted.

    A password or a certificate is wrong, or an ACL is missing. Nobody catches it: a retry fails in
    the same way until an operator has changed something. `right` is in Kafka's terms.
    """

    def __init__(
        self,
        message: str,
        *,
        principal: str | None = None,
        right: str | None = None,
        resource: str | None = None,
    ) -> None:
        super().__init__(message)
        self.principal = principal
        self.right = right
        self.resource = resource

    def needing(self, right: str) -> AccessError:
        """Return the same error for another operation, which implies the missing operation."""
        if self.right is None:
            return self
        message = str(self).replace(f"the right {self.right} ", f"the right {right} ", 1)
        return type(self)(message, principal=self.principal, right=right, resource=self.resource)


class GroupDeniedError(AccessError):
    """This client lacks an ACL on a group; caught if the group is useful but not required.

    `headrace.streams.plan.deployed` catches it, and continues without the deployed topology.
    """
