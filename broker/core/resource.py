"""Names one exchange or queue of one vhost, the way every reply text names it.

A resource is only a name: it may not exist. Permissions are asked about it and errors print it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Resource(NamedTuple):
    """Names an exchange or a queue of a vhost."""

    kind: Literal["exchange", "queue"]
    vhost: str
    name: str

    def __str__(self) -> str:
        """Return RabbitMQ's wording, which people grep for: queue 'q' in vhost '/'."""
        return f"{self.kind} '{self.name}' in vhost '{self.vhost}'"
