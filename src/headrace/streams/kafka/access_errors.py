"""What is raised where a cluster does not let a client in, or denies it something."""

from __future__ import annotations

from headrace.streams.errors import StreamsError


class AccessError(StreamsError):
    """The cluster does not let this client in or does not let it do this, or is not trusted.

    A password or a certificate is wrong, or a right is missing. Nobody catches it: to try again
    ends the same until a person has changed something.

    Args:
        message: what happened, and what to do.
        principal: who was not let, as far as it is known.
        right: the right that is missing, in Kafka's words.
        resource: on what it is missing.
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
        """The same of another right, which includes the one that was missed."""
        if self.right is None:
            return self
        message = str(self).replace(f"the right {self.right} ", f"the right {right} ", 1)
        return type(self)(message, principal=self.principal, right=right, resource=self.resource)


class GroupDeniedError(AccessError):
    """This client has no right on a group; where the group is of use and not needed, it is caught.

    `headrace.streams.plan.deployed` catches it, and does without the description of what is
    deployed.
    """
